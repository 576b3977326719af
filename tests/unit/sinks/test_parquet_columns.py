from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import MissingError
from penstock.sinks.parquet import ParquetSink
from penstock.sinks.parquet.columns import Columns, check_columns, merge_columns
from penstock.sinks.parquet.local import LocalTarget

ID = pa.field("id", pa.int64(), nullable=False)
DAY = pa.field("day", pa.date32())


def columns(*fields: pa.Field, partition_by: tuple[str, ...] = ()) -> Columns:
    return check_columns("out", pa.schema(fields), partition_by)


def merged(mine: list[pa.Field], held: list[pa.Field]) -> pa.Schema:
    return merge_columns("out", columns(*mine), columns(*held)).files


def test_columns_written_and_read_again_are_the_same(tmp_path: Path) -> None:
    tags = pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.map_(pa.string(), pa.decimal128(9, 2)))])))
    at = pa.field("at", pa.timestamp("us", tz="UTC"))
    made = columns(ID, tags, DAY, at, partition_by=("day",))
    target = LocalTarget("out", tmp_path / "out", "orders", ParquetSink.layout)
    target.agree(lambda held: made)
    assert target.columns() == made
    assert pq.read_schema(tmp_path / "out/_common_metadata").names == ["id", "tags", "at"]


def test_merge_of_new_and_absent_columns_makes_them_nullable() -> None:
    new, old = pa.field("new", pa.int8(), nullable=False), pa.field("old", pa.int8(), nullable=False)
    assert merged([ID, new], [ID, old]) == pa.schema([ID, old.with_nullable(True), new.with_nullable(True)])


def test_merge_of_a_nullable_column_into_one_that_is_not_makes_it_nullable() -> None:
    assert merged([ID.with_nullable(True)], [ID]) == pa.schema([ID.with_nullable(True)])


@pytest.mark.parametrize(
    "around", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)], ids=["struct", "list", "map"]
)
def test_merge_of_nested_fields_keeps_both_sides(around: type[pa.DataType]) -> None:
    a, b, c = (pa.field(name, pa.int32()) for name in "abc")
    mine, held = (pa.field("item", around(pa.struct(fields))) for fields in ([a, c], [a, b]))
    assert merged([mine], [held]) == pa.schema([pa.field("item", around(pa.struct([a, b, c])))])


@pytest.mark.parametrize(
    ("mine", "held", "where"),
    [
        (pa.int64(), pa.int32(), "x"),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), "x"),
        (pa.list_(pa.string()), pa.string(), "x"),
        (pa.list_(pa.string()), pa.list_(pa.int8()), "x[]"),
        (pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int8()), "x value"),
        (pa.struct([pa.field("y", pa.int8())]), pa.struct([pa.field("y", pa.string())]), "x.y"),
    ],
)
def test_merge_of_another_type_is_refused_where_it_differs(mine: pa.DataType, held: pa.DataType, where: str) -> None:
    with pytest.raises(MissingError) as refused:
        merged([pa.field("x", mine)], [pa.field("x", held)])
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert list(refused.value.context) == [where]


def test_merge_of_a_name_that_differs_in_case_is_refused() -> None:
    with pytest.raises(MissingError) as refused:
        merged([pa.field("ID", pa.int64())], [ID])
    assert refused.value.context == {"id": "pipeline named ID, table named id"}


def test_merge_of_other_partitions_is_refused_showing_both_sides() -> None:
    with pytest.raises(MissingError) as refused:
        merge_columns("out", columns(ID, DAY), columns(ID, DAY, partition_by=("day",)))
    assert refused.value.context == {"pipeline": "none", "table": "day"}


def test_merge_of_another_type_of_a_partition_column_is_refused() -> None:
    text = columns(ID, pa.field("day", pa.string()), partition_by=("day",))
    with pytest.raises(MissingError, match="SINK_SCHEMA_MISMATCH"):
        merge_columns("out", text, columns(ID, DAY, partition_by=("day",)))


@pytest.mark.parametrize(
    ("fields", "partition_by"),
    [
        ([ID, pa.field("Penstock_Batch", pa.string())], ()),
        ([ID, pa.field("ID", pa.string())], ()),
        ([ID], ("id",)),
        ([ID], ("absent",)),
        ([ID, pa.field("half", pa.float32())], ("half",)),
        ([ID, pa.field("either", pa.dense_union([pa.field("a", pa.int8())]))], ()),
    ],
    ids=["name of the batches", "case only", "nothing left", "no such column", "float partition", "no such type"],
)
def test_columns_that_no_folder_can_hold_are_refused(fields: list[pa.Field], partition_by: tuple[str, ...]) -> None:
    with pytest.raises(MissingError) as refused:
        columns(*fields, partition_by=partition_by)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
