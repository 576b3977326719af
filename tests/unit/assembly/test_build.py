"""Building a pipeline from its file: which lane it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.assembly.build import Pipeline, build
from penstock.config import load
from penstock.errors import MissingError


def built(folder: Path, expression: str, **keys: Any) -> Pipeline:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "127.0.0.1:9", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "id BIGINT, amount DOUBLE"},
        "transforms": [{"where": expression}],
        "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
        "checkpoint": "checkpoint",
        **keys,
    }
    (folder / "orders.yaml").write_text(yaml.safe_dump(body))
    return build(load(folder / "orders.yaml"))


def test_build_lane_direct_for_an_expression_without_an_arrow_form_is_refused(tmp_path: Path) -> None:
    only_spark = "CAST(amount AS STRING) = '1'"
    assert [flow.lane.lane for flow in built(tmp_path, only_spark).flows] == ["frame"]
    assert [flow.lane.lane for flow in built(tmp_path, "amount > 1", lane="direct").flows] == ["direct"]
    with pytest.raises(MissingError) as raised:
        built(tmp_path, only_spark, lane="direct")
    assert raised.value.code == "LANE_IMPOSSIBLE"
    assert "transforms[0]" in raised.value.context["because of"]
