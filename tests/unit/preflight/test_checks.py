"""A checkpoint and real tables before a run, without a broker: what may go on, and with which options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.committing import commit
from tests.spark_checkpoint import write_checkpoint

from penstock.assembly.build import build
from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.errors import TerminalError
from penstock.model import BatchToken, OffsetRange
from penstock.preflight.checks import check_agreement
from penstock.preflight.options import RunOptions


def checked(folder: Path, **options: Any) -> None:
    pipeline = build(load(folder / "orders.yaml"))
    check_agreement(pipeline, SparkCheckpoint(pipeline.config.checkpoint), options=RunOptions(**options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table that another checkpoint has carried to offset 15, beside one with two batches of its own."""
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "127.0.0.1:9", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "order_id BIGINT"},
        "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
        "checkpoint": "checkpoint",
    }
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(body))
    pipeline = build(load(tmp_path / "orders.yaml"))
    [sink] = pipeline.sinks
    [flow] = pipeline.flows
    assert flow.schema is not None
    sink.prepare(flow.schema)
    commit(sink, BatchToken("orders", "another", 0, (OffsetRange("orders", 0, 0, 15),)), [])
    write_checkpoint(tmp_path / "checkpoint", [{0: 5}, {0: 10}])
    return tmp_path


def test_checkpoint_beside_a_table_that_another_one_carried_further_is_fenced(folder: Path) -> None:
    with pytest.raises(TerminalError) as refused:
        checked(folder)
    assert refused.value.code == "FENCED"


def test_checkpoint_with_its_own_place_is_not_resumed_from_the_table(folder: Path) -> None:
    with pytest.raises(TerminalError) as refused:
        checked(folder, resume_from_table=True)
    assert refused.value.code == "RESUME_NEEDS_FRESH_CHECKPOINT"
    assert refused.value.context["last batch begun"] == "1"
    assert str(folder / "checkpoint") in refused.value.summary
