"""Columns that come, go and widen while a run goes on: the same sink is prepared again, for other rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.committing import commit, holds, last_commit
from tests.contract.kits import SinkKit, has_schema, only_where
from tests.contract.rows import SCHEMA, by_id, ids, land, prepared, records, stage, token

from penstock.contracts import Sink
from penstock.errors import MissingError

MORE = SCHEMA.insert(2, pa.field("extra", pa.string()))
NARROW = SCHEMA.insert(2, pa.field("qty", pa.int32())).insert(3, pa.field("rate", pa.float32()))
WIDE = SCHEMA.insert(2, pa.field("qty", pa.int64())).insert(3, pa.field("rate", pa.float64()))
TENTH = 0.10000000149011612
"""A tenth as a float has it."""


pytestmark = only_where(has_schema)


def changes(sink: Sink, schema: pa.Schema) -> list[str]:
    return list(sink.changes(schema))


def column(kit: SinkKit, name: str) -> list[Any]:
    return [row[name] for row in by_id(kit.rows())]


def test_column_that_comes_under_way_is_given_to_the_table_and_null_in_old_rows(kit: SinkKit) -> None:
    sink = prepared(kit.sink(evolve="add_columns"))
    land(sink, token(0, 0, 1))
    sink.prepare(MORE)
    land(sink, token(1, 1, 2), MORE, extra="new")
    land(sink, token(2, 2, 3))
    assert column(kit, "extra") == [None, "new", None]
    assert last_commit(sink) == token(2, 2, 3)


def test_column_that_goes_stays_in_the_table_and_is_null_in_new_rows(kit: SinkKit) -> None:
    sink = prepared(kit.sink(), MORE)
    land(sink, token(0, 0, 1), MORE, extra="old")
    sink.prepare(SCHEMA)
    land(sink, token(1, 1, 2))
    assert column(kit, "extra") == ["old", None]


def test_batch_staged_before_a_column_came_lands_and_a_retry_finds_the_column_there(kit: SinkKit) -> None:
    sink = prepared(kit.sink(evolve="add_columns"))
    batch = token(0, 0, 1)
    manifest = stage(sink, batch, [records([0])])
    sink.prepare(MORE)
    commit(sink, batch, [manifest])
    again = prepared(kit.sink(evolve="add_columns"), MORE)
    assert holds(again, batch)
    land(again, token(1, 1, 2), MORE, extra="new")
    assert column(kit, "extra") == [None, "new"]


def test_column_that_nobody_prepared_for_is_refused_and_not_lost(kit: SinkKit) -> None:
    sink = prepared(kit.sink(evolve="add_columns"))
    with pytest.raises(MissingError) as refused:
        stage(sink, token(0, 0, 1), [], schema=MORE)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert "extra" in refused.value.summary


@only_where(lambda kit: kit.evolves)
def test_column_that_is_ignored_is_left_out_and_nothing_else_changes(kit: SinkKit) -> None:
    sink = prepared(kit.sink(evolve="ignore"))
    land(sink, token(0, 0, 1))
    assert changes(sink, MORE) == ["ignore column extra"]
    sink.prepare(MORE)
    land(sink, token(1, 1, 2), MORE, extra="new")
    assert ids(kit) == [0, 1]
    assert all("extra" not in row for row in kit.rows())


def test_narrower_column_is_cast_to_what_the_table_has(kit: SinkKit) -> None:
    land(prepared(kit.sink(), WIDE), token(0, 0, 1), WIDE, qty=2**40, rate=0.1)
    sink = kit.sink()
    assert changes(sink, NARROW) == []
    prepared(sink, NARROW)
    land(sink, token(1, 1, 2), NARROW, qty=7, rate=0.1)
    assert column(kit, "qty") == [2**40, 7]
    assert column(kit, "rate") == [0.1, TENTH]


def test_wider_column_is_refused_without_widen_naming_both_types(kit: SinkKit) -> None:
    kit.sink().prepare(NARROW)
    told = []
    for look in (kit.sink(evolve="add_columns").check, kit.sink(evolve="add_columns").prepare):
        with pytest.raises(MissingError) as refused:
            look(WIDE)
        assert refused.value.code == "SINK_SCHEMA_MISMATCH"
        told.append(refused.value.context["rate"])
    assert told[0] == told[1]
    ours, its = told[0].removeprefix("pipeline ").split(", table ")
    assert ours != its


@only_where(lambda kit: kit.widens)
def test_wider_column_is_widened_under_way_and_old_values_stay(kit: SinkKit) -> None:
    sink = prepared(kit.sink(evolve="widen"), NARROW)
    land(sink, token(0, 0, 1), NARROW, qty=7, rate=0.1)
    assert [change.split()[:2] for change in changes(sink, WIDE)] == [["widen", "qty"], ["widen", "rate"]]
    sink.prepare(WIDE)
    assert changes(sink, WIDE) == []
    land(sink, token(1, 1, 2), WIDE, qty=2**40, rate=0.1)
    land(sink, token(2, 2, 3), NARROW, qty=8, rate=0.1)
    assert column(kit, "qty") == [7, 2**40, 8]
    assert column(kit, "rate") == [TENTH, 0.1, TENTH]
    assert last_commit(sink) == token(2, 2, 3)


def test_changes_say_what_prepare_does_and_nothing_afterwards(kit: SinkKit) -> None:
    sink = kit.sink(evolve="add_columns")
    assert changes(sink, SCHEMA) == ["create table"]
    prepared(sink)
    assert changes(sink, SCHEMA) == []
    [change] = changes(sink, MORE)
    assert change.startswith("add column extra ")
    sink.prepare(MORE)
    assert changes(sink, MORE) == []
