"""What each sink stages can wait as JSON: the items of its manifests are read back as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from tests.contract.rows import stage, token

from penstock.contracts import Sink
from penstock.model import COORDINATES_FIELD, Manifest, MergeRules, SlotAttempt
from penstock.model.stored_manifests import manifests_from_json, manifests_to_json
from penstock.sinks.delta import DeltaMergeSink, DeltaSink
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.parquet import ParquetSink
from penstock.sinks.postgres.stage import COORDINATE_COLUMNS, StagedColumn, StagedTable

ROW = {
    "id": 7,
    "note": "ü\n",
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "clock": datetime(2026, 1, 2, 3, 4, 5),
    "price": Decimal("1.50"),
    "body": b"\x00\xff",
}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("clock", pa.timestamp("us")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("body", pa.binary()),
        COORDINATES_FIELD,
    ]
)
ALL = ("id", "note", "day", "at", "clock")
RULES = MergeRules(keys=ALL, prune_by=("price", "body"))


def iceberg(folder: Path, rules: MergeRules | None, *partition_by: str) -> Sink:
    settings: dict[str, Any] = {"catalog": IcebergCatalog(), "rules": rules, "partition_by": partition_by}
    return IcebergSink("orders", "out", "shop.orders", str(folder), **settings)


SINKS: dict[str, Callable[[Path], Sink]] = {
    "delta": lambda folder: DeltaSink("orders", "out", str(folder), partition_by=["day", "at"]),
    "delta merge": lambda folder: DeltaMergeSink("orders", "out", str(folder), RULES, driver_bytes=0),
    "iceberg": lambda folder: iceberg(folder, None, *ALL, "price", "body"),
    "iceberg merge": lambda folder: iceberg(folder, RULES),
    "parquet": lambda folder: ParquetSink("orders", "out", str(folder), partition_by=["day"]),
    "jsonl": lambda folder: JsonLinesSink("orders", "out", str(folder)),
}


def again(*manifests: Manifest) -> list[Manifest] | None:
    return manifests_from_json(manifests_to_json(manifests))


@pytest.mark.parametrize("name", SINKS)
def test_items_that_a_sink_staged_are_read_back_from_json(name: str, tmp_path: Path) -> None:
    sink = SINKS[name](tmp_path)
    sink.prepare(SCHEMA)
    rows = pa.RecordBatch.from_pylist([ROW, {**ROW, "note": None, "day": None}], schema=SCHEMA)
    rows = rows.slice(0, 1) if name.endswith("merge") else rows
    manifest = stage(sink, token(0, 0, 2), [rows], schema=SCHEMA)
    assert manifest.items
    assert again(manifest, manifest) == [manifest, manifest]


@pytest.mark.parametrize("name", ["delta", "delta merge", "iceberg", "iceberg merge"])
def test_sink_finds_what_it_staged_until_a_file_of_it_is_lost(name: str, tmp_path: Path) -> None:
    sink: Any = SINKS[name](tmp_path)
    sink.prepare(SCHEMA)
    manifest = stage(sink, token(0, 0, 1), [pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)], schema=SCHEMA)
    assert sink.has_staged([manifest])
    [file] = [path for path in tmp_path.rglob("*.parquet") if "_delta_log" not in path.parts]
    file.unlink()
    assert not sink.has_staged([manifest])


TABLE = StagedTable("staged_01", 3, (StagedColumn("id", "bigint"), *COORDINATE_COLUMNS))


@pytest.mark.parametrize("item", [TABLE, "records-0.parquet", b"\x00\xff"], ids=["postgres", "bad records", "memory"])
def test_items_of_servers_and_of_memory_are_read_back_from_json(item: object) -> None:
    manifest = Manifest("out", SlotAttempt(0, "0"), 3, 10, (item,))
    assert again(manifest) == [manifest]


def test_values_that_json_lacks_are_read_back_as_they_were() -> None:
    items = (None, True, 1.5, 2**70, time(1, 2), UUID(int=7), [1, (2, [3])], {1: b"\1", "a": {}}, frozenset({"b", "a"}))
    manifest = Manifest("out", SlotAttempt(0, "0"), 3, 10, items)
    assert again(manifest) == [manifest]


def test_items_without_a_stored_form_are_refused() -> None:
    with pytest.raises(TypeError, match="PosixPath has no stored form"):
        manifests_to_json([Manifest("out", SlotAttempt(0, "0"), 3, 10, (Path("x"),))])


def test_text_of_another_version_or_without_manifests_is_not_read() -> None:
    written = json.loads(manifests_to_json([Manifest("out", SlotAttempt(0, "0"), 3, 10)]))
    [manifest] = written["manifests"]
    for body in (
        {**written, "version": 2},
        {**written, "manifests": [{**manifest, "$type": "unknown"}]},
        {**written, "manifests": [{**manifest, "unknown": 1}]},
        [],
        {},
    ):
        assert manifests_from_json(json.dumps(body)) is None
    assert manifests_from_json(b"\x80\x04\x95") is None
    assert manifests_from_json("") is None
