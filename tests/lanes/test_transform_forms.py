"""Each transform keeps the same rows and columns in its Arrow form and in its Spark form."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Cast, Dedupe, Derive, Drop, Rename, Where

NAN = float("nan")
ROWS = 3_000


def edge_rows() -> pa.Table:
    """Few distinct keys, and offsets that several partitions and topics share."""
    chance = random.Random(11)

    def any_of(*values: object) -> list[object]:
        return [chance.choice(values) for _ in range(ROWS)]

    places = {(chance.choice("ab"), chance.randrange(4), chance.randrange(2_000)) for _ in range(2 * ROWS)}
    coordinates = [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp": chance.choice([None, 1, 2, 3])}
        for topic, partition, offset in chance.sample(sorted(places), ROWS)
    ]
    return pa.table(
        {
            "Id": pa.array(any_of(*range(40), None), pa.int64()),
            "name": pa.array(any_of("", "a", "é", "x" * 40, "x" * 41, None), pa.string()),
            "amount": pa.array(any_of(NAN, 0.0, -0.0, 1.5, None), pa.float64()),
            "small": pa.array(any_of(NAN, 0.0, -0.0, 1.5, None), pa.float32()),
            "day": pa.array(any_of(0, -1, 19782, None), pa.date32()),
            "flag": pa.array(any_of(True, False, None), pa.bool_()),
            "raw": pa.array(any_of(b"", b"\xff", b"\x00", None), pa.binary()),
            "odd `name`": pa.array(any_of(1, 2), pa.int32()),
            COORDINATES: pa.array(coordinates, COORDINATES_FIELD.type),
        }
    )


@pytest.fixture(scope="module")
def rows() -> pa.RecordBatch:
    return edge_rows().combine_chunks().to_batches()[0]


@pytest.fixture(scope="module")
def frame(spark: Any, rows: pa.RecordBatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = Path(tmp_path_factory.mktemp("rows")) / "rows.parquet"
    pq.write_table(pa.Table.from_batches([rows]), path)
    return spark.read.parquet(str(path))


def sorted_rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


TRANSFORMS = [
    Where("amount >= 0 AND ID IS NOT NULL"),
    Where("name LIKE 'x%'"),
    Where("flag"),
    Derive({"NAME": "concat(name, '-')", "year": "year(day)", "same": "_penstock.offset"}),
    Derive({"Id": "coalesce(id, -1)", "was": "id"}),
    Rename({"id": "name", "NAME": "Id"}),
    Rename({"odd `name`": "plain", "day": "Day"}),
    Drop(["ID", "odd `name`"]),
    Cast({"id": "STRING", "odd `name`": "BIGINT", "small": "DOUBLE"}),
    Dedupe(["id"]),
    Dedupe(["name"]),
    Dedupe(["amount"]),
    Dedupe(["small", "FLAG"]),
    Dedupe(["raw", "day", "Id"]),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_transform_in_arrow_equals_its_spark_form(frame: Any, rows: pa.RecordBatch, transform: Any) -> None:
    frame.createOrReplaceTempView("input")
    in_spark = frame.sparkSession.sql(transform.select(rows.schema.names)).toArrow()
    if transform.no_arrow_form(rows.schema) is not None:
        pytest.fail(f"no Arrow form: {transform.no_arrow_form(rows.schema)}")
    in_arrow = transform.apply(rows).good
    assert in_arrow.schema.equals(transform.output(rows.schema))
    assert in_arrow.schema.names == in_spark.schema.names == transform.output(rows.schema).names
    assert in_arrow.schema.types == in_spark.schema.types
    assert sorted_rows(in_arrow) == sorted_rows(in_spark)
