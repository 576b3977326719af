"""The flows of a run as they are now: what they take up, and what they leave to a restart."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from penstock.assembly.build import Pipeline, build
from penstock.assembly.schemas import SchemaUpdates
from penstock.config import load
from penstock.engine.flows import CurrentFlows
from penstock.errors import TransientError
from penstock.registry import RegisteredSchema

PLACE = ("decode",)


def avro(version: int, amount: str, *more: str) -> RegisteredSchema:
    fields = [{"name": "id", "type": "long"}, {"name": "amount", "type": amount}]
    fields += [{"name": name, "type": ["null", "string"], "default": None} for name in more]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    return RegisteredSchema(version, "AVRO", text, (), "orders-value", version)


def pipeline(folder: Path, schema: RegisteredSchema | None = None, **keys: Any) -> Pipeline:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "127.0.0.1:9", "topics": ["orders"]},
        "decode": {"format": "avro", "registry": {"url": "http://127.0.0.1:9"}},
        "quarantine": {"table": "lake/bad"},
        "sinks": [{"name": "out", "type": "delta", "path": "lake/out", "evolve": "add_columns"}],
        "checkpoint": "checkpoint",
        **keys,
    }
    (folder / "orders.yaml").write_text(yaml.safe_dump(body))
    config = load(folder / "orders.yaml")
    return build(config, {PLACE: schema} if schema is not None else None)


class Registry:
    """Stands in for the questions to a registry: it has one newest schema."""

    def __init__(self, newest: RegisteredSchema) -> None:
        self.newest = newest

    def ask(self, known: RegisteredSchema | None = None) -> RegisteredSchema:
        return self.newest


def test_schema_that_needs_the_other_lane_is_left_to_a_restart_and_said(tmp_path: Path) -> None:
    told: list[str] = []
    first = avro(1, "double")
    flows = CurrentFlows(pipeline(tmp_path, first, transforms=[{"where": "amount > 1"}]), None, told.append)
    registry = Registry(first)
    flows._updates = SchemaUpdates({PLACE: registry})  # type: ignore[dict-item]
    flows.prepare()
    registry.newest = avro(2, "string")
    assert [flow.direct for flow in flows.now()] == [True]
    [refused] = told
    assert refused.startswith("orders-value version 2 is not used: it needs the other lane")
    registry.newest = avro(3, "double", "note")
    flows.now()
    assert told[1:] == ["orders-value version 3 is now used: new columns note"]


def test_table_joined_before_the_state_that_changes_begins_the_stream_anew(tmp_path: Path) -> None:
    customers = pa.table({"id": [1, 2], "name": ["ann", "bob"]})
    write_deltalake(tmp_path / "lake/customers", customers)
    steps = [
        {"enrich": {"table": "customers", "on": {"id": "id"}}},
        {"watermark": {"column": "at", "delay": "1 minute"}},
        {"dedupe": {"keys": ["id"], "within": "1 hour"}},
    ]
    made = pipeline(
        tmp_path,
        decode={"format": "json", "schema": "id BIGINT, at TIMESTAMP"},
        tables={"customers": {"type": "delta", "path": "lake/customers"}},
        transforms=steps,
    )
    flows = CurrentFlows(made, None, lambda text: None)
    flows._lookups.refresh()
    layout = made.flows[0].layout()
    assert layout is not None and list(layout.tables) == ["customers"]
    # Only its layout is asked; a stream of its own would need Spark.
    flows.stream = SimpleNamespace(layout=layout)  # type: ignore[assignment]
    flows.now()
    assert not flows.stale
    write_deltalake(tmp_path / "lake/customers", customers, mode="append")
    with pytest.raises(TransientError) as raised:
        flows.now()
    assert raised.value.code == "TABLE_CHANGED"
    assert flows.stale
