"""What the Parquet sink wrote, read by Spark as a plain folder: rows, types, and only ever whole batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.committing import commit

from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.parquet import ParquetSink

pytestmark = pytest.mark.services

MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
EDGES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tiny", pa.int8()),
        pa.field("flag", pa.bool_()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(38, 10)),
        pa.field("note", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("item", pa.struct([pa.field("sku", pa.string()), pa.field("tags", pa.list_(pa.string()))])),
        pa.field("more", pa.map_(pa.string(), pa.int64())),
        COORDINATES_FIELD,
    ]
)
SPARK_TYPES = {
    "id": "bigint",
    "tiny": "tinyint",
    "flag": "boolean",
    "amount": "double",
    "price": "decimal(38,10)",
    "note": "string",
    "data": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "item": "struct<sku:string,tags:array<string>>",
    "more": "map<string,bigint>",
    COORDINATES: "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp>",
    "penstock_batch": "string",
}
AN_EDGE = {
    "id": 2**62,
    "tiny": -128,
    "flag": True,
    "amount": 1.5,
    "price": Decimal("1234567890123456789012345678.0123456789"),
    "note": "ünï 水",
    "data": b"\x00\xff",
    "day": date(1970, 1, 1),
    "at": MOMENT,
    "local": MOMENT.replace(tzinfo=None),
    "item": {"sku": "s", "tags": ["a", None]},
    "more": [("k", 1)],
    COORDINATES: {"topic": "orders", "partition": 3, "offset": 2**40, "timestamp": MOMENT},
}
SMALL = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])


def token(batch_id: int) -> BatchToken:
    return BatchToken("orders", "query", batch_id, (OffsetRange("orders", 0, batch_id, batch_id + 1),))


def land(sink: ParquetSink, batch_id: int, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    staging = sink.stage(token(batch_id), SlotAttempt(0, "0"), schema)
    assert not staging.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    commit(sink, token(batch_id), [staging.finish()])


def made(path: Path, schema: pa.Schema, *partition_by: str) -> ParquetSink:
    sink = ParquetSink("orders", "out", str(path), partition_by=partition_by)
    sink.prepare(schema)
    return sink


@pytest.fixture
def utc(spark: Any) -> Iterator[Any]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def test_spark_reads_every_type_and_value_as_written(utc: Any, tmp_path: Path) -> None:
    land(made(tmp_path / "out", EDGES), 0, [AN_EDGE, {"id": 1}], EDGES)
    frame = utc.read.parquet(str(tmp_path / "out"))
    assert dict(frame.dtypes) == SPARK_TYPES
    columns = [name for name in EDGES.names if name not in ("at", COORDINATES)]
    empty, full = (row.asDict(recursive=True) for row in frame.select(columns).orderBy("id").collect())
    assert full == {**{name: AN_EDGE[name] for name in columns}, "more": {"k": 1}}
    assert empty == {**dict.fromkeys(columns), "id": 1}
    [times] = frame.selectExpr("unix_micros(at)", f"unix_micros({COORDINATES}.timestamp)").where("id > 1").collect()
    micros = int(MOMENT.timestamp()) * 1_000_000 + MOMENT.microsecond
    assert tuple(times) == (micros, micros)


PARTS: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "date": (pa.date32(), [date(2026, 1, 1), date(2025, 12, 31), None], "date"),
    "text": (pa.string(), ["plain", "a/b=c %", "ünï 水", None, "100%25", "q?#&+'\"\\{}[]^:*", "\t"], "string"),
    "int": (pa.int32(), [-1, 7, None], "int"),
    "boolean": (pa.bool_(), [True, False, None], "boolean"),
}


@pytest.mark.parametrize(
    "kind", ["text", *(pytest.param(kind, marks=pytest.mark.long) for kind in sorted(PARTS) if kind != "text")]
)
def test_spark_reads_partition_values_back_from_the_folders(spark: Any, tmp_path: Path, kind: str) -> None:
    arrow, values, sql = PARTS[kind]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("part", arrow)])
    sink = made(tmp_path / "out", schema, "part")
    land(sink, 0, [{"id": number, "part": value} for number, value in enumerate(values)], schema)
    guessed = spark.read.parquet(str(tmp_path / "out"))
    told = spark.read.schema(f"id BIGINT, part {sql}").parquet(str(tmp_path / "out"))
    assert dict(told.dtypes) == {"id": "bigint", "part": sql, "penstock_batch": "string"}
    for frame in [told] if kind == "boolean" else [told, guessed]:  # Spark makes text of true and false
        assert dict(frame.dtypes)["part"] == sql
        assert {row["id"]: row["part"] for row in frame.collect()} == dict(enumerate(values))


@pytest.mark.long
def test_spark_reads_text_like_a_number_as_text_when_it_is_told(spark: Any, tmp_path: Path) -> None:
    land(made(tmp_path / "out", SMALL, "part"), 0, [{"id": 1, "part": "007"}], SMALL)
    told = spark.read.schema("id BIGINT, part STRING").parquet(str(tmp_path / "out"))
    assert [row["part"] for row in told.collect()] == ["007"]


def test_spark_reads_columns_that_came_later_without_merging_schemas(spark: Any, tmp_path: Path) -> None:
    land(made(tmp_path / "out", SMALL), 0, [{"id": 0, "part": "a"}], SMALL)
    wider = pa.schema([*SMALL, pa.field("extra", pa.int32(), nullable=False)])
    land(made(tmp_path / "out", wider), 1, [{"id": 1, "part": "b", "extra": 5}], wider)
    land(made(tmp_path / "out", SMALL), 2, [{"id": 2, "part": "c"}], SMALL)
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert [tuple(row) for row in frame.select("id", "part", "extra").orderBy("id").collect()] == [
        (0, "a", None),
        (1, "b", 5),
        (2, "c", None),
    ]


@pytest.mark.parametrize(
    "partition_by",
    [pytest.param([], id="plain", marks=pytest.mark.long), pytest.param(["part"], id="partitioned")],
)
def test_spark_is_not_disturbed_by_empty_batches_and_staged_files(
    spark: Any, tmp_path: Path, partition_by: list[str]
) -> None:
    sink = made(tmp_path / "out", SMALL, *partition_by)
    commit(sink, token(0), [])
    path = str(tmp_path / "out")
    nothing = spark.read.parquet(path)
    assert nothing.count() == 0
    assert "id" in nothing.columns
    land(sink, 1, [{"id": 1, "part": "a"}], SMALL)
    commit(sink, token(2), [])
    staging = sink.stage(token(3), SlotAttempt(0, "0"), SMALL)
    staging.write(pa.RecordBatch.from_pylist([{"id": 3, "part": "a"}], schema=SMALL))
    staging.finish()
    assert [(row["id"], row["part"]) for row in spark.read.parquet(path).collect()] == [(1, "a")]


@pytest.mark.long
def test_spark_reading_while_batches_are_committed_sees_only_whole_ones(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    sink = made(tmp_path / "out", SMALL, "part")
    rows = [{"id": number, "part": "abcde"[number % 5]} for number in range(100)]
    land(sink, 0, rows, SMALL)
    allowed = threading.Semaphore(0)

    def write() -> None:
        for batch_id in range(1, 81):
            allowed.acquire(timeout=60)
            land(sink, batch_id, rows, SMALL)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        for _ in range(8):
            allowed.release(10)  # these land while Spark lists the folder and reads
            counts = spark.read.parquet(path).groupBy("penstock_batch").count().collect()
            assert {row["count"] for row in counts} == {100}
            seen.append(len(counts))
    finally:
        allowed.release(80)
        writer.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    assert spark.read.parquet(path).count() == 100 * 81
