"""What the Kafka sink writes by a registry's schema, a second pipeline reads back equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.orders import drain, rows_of

pytestmark = pytest.mark.services

COLUMNS = """order_id BIGINT, customer STRING, count INT, ratio FLOAT, amount DOUBLE, flag BOOLEAN, at TIMESTAMP,
tags ARRAY<STRING>, labels MAP<STRING, BIGINT>, place STRUCT<street: STRING, no: INT>,
items ARRAY<STRUCT<sku: STRING, qty: INT>>"""
# Protobuf has no type for these: there they are text.
AVRO_ONLY = ", price DECIMAL(9, 2), day DATE, local TIMESTAMP_NTZ"

FULL = {
    "order_id": 2**63 - 1,
    "customer": "Ö \U0001f600",
    "count": -1,
    "ratio": 0.5,
    "amount": 5e-324,
    "flag": True,
    "at": "2026-01-02T03:04:05.678901Z",
    "tags": ["a", ""],
    "labels": {"a": 1},
    "place": {"street": "Ring", "no": None},
    "items": [{"sku": "s", "qty": 1}, {"sku": None, "qty": None}],
    "price": "-1234567.89",
    "day": "1969-12-31",
    "local": "2026-01-02T03:04:05.678901",
}
SPARSE = {"order_id": 1, "tags": [], "labels": {}, "place": {"street": None, "no": 0}, "items": []}
NULLS = {"order_id": 2, "tags": [], "labels": {}, "items": []}


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_rows_written_by_a_registered_schema_are_read_back_equal(
    session: Any, topics: Any, registry: Any, pipeline_file: Callable[..., Path], tmp_path: Path, format: str
) -> None:
    source, middle = topics.create(1), topics.create(2, prefix="middle")
    columns = COLUMNS + (AVRO_ONLY if format == "avro" else "")
    topics.send(source, [SPARSE, FULL, NULLS])
    by = {"format": format, "registry": {"url": registry.url}}
    value, key = dict(by), {**by, "columns": ["order_id", "customer"]}
    if format == "protobuf":
        value["message"], key["message"] = "shop.Order", "shop.OrderKey"
    first = pipeline_file(
        source,
        name=f"out-{source}",
        folder=tmp_path / "first",
        decode={"format": "json", "schema": columns},
        sinks=[
            {"name": "table", "type": "delta", "path": "lake/out"},
            {"name": "topic", "type": "kafka", "topic": middle, "value": value, "key": key},
        ],
    )
    drain(first, session)
    read, read_key = dict(by), dict(by)
    if format == "protobuf":
        read["message"], read_key["message"] = "shop.Order", "shop.OrderKey"
    second = pipeline_file(
        middle,
        name=f"in-{middle}",
        folder=tmp_path / "second",
        decode={**read, "key": {**read_key, "column": "its_key"}},
    )
    summary = drain(second, session)
    assert (summary.rows_out, summary.quarantined) == (3, 0)
    written, found = rows_of(first), rows_of(second)
    assert [row.pop("its_key") for row in found] == [
        {"order_id": row["order_id"], "customer": row["customer"]} for row in written
    ]
    assert found == written
    assert written[2]["customer"] == FULL["customer"]
