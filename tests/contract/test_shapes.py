"""Schemas that move, partitions of every kind, coordinates kept or dropped."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.committing import commit, last_commit
from tests.contract.kits import SinkKit, has_schema, only_where
from tests.contract.rows import SCHEMA, by_id, land, prepared, records, shown, stage, stage_some, token

from penstock.errors import MissingError
from penstock.model import COMPUTED, COORDINATES

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


@only_where(lambda kit: kit.evolves)
def test_prepare_with_new_columns_and_evolve_fail_is_refused_showing_both_sides(kit: SinkKit) -> None:
    kit.sink().prepare(SCHEMA)
    with pytest.raises(MissingError) as refused:
        kit.sink().prepare(WIDER)
    error = refused.value
    assert (error.code, error.exit_code) == ("SINK_SCHEMA_MISMATCH", 3)
    assert error.context["pipeline"] == "id, note, item, extra, _penstock"
    assert error.context["table"] == "id, note, item, _penstock"
    assert "evolve: add_columns" in str(error.hint)


def test_new_columns_are_refused_or_old_and_new_rows_read_back(kit: SinkKit) -> None:
    land(prepared(kit.sink()), token(0, 0, 1))
    wider = kit.sink(evolve="add_columns")
    try:
        prepared(wider, WIDER)
    except MissingError as refused:
        assert not kit.evolves
        assert refused.code == "SINK_SCHEMA_MISMATCH"
        assert "extra" in str(refused)
        return
    land(wider, token(1, 1, 2), WIDER, extra=7, item={"sku": "s", "tags": None, "price": 1.5})
    old, new = by_id(kit.rows())
    assert (old.get("extra"), old["item"].get("price")) == (None, None)
    assert (new["extra"], new["item"]) == (7, {"sku": "s", "tags": None, "price": 1.5})
    assert last_commit(wider) == token(1, 1, 2)


@only_where(has_schema)
@pytest.mark.parametrize("evolve", ["fail", "add_columns"])
def test_prepare_with_another_type_is_refused_whatever_evolve_says(kit: SinkKit, evolve: Any) -> None:
    kit.sink().prepare(SCHEMA)
    with pytest.raises(MissingError) as refused:
        kit.sink(evolve=evolve).prepare(SCHEMA.set(1, pa.field("note", pa.int64())))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert list(refused.value.context) == ["note"]


def test_prepare_again_with_the_same_schema_changes_nothing(kit: SinkKit) -> None:
    land(prepared(kit.sink()), token(0, 0, 1))
    prepared(kit.sink(evolve="add_columns"))
    seen, written = shown(kit.rows(), records([0]))
    assert seen == written


def test_rows_without_coordinates_land_without_the_column(kit: SinkKit) -> None:
    land(prepared(kit.sink(keep_coordinates=False)), token(0, 0, 1))
    assert list(kit.rows()[0]) == ["id", "note", "item"]


PARTITIONED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["plain", "a/b=c %", "ünï 水", None, "100%25", "q?#&+'\"\\{}[]^:*", "007", ".", "\t"]),
    "date": (pa.date32(), [date(2026, 1, 1), date(1, 1, 1), None, date(9999, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), None],
    ),
    "long": (pa.int64(), [-1, 0, 2**62, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "decimal": (pa.decimal128(20, 4), [Decimal("1.5000"), Decimal("1234567890123456.0001"), None]),
}


@only_where(lambda kit: kit.partitions)
@pytest.mark.parametrize("kind", sorted(PARTITIONED))
def test_partition_values_of_every_kind_read_back_as_they_were(kit: SinkKit, kind: str) -> None:
    arrow, values = PARTITIONED[kind]
    schema = SCHEMA.insert(1, pa.field("part", arrow))
    sink = prepared(kit.sink(partition_by=["part"]), schema)
    land(sink, token(0, 0, 40), schema, part=lambda number: values[number % len(values)])
    assert {row["id"]: row["part"] for row in kit.rows()} == {n: values[n % len(values)] for n in range(40)}
    assert len(kit.staged()) == len(values) or kit.merges


@only_where(lambda kit: kit.partitions)
def test_partition_value_longer_than_a_folder_name_is_kept_whole_or_refused(kit: SinkKit) -> None:
    schema = SCHEMA.insert(1, pa.field("part", pa.string()))
    sink = prepared(kit.sink(partition_by=["part"]), schema)
    batch, values = token(0, 0, 3), ["x" * 299, "x" * 300, "y"]
    rows = records(range(3), schema, part=lambda number: values[number])
    manifest, refused = stage_some(sink, batch, [rows], schema=schema)
    commit(sink, batch, [manifest])
    seen = {row["id"]: row["part"] for row in kit.rows()}
    assert seen == {number: values[number] for number in range(3) if number in seen}
    assert sorted([*seen, *(refusal.record.start for refusal in refused)]) == [0, 1, 2]
    assert seen[2] == "y"


@only_where(lambda kit: kit.partitions)
def test_partition_by_two_columns_keeps_every_combination_apart(kit: SinkKit) -> None:
    schema = SCHEMA.insert(1, pa.field("day", pa.date32())).insert(2, pa.field("land", pa.string()))
    sink = prepared(kit.sink(partition_by=["day", "land"]), schema)
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
    assert len(kit.staged()) == 6 or kit.merges


@only_where(lambda kit: kit.partitions)
def test_partition_by_a_type_that_has_no_text_form_is_refused(kit: SinkKit) -> None:
    with pytest.raises(MissingError) as refused:
        kit.sink(partition_by=["item"]).prepare(SCHEMA)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"


@only_where(lambda kit: not kit.merges)
@pytest.mark.parametrize(
    "partitioned",
    [
        pytest.param(False, id="in one piece"),
        pytest.param(True, id="partitioned", marks=only_where(lambda kit: kit.partitions)),
    ],
)
def test_rows_of_a_slot_keep_the_order_of_their_offsets(kit: SinkKit, partitioned: bool) -> None:
    schema = SCHEMA.insert(1, pa.field("part", pa.string()))
    if kit.commits_in_task:  # a topic keeps the order of a key
        schema = schema.append(pa.field(f"{COMPUTED}key", pa.string()))
    sink = prepared(kit.sink(partition_by=["part"] if partitioned else []), schema)
    batch = token(0, 0, 1000)
    parts = {name: lambda number: "ab"[number % 2] for name in ("part", f"{COMPUTED}key")}
    pieces = [records(range(low, low + 100), schema, **parts) for low in range(0, 1000, 100)]
    commit(sink, batch, [stage(sink, batch, pieces, schema=schema)])
    rows = kit.rows()
    for part in "ab":
        offsets = [row["id"] for row in rows if row["part"] == part]
        assert offsets == sorted(offsets)
        assert len(offsets) == 500
