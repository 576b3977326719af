"""Building a pipeline from its file: which lane it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.assembly.build import Pipeline, build
from penstock.assembly.starting import Needs
from penstock.config import InvalidDefinition, load
from penstock.errors import MissingError
from penstock.sinks.jsonl import JsonLinesSink


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


def test_fleet_speculates_only_where_no_pipeline_commits_in_its_tasks() -> None:
    tables = Needs(("a",), tables=True, light=True)
    kafka = Needs(("b",), tables=False, light=True, attempts=False)
    both = tables.together(kafka)
    assert (both.attempts, both.tables, both.light, both.preload) == (False, True, True, ("a", "b"))
    assert tables.together(tables).attempts


def test_build_json_lines_are_partitioned_as_the_file_says(tmp_path: Path) -> None:
    sink = {"name": "out", "type": "jsonl", "path": "lake/out", "partition_by": ["id"]}
    [made] = built(tmp_path, "amount > 1", sinks=[sink]).sinks
    assert isinstance(made, JsonLinesSink)
    assert made.partition_by == ("id",)


def test_build_join_names_a_column_that_a_schema_elsewhere_does_not_have(tmp_path: Path) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    file = tmp_path / "joined.yaml"

    def joined(key: str) -> None:
        sources = {
            name: {
                "type": "kafka",
                "brokers": "127.0.0.1:9",
                "topics": [name],
                "decode": {"format": "avro", "schema_file": "order.avsc", "framing": "none"},
                "transforms": [
                    {"rename": {"id": f"{name}_id", "at": f"{name}_at"}},
                    {"watermark": {"column": f"{name}_at", "delay": "1 minute"}},
                ],
            }
            for name in ("orders", "payments")
        }
        body = {
            "name": "joined",
            "sources": sources,
            "transforms": [
                {"join": {"left": "orders", "right": "payments", "on": {"orders_id": key}, "within": "1 hour"}},
            ],
            "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
            "checkpoint": "checkpoint",
        }
        file.write_text(yaml.safe_dump(body))
        build(load(file))

    joined("payments_id")
    with pytest.raises(InvalidDefinition) as raised:
        joined("paymnts_id")
    [problem] = raised.value.problems
    assert problem.path == "transforms[0].join.on"
    assert problem.message == 'source payments has no column "paymnts_id"'
    assert problem.hint == 'did you mean "payments_id"?'
