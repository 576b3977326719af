"""The everyday steps give the same rows in their Arrow form and in their Spark form, whatever the rows hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import ExpectRule, Explode, Flatten, Mask, MaskRule, expect_steps

GEO = pa.struct([("lat", pa.float64()), ("Zip `code`", pa.int32())])
PART = pa.struct([("name", pa.string()), ("sizes", pa.list_(pa.int32()))])
SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("amount", pa.float64()),
        pa.field("items", pa.list_(pa.string())),
        pa.field("odd `parts`", pa.list_(PART)),
        pa.field("tags", pa.map_(pa.string(), pa.int32())),
        pa.field("address", pa.struct([("city", pa.string()), ("geo", GEO), ("lines", pa.list_(pa.string()))])),
        pa.field("seen", pa.struct([("at", pa.int64())])),
        COORDINATES_FIELD,
    ]
)
HASH, REDACT = MaskRule("hash"), MaskRule("redact")
STEPS = [
    Explode("items"),
    Explode("ITEMS", "item", position="n"),
    Explode("items", keep_empty=True),
    Explode("odd `parts`", "part", position="n", keep_empty=True),
    Explode("odd `parts`"),
    Explode("tags"),
    Explode("tags", "tag", position="n"),
    Explode("tags", "tag", position="n", keep_empty=True),
    Flatten(),
    Flatten(["ADDRESS"], separator="."),
    Flatten(["address", "seen"], separator="__", depth=1),
    Mask({"TEXT": HASH, "id": HASH, "small": HASH, "flag": HASH}),
    Mask({"text": MaskRule("keep_last", keep=3), "Id": MaskRule("keep_last", keep=1)}),
    Mask({"text": MaskRule("keep_last"), "flag": MaskRule("keep_last", keep=99)}),
    Mask(dict.fromkeys(SCHEMA.names[:-1], REDACT)),
    Mask({"text": MaskRule("hash", "s'\\`${x}"), "id": MaskRule("hash", "é"), "day": REDACT}),
]
RULES = [
    ExpectRule("known", "id IS NOT NULL AND id <> 0"),
    ExpectRule("small", "small < 100", "drop"),
    ExpectRule("odd `flag`", "flag", "warn"),
    ExpectRule("sane", "coalesce(amount, 0.0) = coalesce(amount, 0.0)", "fail"),
]


one_table = settings(
    max_examples=1,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TEXTS = st.text(max_size=6)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
PARTS = st.fixed_dictionaries({"name": _maybe(TEXTS), "sizes": _maybe(st.lists(_maybe(INTS), max_size=2))})
PLACES = st.fixed_dictionaries({"lat": _maybe(st.floats()), "Zip `code`": _maybe(INTS)})
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "Id": _maybe(LONGS | st.sampled_from([0, 1])),
            "small": _maybe(st.integers(-128, 127)),
            "text": _maybe(TEXTS),
            "flag": _maybe(st.booleans()),
            "day": _maybe(st.dates(min_value=date(1900, 1, 1))),
            "amount": _maybe(st.floats()),
            "items": _maybe(st.lists(_maybe(TEXTS), max_size=3)),
            "odd `parts`": _maybe(st.lists(_maybe(PARTS), max_size=3)),
            "tags": _maybe(st.dictionaries(TEXTS, _maybe(INTS), max_size=3)),
            "address": _maybe(
                st.fixed_dictionaries(
                    {
                        "city": _maybe(TEXTS),
                        "geo": _maybe(PLACES),
                        "lines": _maybe(st.lists(TEXTS, max_size=2)),
                    }
                )
            ),
            "seen": _maybe(st.fixed_dictionaries({"at": _maybe(LONGS)})),
        }
    ),
    min_size=40,
    max_size=60,
).filter(lambda rows: any(row["items"] and row["tags"] for row in rows))


def batch(values: list[dict[str, Any]]) -> pa.RecordBatch:
    placed = [
        {**row, COORDINATES: {"topic": "t", "partition": n % 3, "offset": n, "timestamp": n}}
        for n, row in enumerate([*values, dict.fromkeys(SCHEMA.names)])
    ]
    return pa.RecordBatch.from_pylist(placed, schema=SCHEMA)


@pytest.fixture(scope="module")
def frame_of(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[pa.RecordBatch], Any]:
    folder = Path(tmp_path_factory.mktemp("everyday"))

    def read(rows: pa.RecordBatch) -> Any:
        file = folder / f"{len(list(folder.iterdir()))}.parquet"
        pq.write_table(pa.Table.from_batches([rows]), file)
        return spark.read.parquet(str(file)).coalesce(1)

    return read


def in_spark(step: Any, frame: Any) -> pa.Table:
    query = step.select(frame.columns)
    if query is None:
        return step.frame(frame).toArrow()
    frame.createOrReplaceTempView("input")
    return frame.sparkSession.sql(query).toArrow()


def in_arrow(step: Any, rows: pa.RecordBatch) -> pa.Table:
    """Over two slices, so that none begins where its buffers do."""
    assert step.no_arrow_form(rows.schema) is None
    middle = rows.num_rows // 2
    parts = [step.apply(part).good for part in (rows.slice(0, middle), rows.slice(middle))]
    table = pa.Table.from_batches(parts, schema=step.output(rows.schema))
    table.validate(full=True)
    return table


def sorted_rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@one_table
@given(values=ROWS)
def test_every_step_in_arrow_equals_its_spark_form(
    frame_of: Callable[[pa.RecordBatch], Any], values: list[dict[str, Any]]
) -> None:
    rows = batch(values)
    frame = frame_of(rows)
    for step in STEPS:
        ours = in_arrow(step, rows)
        theirs = in_spark(step, frame)
        assert ours.schema.names == theirs.schema.names, step
        assert ours.schema.types == theirs.schema.types, step
        assert sorted_rows(ours) == sorted_rows(theirs), step


@one_table
@given(values=ROWS)
def test_expect_in_arrow_judges_as_over_columns_from_spark(
    frame_of: Callable[[pa.RecordBatch], Any], values: list[dict[str, Any]]
) -> None:
    rows = batch(values)
    expect, judge = expect_steps(RULES)
    ours = expect.apply(rows).good
    theirs = in_spark(expect, frame_of(rows))
    assert ours.schema.names == theirs.schema.names
    assert sorted_rows(ours) == sorted_rows(theirs)
    assert judge.output(theirs.schema).names == SCHEMA.names
    from_arrow, from_spark = judge.apply(ours), judge.apply(theirs.combine_chunks().to_batches()[0])
    assert sorted_rows(from_arrow.good) == sorted_rows(from_spark.good)
    assert set(from_arrow.refused) == set(from_spark.refused)
    assert from_arrow.counts == from_spark.counts
    assert from_arrow.counts["known"] == len(from_arrow.refused) > 0


def test_mask_of_types_that_only_spark_can_write_hashes_their_text(
    frame_of: Callable[[pa.RecordBatch], Any],
) -> None:
    rows = batch([{"amount": value, "address": {"city": "x"}} for value in (1.5, 1e21, float("nan"), -0.0)])
    frame = frame_of(rows)
    mask = Mask({"amount": MaskRule("hash", "salt"), "address": HASH})
    assert mask.no_arrow_form(SCHEMA) is not None
    masked = in_spark(mask, frame)
    texts = frame.selectExpr("CAST(amount AS STRING) AS amount", "CAST(address AS STRING) AS address").toArrow()
    assert texts["amount"].to_pylist() == ["1.5", "1.0E21", "NaN", "-0.0", None]
    for name, salt in (("amount", "salt"), ("address", "")):
        hashed = [text and hashlib.sha256(f"{salt}{text}".encode()).hexdigest() for text in texts[name].to_pylist()]
        assert masked[name].to_pylist() == hashed
    assert "salt" not in mask.frame(frame)._jdf.queryExecution().toString()


def test_steps_over_columns_of_other_types_are_refused_over_a_frame_too(
    frame_of: Callable[[pa.RecordBatch], Any],
) -> None:
    frame = frame_of(batch([]))
    refused = [
        (Explode("Id"), "EXPLODE_NEEDS_ARRAY"),
        (Explode("items", "TEXT"), "COLUMN_DUPLICATE"),
        (Flatten(["Id"]), "FLATTEN_NEEDS_STRUCT"),
        (Mask({"none": REDACT}), "COLUMN_UNKNOWN"),
    ]
    for step, code in refused:
        with pytest.raises(DefinitionError) as caught:
            step.frame(frame)
        assert caught.value.code == code
