"""Files as they are staged for an append: partition values, statistics, field ids, types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, GreaterThan, GreaterThanOrEqual
from pyiceberg.table import Table
from tests.committing import commit

from penstock.errors import MissingError
from penstock.model import BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = [
    EPOCH,
    EPOCH - timedelta(microseconds=1),
    EPOCH - timedelta(days=1),
    EPOCH + timedelta(hours=1, microseconds=-1),
    datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    datetime(1583, 1, 1, tzinfo=UTC),
    None,
]


def landed(folder: Path, rows: pa.Table, partition_by: tuple[str, ...] = (), **settings: Any) -> Table:
    """A table with these rows, by one commit."""
    sink = IcebergSink("p", "s", "a.b", str(folder), catalog=IcebergCatalog(), partition_by=partition_by, **settings)
    sink.prepare(rows.schema)
    token = BatchToken("p", "query", 0, (OffsetRange("t", 0, 0, rows.num_rows),))
    stage = sink.stage(token, SlotAttempt(0, "0"), rows.schema)
    for part in rows.to_batches(max_chunksize=3):
        assert stage.write(part) == ()
    commit(sink, token, [stage.finish()])
    return opened(folder)


def opened(folder: Path) -> Table:
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table("a.b")


def files_for(table: Table, condition: Any) -> int:
    return len(list(table.scan(row_filter=condition).plan_files()))


@pytest.mark.parametrize("text", ["years(at)", "months(at)", "days(at)", "hours(at)"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_partition_by_time_gives_the_value_of_each_single_time(tmp_path: Path, text: str, zone: str | None) -> None:
    times = [at if at is None or zone else at.replace(tzinfo=None) for at in TIMES]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", tz=zone)), "id": list(range(len(times)))})
    table = landed(tmp_path, rows, (text,))
    [field] = table.spec().fields
    change = field.transform.transform(table.schema().find_field("at").field_type)
    found = {task.file.partition[0]: set() for task in table.scan().plan_files()}
    for task in table.scan().plan_files():
        path = task.file.file_path.removeprefix("file://")
        found[task.file.partition[0]] |= set(pq.read_table(path)["id"].to_pylist())
    expected: dict[Any, set[int]] = {}
    for number, at in enumerate(times):
        expected.setdefault(change(at), set()).add(number)
    assert found == expected
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(len(times)))


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bucket(4, v)": (pa.int64(), [-(2**62), -1, 0, 1, 2, 3, 2**62, None]),
    "bucket(5, v)": (pa.string(), ["", "a", "ünï 水", "x" * 400, None]),
    "bucket(6, v)": (pa.date32(), [date(1, 1, 1), date(2026, 1, 1), None]),
    "bucket(7, v)": (pa.decimal128(20, 4), [Decimal("1.5000"), Decimal("-0.0001"), None]),
    "bucket(8, v)": (pa.binary(), [b"", b"\x00\xff", None]),
    "bucket(9, v)": (pa.timestamp("us", tz="UTC"), TIMES),
    "truncate(10, v)": (pa.int32(), [-11, -10, -1, 0, 9, 10, None]),
    "truncate(2, v)": (pa.string(), ["", "a", "水水水", "水水x", None]),
    "truncate(3, v)": (pa.decimal128(9, 2), [Decimal("10.65"), Decimal("-0.01"), None]),
    "years(v)": (pa.date32(), [date(1969, 12, 31), date(1970, 1, 1), None]),
    "days(v)": (pa.date32(), [date(1969, 12, 31), date(1970, 1, 1), None]),
    "v": (pa.string(), ["", "__HIVE_DEFAULT_PARTITION__", "null", None]),
}


@pytest.mark.parametrize("text", sorted(VALUES))
def test_partition_by_a_transform_finds_every_row_again_in_its_partition_alone(tmp_path: Path, text: str) -> None:
    kind, values = VALUES[text]
    rows = pa.table({"v": pa.array(values, kind), "id": list(range(len(values)))})
    table = landed(tmp_path, rows, (text,))
    [field] = table.spec().fields
    change = field.transform.transform(table.schema().find_field("v").field_type)
    expected = {change(value) for value in values}
    assert {task.file.partition[0] for task in table.scan().plan_files()} == (
        {(value - date(1970, 1, 1)).days if isinstance(value, date) else value for value in expected}
    )
    for number, value in enumerate(values):
        condition = EqualTo("v", value) if value is not None else "v is null"
        assert table.scan(row_filter=condition).to_arrow()["id"].to_pylist() == [number]
        assert files_for(table, condition) < len(expected)


def test_partition_by_a_transform_that_the_type_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as refused:
        landed(tmp_path, pa.table({"v": ["a"]}), ("days(v)",))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert refused.value.context == {"partition_by": "days(v)", "column": "v string"}


def test_statistics_of_files_leave_out_those_that_cannot_match(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "part": ["a", "b"],
            "n": [1, 1000],
            "text": ["x" * 100, "y" * 100],
            "price": pa.array([Decimal("1.5"), Decimal("100.5")], pa.decimal128(20, 2)),
            "at": pa.array([EPOCH, EPOCH + timedelta(days=5)], pa.timestamp("us", tz="UTC")),
        }
    )
    table = landed(tmp_path, rows, ("part",))
    for condition in (
        GreaterThan("n", 500),
        GreaterThan("text", "xz"),
        GreaterThan("price", Decimal("50.00")),
        GreaterThan("at", "1970-01-03T00:00:00+00:00"),
    ):
        assert files_for(table, condition) == 1
    assert files_for(table, GreaterThanOrEqual("n", 1)) == 2


def test_statistics_of_a_file_with_nan_do_not_hide_it(tmp_path: Path) -> None:
    table = landed(tmp_path, pa.table({"v": [1.0, math.nan], "w": [1.0, 2.0]}))
    assert files_for(table, GreaterThan("v", 100.0)) == 1
    assert files_for(table, GreaterThan("w", 100.0)) == 0


def test_statistics_of_times_beyond_python_lose_no_row(tmp_path: Path) -> None:
    far = pa.array([2**61, 5], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    table = landed(tmp_path, pa.table({"at": far, "id": [1, 2]}))
    assert table.scan(row_filter=EqualTo("id", 1), selected_fields=("id",)).to_arrow()["id"].to_pylist() == [1]
    [task] = table.scan().plan_files()
    assert task.file.record_count == 2


def test_staged_file_carries_the_field_ids_of_the_table(tmp_path: Path) -> None:
    nested = pa.struct([pa.field("a", pa.int8()), pa.field("l", pa.list_(pa.struct([pa.field("x", pa.int16())])))])
    schema = pa.schema([pa.field("s", nested), pa.field("m", pa.map_(pa.string(), nested)), pa.field("n", pa.int8())])
    value = {"a": -3, "l": [{"x": 7}, None]}
    rows = pa.Table.from_pylist([{"s": value, "m": [("k", value)], "n": 5}], schema=schema)
    table = landed(tmp_path, rows)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    [task] = table.scan().plan_files()
    written = pq.read_schema(task.file.file_path.removeprefix("file://"))
    ids = {written.field(name).metadata[b"PARQUET:field_id"] for name in written.names}
    assert ids == {str(field.field_id).encode() for field in table.schema().fields}
    # A name that changed is found by its id alone.
    table.update_schema().rename_column("s", "renamed").rename_column("m.value.l", "list").commit()
    assert opened(tmp_path).scan().to_arrow().to_pylist() == [
        {"renamed": value, "m": [("k", {"a": -3, "list": value["l"]})], "n": 5}
    ]


def test_table_with_a_data_folder_of_its_own_gets_its_files_there(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2]})
    landed(tmp_path, rows)
    elsewhere = tmp_path / "elsewhere"
    opened(tmp_path).transaction().set_properties({"write.data.path": f"file://{elsewhere}"}).commit_transaction()
    sink = IcebergSink("p", "s", "a.b", str(tmp_path), catalog=IcebergCatalog())
    sink.prepare(rows.schema)
    token = BatchToken("p", "query", 1, ())
    stage = sink.stage(token, SlotAttempt(0, "0"), rows.schema)
    [batch] = rows.to_batches()
    stage.write(batch)
    commit(sink, token, [stage.finish()])
    assert len(list(elsewhere.rglob("*.parquet"))) == 1
    assert opened(tmp_path).scan().to_arrow()["id"].to_pylist() == [1, 2, 1, 2]


def test_columns_of_types_that_iceberg_does_not_have_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("u", pa.uint32()), pa.field("s", pa.struct([pa.field("t", pa.time64("us"))]))])
    with pytest.raises(MissingError) as refused:
        landed(tmp_path, schema.empty_table())
    assert refused.value.context == {"columns": "u: uint32, s.t: time64[us]"}
