"""A replay in place: exactly the rows of some offset ranges go out and others come in, whatever else is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.committing import commit, holds, last_commit
from tests.contract.kits import SinkKit, only_where
from tests.contract.rows import SCHEMA, land, prepared, records, stage, token

from penstock.contracts import Sink
from penstock.errors import MissingError
from penstock.model import COORDINATES, BatchToken, MergeRules, OffsetRange

BY_ID = MergeRules(keys=("id",), by_position=True)
WITHOUT = SCHEMA.remove(SCHEMA.get_field_index(COORDINATES))


def replay(*ranges: tuple[int, int], query: str = "replay-1") -> BatchToken:
    return BatchToken("orders.replay-1", query, 0, tuple(OffsetRange("orders", 0, *each) for each in ranges))


def replacing(kit: SinkKit, batch: BatchToken, **given: Any) -> Any:
    """A sink that replaces what the batch covers."""
    sink: Any = kit.sink(pipeline=batch.pipeline, **given)
    return sink.replacing(batch.ranges)


def replace(kit: SinkKit, batch: BatchToken, parts: Sequence[Any] | None = None, **given: Any) -> None:
    sink = prepared(replacing(kit, batch, **given))
    offsets = [number for r in batch.ranges for number in range(r.start, r.end)]
    rows = parts if parts is not None else [records(offsets, note=lambda n: f"again {n}")]
    commit(sink, batch, [stage(sink, batch, rows)])


def notes(kit: SinkKit) -> list[tuple[int, str]]:
    return sorted((row[COORDINATES]["offset"], row["note"]) for row in kit.rows())


def live(kit: SinkKit, batches: int, size: int = 4, **given: Any) -> Sink:
    sink = prepared(kit.sink(**given))
    for number in range(batches):
        land(sink, token(number, number * size, (number + 1) * size))
    return sink


@only_where(lambda kit: kit.replaces)
def test_replacing_rows_of_a_range_replaces_these_and_no_others(kit: SinkKit) -> None:
    batch = replay((3, 6), (9, 10))
    replacing(kit, batch)
    live(kit, 3)
    assert replacing(kit, batch).would_replace() == 4
    replace(kit, batch)
    again = {3, 4, 5, 9}
    assert notes(kit) == [(n, f"again {n}" if n in again else f"note {n}") for n in range(12)]


@only_where(lambda kit: kit.replaces)
def test_replacing_records_that_gave_several_rows_or_none_leaves_what_the_replay_made(kit: SinkKit) -> None:
    batch = replay((2, 6))
    replacing(kit, batch)
    sink = prepared(kit.sink())
    first = token(0, 0, 8)
    exploded = [records([0, 1, 2, 2, 2, 4, 5, 6, 7], id=lambda n: n)]
    commit(sink, first, [stage(sink, first, exploded)])
    replace(kit, batch, [records([3, 3, 4], note="again")])
    assert notes(kit) == [
        *((0, "note 0"), (1, "note 1"), (3, "again"), (3, "again"), (4, "again")),
        *((6, "note 6"), (7, "note 7")),
    ]


@only_where(lambda kit: kit.replaces)
def test_replacing_by_nothing_takes_the_rows_out(kit: SinkKit) -> None:
    batch = replay((0, 4), (5, 6))
    replacing(kit, batch)
    live(kit, 2)
    sink = prepared(replacing(kit, batch))
    commit(sink, batch, [])
    assert [offset for offset, _ in notes(kit)] == [4, 6, 7]
    assert holds(sink, batch)


@only_where(lambda kit: kit.replaces)
@only_where(lambda kit: kit.partitions)
def test_replacing_in_a_partitioned_table_keeps_the_other_rows_in_their_partitions(kit: SinkKit) -> None:
    batch = replay((1, 3))
    replacing(kit, batch)
    sink = prepared(kit.sink(partition_by=("note",)))
    first = token(0, 0, 6)
    commit(sink, first, [stage(sink, first, [records(range(6), note=lambda n: "a b/%" if n % 2 else None)])])
    replace(kit, batch, [records([1, 2], note="new")], partition_by=("note",))
    assert sorted((row["id"], row["note"]) for row in kit.rows()) == [
        *((0, None), (1, "new"), (2, "new"), (3, "a b/%"), (4, None), (5, "a b/%"))
    ]


@only_where(lambda kit: kit.replaces)
def test_replacing_twice_with_one_token_is_done_once(kit: SinkKit) -> None:
    batch = replay((0, 2))
    replacing(kit, batch)
    live(kit, 1)
    replace(kit, batch)
    land(prepared(kit.sink(pipeline="another")), token(0, 0, 2, pipeline="another", query="another"), note="other")
    replace(kit, batch)
    assert notes(kit).count((0, "other")) == 1, "the second commit of the token replaced again"


@only_where(lambda kit: kit.replaces)
def test_replacing_an_empty_target_puts_the_rows_in(kit: SinkKit) -> None:
    batch = replay((0, 3))
    assert replacing(kit, batch).would_replace() == 0
    replace(kit, batch)
    assert notes(kit) == [(n, f"again {n}") for n in range(3)]


@only_where(lambda kit: kit.replaces)
def test_replacing_beside_a_live_stream_loses_and_repeats_nothing(kit: SinkKit) -> None:
    batch = replay((2, 30))
    replacing(kit, batch)
    sink, done = live(kit, 10), threading.Event()

    def go_on() -> None:
        number, pause = 10, 0.25
        # No stream commits without a pause, which is longer where all is slower: a try to replace has to fit in.
        while not done.wait(pause) or number < 13:
            began = time.monotonic()
            land(sink, token(number, number * 4, number * 4 + 4))
            number, pause = number + 1, 0.25 + 10 * (time.monotonic() - began)

    running = threading.Thread(target=go_on)
    running.start()
    try:
        replace(kit, batch)
    finally:
        done.set()
        running.join()
    last = last_commit(sink)
    assert last is not None
    expected = [(n, f"again {n}" if 2 <= n < 30 else f"note {n}") for n in range(4 * last.batch_id + 4)]
    assert notes(kit) == expected


@only_where(lambda kit: kit.replaces)
def test_replacing_without_coordinates_is_refused_with_the_way_out(kit: SinkKit) -> None:
    batch = replay((0, 1))
    sink, keeping_none = replacing(kit, batch), replacing(kit, batch, keep_coordinates=False)
    for one, schema in ((sink, WITHOUT), (keeping_none, SCHEMA)):
        with pytest.raises(MissingError) as refused:
            one.prepare(schema)
        assert refused.value.code == "REPLAY_NEEDS_INTO"
        assert "--into" in (refused.value.hint or "")


@only_where(lambda kit: kit.replaces)
def test_replacing_a_table_that_has_no_coordinates_is_refused(kit: SinkKit) -> None:
    batch = replay((0, 1))
    sink = replacing(kit, batch, evolve="add_columns")
    first = prepared(kit.sink(keep_coordinates=False))
    land(first, token(0, 0, 2))
    with pytest.raises(MissingError, match="lack the column"):
        sink.prepare(SCHEMA)


def held(kit: SinkKit) -> dict[int, str]:
    return {row["id"]: row["note"] for row in kit.rows()}


def positioned(kit: SinkKit, rules: MergeRules) -> Sink:
    return prepared(kit.sink(pipeline="orders.replay-1", rules=rules))


@only_where(lambda kit: kit.merges)
def test_merge_by_position_older_rows_leave_newer_ones_of_their_partition(kit: SinkKit) -> None:
    sink = positioned(kit, BY_ID)
    live_sink = prepared(kit.sink(rules=MergeRules(keys=("id",))))
    land(live_sink, token(0, 0, 4), id=lambda n: n % 3)  # key 0 is at offset 3
    land(sink, replay((0, 3)), note=lambda n: f"again {n}")
    assert held(kit) == {0: "note 3", 1: "again 1", 2: "again 2"}


@only_where(lambda kit: kit.merges)
def test_merge_by_position_rows_of_another_partition_count(kit: SinkKit) -> None:
    sink = positioned(kit, BY_ID)
    at = {"topic": "orders", "partition": 1, "offset": 9, "timestamp": None}
    live_sink = prepared(kit.sink(rules=MergeRules(keys=("id",))))
    land(live_sink, token(0, 9, 10), id=1, **{COORDINATES: at})
    land(sink, replay((0, 1)), id=1, note="again")
    assert held(kit) == {1: "again"}
