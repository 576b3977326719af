from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model import RAW_SCHEMA, OffsetRange
from penstock.readers.stored import StoredReader, store

STORED = pa.schema([*RAW_SCHEMA, pa.field("mark", pa.string())])


def records(partition: int, *offsets: int) -> pa.Table:
    rows = [
        {
            "key": b"\xff" if offset % 2 else None,
            "value": f"{partition}/{offset}".encode(),
            "headers": [{"key": "h", "value": None}] if offset % 3 else None,
            "topic": "orders",
            "partition": partition,
            "offset": offset,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            "mark": f"m{offset}",
        }
        for offset in offsets
    ]
    return pa.Table.from_pylist(rows, schema=STORED)


def stored(folder: Path) -> StoredReader:
    groups = [records(0, 1, 5), records(1, 2), records(0, 9, 40), records(1, 7, 8)]
    store(folder / "records.parquet", STORED, groups)
    return StoredReader(str(folder / "records.parquet"))


def places(batches: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def test_stored_reader_gives_the_records_inside_the_ranges_in_order(tmp_path: Path) -> None:
    reader = pickle.loads(pickle.dumps(stored(tmp_path)))
    found = list(reader.read([OffsetRange("orders", 1, 0, 8), OffsetRange("orders", 0, 5, 40)]))
    assert places(found) == [(0, 5), (1, 2), (0, 9), (1, 7)]
    assert all(batch.schema.equals(RAW_SCHEMA) for batch in found)
    whole = records(0, 5).drop_columns(["mark"]).to_pylist()
    assert found[0].to_pylist()[:1] == whole


def test_stored_reader_outside_of_what_is_stored_gives_nothing(tmp_path: Path) -> None:
    reader = stored(tmp_path)
    elsewhere = [OffsetRange("orders", 0, 10, 40), OffsetRange("orders", 2, 0, 99), OffsetRange("other", 0, 0, 99)]
    assert places(reader.read(elsewhere)) == []
    assert places(reader.read([OffsetRange("orders", 0, 5, 5)])) == []


def test_stored_reader_many_ranges_are_asked_in_pieces(tmp_path: Path) -> None:
    ranges = [OffsetRange("orders", partition, 0, 100) for partition in range(450)]
    assert len(places(stored(tmp_path).read(ranges))) == 7


def test_stored_columns_beside_the_records_own_are_read_by_range(tmp_path: Path) -> None:
    found = stored(tmp_path).columns([OffsetRange("orders", 0, 5, 41)], ["offset", "mark"])
    assert found.to_pydict() == {"offset": [5, 9, 40], "mark": ["m5", "m9", "m40"]}


def test_store_writes_a_row_group_for_each_table(tmp_path: Path) -> None:
    stored(tmp_path)
    assert pq.ParquetFile(tmp_path / "records.parquet").metadata.num_row_groups == 4
