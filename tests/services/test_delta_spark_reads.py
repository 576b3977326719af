"""What delta-rs committed, seen by Spark: rows, types, files skipped by statistics, and a RESTORE made there."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit
from tests.committing import commit, holds, last_commit

from penstock.errors import MissingError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks import DeltaSink

pytestmark = pytest.mark.services

LAST = "\U0010ffff"
MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
EDGES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tiny", pa.int8()),
        pa.field("flag", pa.bool_()),
        pa.field("amount", pa.float64()),
        pa.field("ratio", pa.float32()),
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
    "ratio": "float",
    "price": "decimal(38,10)",
    "note": "string",
    "data": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "item": "struct<sku:string,tags:array<string>>",
    "more": "map<string,bigint>",
    COORDINATES: "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp>",
}


def token(batch_id: int) -> BatchToken:
    return BatchToken("orders", "query", batch_id, (OffsetRange("orders", 0, batch_id, batch_id + 1),))


def edge_rows() -> list[dict[str, Any]]:
    def row(number: int, **values: Any) -> dict[str, Any]:
        moment = MOMENT + timedelta(seconds=number)
        where = {"topic": "orders", "partition": 0, "offset": number, "timestamp": moment}
        return {**dict.fromkeys(EDGES.names), "id": number, COORDINATES: where, **values}

    return [
        row(
            0,
            tiny=-128,
            flag=True,
            amount=-0.0,
            ratio=0.1,
            price=Decimal("1234567890123456789012345678.0123456789"),
            note="n" * 32 + LAST + "after",
            data=b"\x00\xff",
            day=date(1, 1, 1),
            at=MOMENT,
            local=datetime(1969, 12, 31, 23, 59, 59, 999999),
            item={"sku": "é" * 50, "tags": ["a", None]},
            more=[("k", 1), ("l", None)],
        ),
        row(1, amount=math.nan, note="", day=date(9999, 12, 31), at=datetime(1, 1, 1, tzinfo=UTC)),
        row(2, amount=math.inf, note="z" * 5000, price=Decimal("-0.0000000001"), item={"sku": None, "tags": []}),
        row(3, amount=1e300, note="水" * 40, at=MOMENT + timedelta(microseconds=1), tiny=127, flag=False),
        row(4),
    ]


def land(sink: DeltaSink, batch: BatchToken, rows: list[dict[str, Any]], schema: pa.Schema = EDGES) -> None:
    stage = sink.stage(batch, SlotAttempt(0, "0"), schema)
    stage.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    commit(sink, batch, [stage.finish()])


@pytest.fixture(scope="module")
def edge_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each edge row, so that every wrong bound loses a row."""
    path = tmp_path_factory.mktemp("edges")
    sink = DeltaSink("orders", "out", str(path))
    sink.prepare(EDGES)
    for number, row in enumerate(edge_rows()):
        land(sink, token(number), [row])
    return path


@pytest.fixture(scope="module")
def tens_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of ten rows, apart in every column."""
    path = tmp_path_factory.mktemp("tens")
    sink = DeltaSink("orders", "out", str(path))
    sink.prepare(EDGES)
    for batch_id in range(4):
        land(sink, token(batch_id), [plain_row(n) for n in range(10 * batch_id, 10 * batch_id + 10)])
    return path


def plain_row(number: int) -> dict[str, Any]:
    moment = MOMENT.replace(microsecond=0) + timedelta(seconds=number)
    return {
        **edge_rows()[4],
        "id": number,
        "note": f"note {number:02}",
        "amount": float(number),
        "price": Decimal(number),
        "item": {"sku": "s", "tags": None},
        COORDINATES: {"topic": "orders", "partition": 0, "offset": number, "timestamp": moment},
    }


def load(spark: Any, path: Path) -> Any:
    return spark.read.format("delta").load(str(path))


def test_spark_reads_the_same_rows_and_types(spark: Any, edge_table: Path) -> None:
    frame = load(spark, edge_table)
    assert dict(frame.dtypes) == SPARK_TYPES
    assert not frame.schema["id"].nullable
    through_spark = frame.orderBy("id").toArrow().cast(EDGES)
    expected = pa.Table.from_pylist(edge_rows(), schema=EDGES)
    for name in EDGES.names:
        assert repr(through_spark[name].to_pylist()) == repr(expected[name].to_pylist()), name


PREDICATES = {
    "amount = 0": [0],
    "amount > 1e299": [1, 2, 3],
    "isnan(amount)": [1],
    "price > 1234567890123456789012345678.012345678": [0],
    "price = -0.0000000001BD": [2],
    "price < 0": [2],
    "note >= 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\U0010ffff'": [0, 2, 3],
    "note = ''": [1],
    "length(note) = 5000 AND note > 'z'": [2],
    "note = repeat('水', 40)": [3],
    "day = DATE '0001-01-01'": [0],
    "day > DATE '9999-12-30'": [1],
    "at = TIMESTAMP '2026-01-01 12:00:00.123456'": [0],
    "at > TIMESTAMP '2026-01-01 12:00:00.123456'": [3],
    "at < TIMESTAMP '0001-01-02 00:00:00'": [1],
    "local = TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'": [0],
    "item.sku = repeat('é', 50)": [0],
    "item.sku IS NULL": [1, 2, 3, 4],
    "flag IS NULL": [1, 2, 4],
    "flag": [0],
    "tiny = 127": [3],
    "data IS NOT NULL": [0],
    "ratio < 0.2": [0],
    "_penstock.offset = 3": [3],
}


EDGIEST = [
    text for text in PREDICATES if text.startswith(("amount >", "note >=", "at > ", "item.sku IS NULL", "_penstock"))
]


@pytest.mark.parametrize(
    "predicates", [pytest.param(EDGIEST, id="some"), pytest.param(list(PREDICATES), id="all", marks=pytest.mark.long)]
)
def test_spark_filters_on_edge_values_lose_no_row(spark: Any, edge_table: Path, predicates: list[str]) -> None:
    table = load(spark, edge_table)
    # One job, and each filter still reads the table by itself.
    found = reduce(DataFrame.union, (table.where(p).select(lit(p).alias("filter"), "id") for p in predicates)).collect()
    kept = {predicate: sorted(row["id"] for row in found if row["filter"] == predicate) for predicate in predicates}
    assert kept == {predicate: PREDICATES[predicate] for predicate in predicates}


def files_read(spark: Any, path: Path, predicate: str) -> int:
    frame = load(spark, path).where(predicate)
    frame.collect()
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return int(scan.metrics().apply("numFiles").value())


MORE_PREDICATES = [
    ("id >= 0", 4),
    ("_penstock.timestamp >= TIMESTAMP '2026-01-01 12:00:30'", 1),
    ("note = 'note 31'", 1),
    ("price > 35", 1),
    ("item.sku IS NULL", 0),
    ("amount < -1", 0),
]


@pytest.mark.parametrize(
    ("predicate", "files"),
    [
        pytest.param("id = 12", 1, marks=pytest.mark.long),
        ("_penstock.offset BETWEEN 5 AND 24", 3),
        *(pytest.param(*of, marks=pytest.mark.long) for of in MORE_PREDICATES),
    ],
)
def test_both_engines_skip_files_by_our_statistics(spark: Any, tens_table: Path, predicate: str, files: int) -> None:
    assert files_read(spark, tens_table, predicate) == files
    if "." not in predicate:  # delta-rs takes no nested names here
        assert len(DeltaTable(tens_table).file_uris(file_pruning_predicate=predicate)) == files


PARTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a/b=c %", "ünï 水", None, "q?#&+'\"\\{}[]^:*", "100%25"]),
    "date": (pa.date32(), [date(2026, 1, 1), None]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [MOMENT, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None],
    ),
    "decimal": (pa.decimal128(20, 4), [Decimal("-1.0001"), Decimal("3.5000"), None]),
    "boolean": (pa.bool_(), [True, False, None]),
}


@pytest.mark.parametrize(
    "kind",
    ["text", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("date", "timestamp", "decimal", "boolean"))],
)
def test_spark_reads_partition_values_as_they_were(spark: Any, tmp_path: Path, kind: str) -> None:
    arrow, values = PARTS[kind]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("part", arrow)])
    sink = DeltaSink("orders", "out", str(tmp_path), partition_by=["part"])
    sink.prepare(schema)
    land(sink, token(0), [{"id": n, "part": values[n % len(values)]} for n in range(20)], schema)
    found = load(spark, tmp_path).orderBy("id").toArrow()
    assert found["part"].cast(arrow).to_pylist() == [values[n % len(values)] for n in range(20)]


PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), COORDINATES_FIELD])


def plain_sink(path: Path, batches: int) -> DeltaSink:
    sink = DeltaSink("orders", "out", str(path))
    sink.prepare(PLAIN)
    for batch_id in range(batches):
        land(sink, token(batch_id), [{"id": batch_id}], PLAIN)
    return sink


@pytest.mark.long
def test_spark_maintenance_and_restore_leave_the_token_findable(spark: Any, tmp_path: Path) -> None:
    sink = plain_sink(tmp_path, batches=3)
    spark.sql(f"OPTIMIZE delta.`{tmp_path}`")
    spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id = 0")
    assert holds(sink, token(2))
    land(sink, token(3), [{"id": 3}], PLAIN)
    assert sorted(row["id"] for row in load(spark, tmp_path).collect()) == [1, 2, 3]
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}` TO VERSION AS OF 2")
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(4))
    assert refused.value.code == "TARGET_WENT_BACK"
    assert last_commit(sink) == token(1)


@pytest.mark.long
def test_spark_restore_to_a_time_is_refused_rather_than_guessed(spark: Any, tmp_path: Path) -> None:
    sink = plain_sink(tmp_path, batches=1)
    first = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}`").orderBy("version").collect()[0]["timestamp"]
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}` TO TIMESTAMP AS OF '{first}'")
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(0))
    assert refused.value.code == "TARGET_WENT_BACK"


@pytest.mark.long
def test_spark_table_with_constraints_is_refused_and_a_plain_one_taken(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` (id BIGINT, part STRING) USING delta PARTITIONED BY (part)")
    sink = DeltaSink("orders", "out", str(tmp_path / "t"), partition_by=["part"])
    sink.prepare(schema)
    land(sink, token(0), [{"id": 1, "part": "a"}], schema)
    assert [row["id"] for row in load(spark, tmp_path / "t").collect()] == [1]
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/t` ADD CONSTRAINT positive CHECK (id > 0)")
    with pytest.raises(MissingError) as refused:
        land(sink, token(1), [{"id": -1, "part": "a"}], schema)
    assert refused.value.code == "SINK_TABLE_UNSUPPORTED"
    assert "positive" in refused.value.context["table features"]
