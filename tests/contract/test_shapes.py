"""Schemas that move, partitions of every kind, coordinates kept or dropped."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.kits import Rows, SinkKit
from tests.contract.rows import SCHEMA, land, records, stage, token

from penstock.errors import MissingError
from penstock.model import COORDINATES

WIDER = pa.schema(
    [
        SCHEMA.field("id"),
        SCHEMA.field("note"),
        pa.field(
            "item",
            pa.struct([*SCHEMA.field("item").type, pa.field("price", pa.float64())]),
        ),
        pa.field("extra", pa.int32(), nullable=False),
        SCHEMA.field(COORDINATES),
    ]
)


def by_id(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["id"])


def test_prepare_with_new_columns_and_evolve_fail_is_refused_showing_both_sides(kit: SinkKit) -> None:
    kit.sink().prepare(SCHEMA)
    with pytest.raises(MissingError) as refused:
        kit.sink().prepare(WIDER)
    error = refused.value
    assert (error.code, error.exit_code) == ("SINK_SCHEMA_MISMATCH", 3)
    assert error.context["pipeline"] == "id, note, item, extra, _penstock"
    assert error.context["table"] == "id, note, item, _penstock"
    assert "evolve: add_columns" in str(error.hint)


def test_prepare_with_new_columns_and_add_columns_takes_old_and_new_rows(kit: SinkKit) -> None:
    sink = kit.sink()
    sink.prepare(SCHEMA)
    land(sink, token(0, 0, 1))
    wider = kit.sink(evolve="add_columns")
    wider.prepare(WIDER)
    land(wider, token(1, 1, 2), WIDER, extra=7, item={"sku": "s", "tags": None, "price": 1.5})
    old, new = by_id(kit.rows())
    assert (old["extra"], old["item"]["price"]) == (None, None)
    assert (new["extra"], new["item"]) == (7, {"sku": "s", "tags": None, "price": 1.5})
    assert wider.last_commit() == token(1, 1, 2)


@pytest.mark.parametrize("evolve", ["fail", "add_columns"])
def test_prepare_with_another_type_is_refused_whatever_evolve_says(kit: SinkKit, evolve: Any) -> None:
    kit.sink().prepare(SCHEMA)
    with pytest.raises(MissingError) as refused:
        kit.sink(evolve=evolve).prepare(SCHEMA.set(1, pa.field("note", pa.int64())))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert refused.value.context == {"note": "pipeline long, table string"}


def test_prepare_again_with_the_same_schema_changes_nothing(kit: SinkKit) -> None:
    land_one = kit.sink()
    land_one.prepare(SCHEMA)
    land(land_one, token(0, 0, 1))
    kit.sink(evolve="add_columns").prepare(SCHEMA)
    assert by_id(kit.rows()) == records([0]).to_pylist()


def test_rows_without_coordinates_land_without_the_column(kit: SinkKit) -> None:
    sink = kit.sink(keep_coordinates=False)
    sink.prepare(SCHEMA)
    land(sink, token(0, 0, 1))
    assert list(kit.rows()[0]) == ["id", "note", "item"]


PARTITIONED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["plain", "a/b=c %", "ünï 水", None, "100%25", "q?#&+'\"\\{}[]^:*", "x" * 300, ".", "\t"]),
    "date": (pa.date32(), [date(2026, 1, 1), date(1, 1, 1), None, date(9999, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), None],
    ),
    "long": (pa.int64(), [-1, 0, 2**62, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "decimal": (pa.decimal128(20, 4), [Decimal("1.5000"), Decimal("1234567890123456.0001"), None]),
}


@pytest.mark.parametrize("kind", sorted(PARTITIONED))
def test_partition_values_of_every_kind_read_back_as_they_were(kit: SinkKit, kind: str) -> None:
    arrow, values = PARTITIONED[kind]
    schema = SCHEMA.insert(1, pa.field("part", arrow))
    sink = kit.sink(partition_by=["part"])
    sink.prepare(schema)
    land(sink, token(0, 0, 40), schema, part=lambda number: values[number % len(values)])
    assert {row["id"]: row["part"] for row in kit.rows()} == {n: values[n % len(values)] for n in range(40)}
    assert len(kit.staged()) == len(values)


def test_partition_by_two_columns_keeps_every_combination_apart(kit: SinkKit) -> None:
    schema = SCHEMA.insert(1, pa.field("day", pa.date32())).insert(2, pa.field("land", pa.string()))
    sink = kit.sink(partition_by=["day", "land"])
    sink.prepare(schema)
    lands = ["de", None, "at"]
    land(
        sink,
        token(0, 0, 60),
        schema,
        day=lambda number: date(2026, 1, 1 + number % 2),
        land=lambda number: lands[number % 3],
    )
    assert [(row["day"].day, row["land"]) for row in by_id(kit.rows())] == [
        (1 + number % 2, lands[number % 3]) for number in range(60)
    ]
    assert len(kit.staged()) == 6


def test_partition_by_a_type_that_has_no_text_form_is_refused(kit: SinkKit) -> None:
    with pytest.raises(MissingError) as refused:
        kit.sink(partition_by=["item"]).prepare(SCHEMA)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"


def test_rows_of_one_partition_value_keep_the_order_of_their_offsets(kit: SinkKit) -> None:
    schema = SCHEMA.insert(1, pa.field("part", pa.string()))
    sink = kit.sink(partition_by=["part"])
    sink.prepare(schema)
    batch = token(0, 0, 1000)
    pieces = [records(range(low, low + 100), schema, part=lambda n: "ab"[n % 2]) for low in range(0, 1000, 100)]
    sink.commit(batch, [stage(sink, batch, pieces, schema=schema)])
    for part in "ab":
        offsets = [row["id"] for row in kit.rows() if row["part"] == part]
        assert offsets == sorted(offsets)
        assert len(offsets) == 500
