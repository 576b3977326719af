"""How large files become: rolled over at the wanted size, and one a partition and batch where there is little."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.committing import commit
from tests.contract.kit_iceberg import open_table
from tests.contract.rows import SCHEMA, records, stage, token
from tests.tables import read_table

from penstock.model import SlotAttempt
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import ParquetFiles, TableFolder, joining
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink


def delta(folder: Path, **settings: Any) -> DeltaSink:
    sink = DeltaSink("orders", "out", str(folder), **settings)
    sink.prepare(SCHEMA)
    return sink


def iceberg(folder: Path, **settings: Any) -> IcebergSink:
    sink = IcebergSink("orders", "out", "shop.orders", str(folder), catalog=IcebergCatalog(), **settings)
    sink.prepare(SCHEMA)
    return sink


def delta_files(folder: Path) -> list[dict[str, Any]]:
    return list(pa.table(DeltaTable(folder).get_add_actions(flatten=True)).to_pylist())


def on_disk(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.parquet"))


def test_files_of_a_slot_roll_over_past_the_wanted_size(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    files = ParquetFiles(TableFolder(str(tmp_path)), "part-", SlotAttempt(0, "0"), schema, target_file_bytes=20_000)
    chance = random.Random(1)
    for _ in range(20):
        values = pa.array([chance.getrandbits(62) for _ in range(1000)], pa.int64())
        files.add("", pa.record_batch([values], schema=schema))
    written = files.finish()
    assert len(written) > 3
    assert all(20_000 <= file.size_bytes < 40_000 for file in written[:-1])
    assert sum(file.footer.num_rows for file in written) == 20_000


def test_delta_append_of_several_slots_is_one_file(tmp_path: Path) -> None:
    sink, batch = delta(tmp_path), token(0, 0, 30)
    staged = [stage(sink, batch, [records(range(slot * 10, slot * 10 + 10))], slot) for slot in range(3)]
    assert on_disk(tmp_path) == 3
    commit(sink, batch, staged)
    [file] = delta_files(tmp_path)
    assert (file["num_records"], file["min.id"], file["max.id"]) == (30, 0, 29)
    assert on_disk(tmp_path) == 1
    wanted = sorted(records(range(30)).to_pylist(), key=lambda row: row["id"])
    assert sorted(read_table(tmp_path).select(SCHEMA.names).to_pylist(), key=lambda row: row["id"]) == wanted


def test_delta_append_to_partitions_is_one_file_each(tmp_path: Path) -> None:
    sink, batch = delta(tmp_path, partition_by=["note"]), token(0, 0, 30)
    part = lambda number: None if number % 3 == 0 else f"n {number % 3}/ü"  # noqa: E731
    staged = [stage(sink, batch, [records(range(slot * 10, slot * 10 + 10), note=part)], slot) for slot in range(3)]
    commit(sink, batch, staged)
    found = delta_files(tmp_path)
    assert sorted((str(file["partition.note"]), file["num_records"]) for file in found) == [
        ("None", 10),
        ("n 1/ü", 10),
        ("n 2/ü", 10),
    ]
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == list(range(30))


def test_iceberg_append_to_partitions_is_one_file_each(tmp_path: Path) -> None:
    sink, batch = iceberg(tmp_path, partition_by=["note"]), token(0, 0, 30)
    staged = [
        stage(sink, batch, [records(range(slot * 10, slot * 10 + 10), note=lambda n: f"p{n % 2}")], slot)
        for slot in range(3)
    ]
    commit(sink, batch, staged)
    table = open_table(tmp_path)
    assert sorted(file["record_count"] for file in table.inspect.data_files().to_pylist()) == [15, 15]
    assert on_disk(tmp_path) == 2
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(30))
    figures = sink.maintenance().figures()
    assert figures is not None and (figures.files, figures.small_files, figures.versions) == (2, 0, 1)


@pytest.mark.parametrize("make", [delta, iceberg])
def test_append_that_is_committed_again_joins_nothing_and_keeps_its_files(tmp_path: Path, make: Any) -> None:
    sink, batch = make(tmp_path), token(0, 0, 20)
    commit(sink, batch, [stage(sink, batch, [records(range(10 * s, 10 * s + 10))], s) for s in range(2)])
    again = [stage(sink, batch, [records(range(10 * s, 10 * s + 10))], s, attempt="1") for s in range(2)]
    commit(sink, batch, again)
    sink.discard(batch, again)
    figures = sink.maintenance().figures()
    assert figures is not None and figures.files == 1
    assert on_disk(tmp_path) == 3


def test_append_of_much_is_left_as_it_was_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "JOINED_ROWS", 15)
    sink, batch = delta(tmp_path), token(0, 0, 20)
    commit(sink, batch, [stage(sink, batch, [records(range(10 * s, 10 * s + 10))], s) for s in range(2)])
    assert len(delta_files(tmp_path)) == 2
