"""Exactly once: what a sink does with a batch and its own position, whatever happens around the commit."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from tests.committing import commit, holds, last_commit
from tests.contract.kits import SinkKit, only_where
from tests.contract.rows import (
    SCHEMA,
    Killed,
    ids,
    kill,
    land,
    land_as_a_run,
    land_nothing,
    prepared,
    records,
    shown,
    stage,
    token,
)

from penstock.contracts import Sink
from penstock.errors import TerminalError, TransientError
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, Rule, SlotAttempt, TopicPartition
from penstock.sinks.commit import move
from penstock.sinks.iceberg import IcebergSink
from penstock.sinks.postgres import PostgresSink


def test_commit_of_a_batch_shows_every_row_with_its_nested_values(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    seen, written = shown(kit.rows(), records(range(3)))
    assert seen == written
    assert sink.guarantee is Guarantee.EXACTLY_ONCE


def test_commit_of_many_rows_in_many_pieces_and_slots_shows_each_once(kit: SinkKit) -> None:
    sink = prepared(kit.sink(), slots=2)
    batch = token(0, 0, 6000)
    manifests = [
        stage(
            sink, batch, [records(range(low, low + 500)) for low in range(3000 * slot, 3000 * slot + 3000, 500)], slot
        )
        for slot in range(2)
    ]
    commit(sink, batch, manifests)
    assert ids(kit) == list(range(6000))
    assert [manifest.rows for manifest in manifests] == [3000, 3000]
    assert all(manifest.size_bytes > 0 for manifest in manifests)


def test_commit_with_the_same_token_again_is_a_no_op(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    manifests = land(sink, token(0, 0, 3))
    commit(sink, token(0, 0, 3), manifests)
    land(sink, token(0, 0, 3), attempt="1")
    assert ids(kit) == [0, 1, 2]


def test_holds_before_and_after_the_commit_tells_them_apart(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    assert not holds(sink, token(0, 0, 3))
    land(sink, token(0, 0, 3))
    assert holds(sink, token(0, 0, 3))
    assert not holds(sink, token(1, 3, 5))
    assert not holds(sink, token(0, 3, 5, query="another-query"))


def test_crash_before_the_commit_leaves_nothing_visible_and_the_next_run_cleans_up(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    dead = prepared(kit.sink()).stage(batch, SlotAttempt(0, "0"), SCHEMA)
    dead.write(records(range(3)))
    if not kit.commits_in_task:
        dead.finish()
    assert kit.rows() == []
    left = kit.staged()

    sink = prepared(kit.sink())
    assert not holds(sink, batch)
    manifests = land(sink, batch, attempt="1")
    sink.discard(batch, manifests)
    assert ids(kit) == [0, 1, 2]
    assert not left & kit.staged()


def test_crash_inside_the_commit_leaves_nothing_visible_and_the_next_run_lands_once(kit: SinkKit) -> None:
    batch = token(1, 3, 5)
    land(prepared(kit.sink()), token(0, 0, 3))
    with pytest.raises(Killed):
        land(prepared(kit.sink_overtaken(kill)), batch)
    assert ids(kit) == [0, 1, 2]

    sink = prepared(kit.sink())
    assert last_commit(sink) == token(0, 0, 3)
    assert not holds(sink, batch)
    manifests = land(sink, batch, attempt="1")
    sink.discard(batch, manifests)
    assert ids(kit) == [0, 1, 2, 3, 4]
    assert last_commit(sink) == batch


def test_crash_after_the_commit_the_next_run_finds_the_batch_and_adds_nothing(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    land(prepared(kit.sink()), batch)
    sink = prepared(kit.sink())
    assert holds(sink, batch)
    manifests = land(sink, batch, attempt="1")
    sink.discard(batch, manifests)
    assert ids(kit) == [0, 1, 2]


def test_commit_that_landed_without_an_answer_shows_the_rows_once(kit: SinkKit) -> None:
    prepared(kit.sink())
    sink = prepared(kit.sink_losing_answer(landed=True))
    land_as_a_run(sink, token(0, 0, 3))
    land_as_a_run(sink, token(1, 3, 5))
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_commit_that_failed_without_an_answer_is_tried_again(kit: SinkKit) -> None:
    sink = prepared(kit.sink_losing_answer(landed=False))
    land_as_a_run(sink, token(0, 0, 3))
    assert ids(kit) == [0, 1, 2]


def test_two_drivers_with_one_token_exactly_one_wins(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    winner = prepared(kit.sink())
    loser = prepared(kit.sink_overtaken(lambda: void(land(winner, batch, attempt="winner"))))
    land_as_a_run(loser, batch)
    assert ids(kit) == [0, 1, 2]
    loser.discard(batch, [])
    assert ids(kit) == [0, 1, 2]


def test_two_drivers_with_one_batch_id_and_other_offsets_the_second_is_refused(kit: SinkKit) -> None:
    winner = prepared(kit.sink())
    loser = prepared(kit.sink_overtaken(lambda: void(land(winner, token(0, 0, 3)))))
    with pytest.raises(TerminalError) as refused:
        land_as_a_run(loser, token(0, 0, 5))
    assert refused.value.code == "SINK_TOKEN_MISMATCH"
    assert ids(kit) == [0, 1, 2]


def test_another_pipeline_committing_in_between_both_land(kit: SinkKit) -> None:
    other = prepared(kit.sink(pipeline="returns"))
    batch = token(7, 100, 103, pipeline="returns", query="other")
    sink = prepared(kit.sink_overtaken(lambda: void(land(other, batch))))
    land_as_a_run(sink, token(0, 0, 3))
    assert ids(kit) == [0, 1, 2, 100, 101, 102]
    assert holds(sink, token(0, 0, 3))
    assert last_commit(sink) == token(0, 0, 3)
    assert last_commit(other) == batch


def test_batch_id_with_other_offsets_is_refused_showing_both_sides(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(0, 0, 5))
    assert refused.value.code == "SINK_TOKEN_MISMATCH"
    assert {"orders[0] 0-5", "orders[0] 0-3"} <= set(refused.value.context.values())
    with pytest.raises(TerminalError, match="SINK_TOKEN_MISMATCH"):
        land(sink, token(0, 0, 5), attempt="1")
    assert ids(kit) == [0, 1, 2]


def test_older_batch_of_the_same_query_run_again_adds_nothing(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    land(sink, token(1, 3, 5))
    land(sink, token(0, 0, 3), attempt="1")
    assert ids(kit) == [0, 1, 2, 3, 4]
    assert holds(sink, token(0, 0, 3))
    assert last_commit(sink) == token(1, 3, 5)


def refused_code(sink: Sink, batch: BatchToken) -> str:
    with pytest.raises(TerminalError) as refused:
        land(sink, batch, attempt="refused")
    return refused.value.code


def test_batch_that_starts_after_the_position_is_refused_with_what_is_missing(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(1, 5, 7))
    assert refused.value.code == "TARGET_WENT_BACK"
    assert refused.value.context["missing"] == "orders[0] 3-5"
    assert refused_code(sink, token(1, 5, 7)) == "TARGET_WENT_BACK"
    assert ids(kit) == [0, 1, 2]


def test_driver_that_wakes_after_another_took_over_is_fenced(kit: SinkKit) -> None:
    sleeper, other = prepared(kit.sink()), prepared(kit.sink())
    land(sleeper, token(0, 0, 3, query="sleeper"))
    land(other, token(0, 3, 6, query="other"))
    land(other, token(1, 6, 8, query="other"))
    assert refused_code(sleeper, token(1, 3, 5, query="sleeper")) == "FENCED"
    assert ids(kit) == list(range(8))


def test_driver_that_is_overtaken_by_another_query_inside_its_commit_is_fenced(kit: SinkKit) -> None:
    land(prepared(kit.sink()), token(0, 0, 3, query="slow"))
    other = prepared(kit.sink())
    slow = prepared(kit.sink_overtaken(lambda: void(land(other, token(0, 3, 6, query="other")))))
    with pytest.raises(TerminalError) as refused:
        land_as_a_run(slow, token(1, 3, 5, query="slow"))
    assert refused.value.code == "FENCED"
    assert ids(kit) == list(range(6))


def test_checkpoint_that_went_back_and_cut_its_batches_otherwise_is_refused(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    for batch in (token(0, 0, 3), token(1, 3, 5), token(2, 5, 7)):
        land(sink, batch)
    assert refused_code(sink, token(3, 4, 8)) == "CHECKPOINT_WENT_BACK"
    assert ids(kit) == list(range(7))


def test_position_keeps_the_end_of_every_partition_ever_committed(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    first = BatchToken("orders", "q", 0, (OffsetRange("orders", 0, 0, 3), OffsetRange("orders", 1, 0, 4)))
    land_nothing(sink, first)
    land_nothing(sink, BatchToken("orders", "q", 1, (OffsetRange("orders", 0, 3, 9),)))
    land_nothing(sink, BatchToken("orders", "q", 2, (OffsetRange("orders", 2, 7, 8),)))
    ends = {TopicPartition("orders", 0): 9, TopicPartition("orders", 1): 4, TopicPartition("orders", 2): 8}
    for one in (sink, kit.sink()):
        held = one.position()
        assert held is not None
        assert (held.next, held.number) == (ends, 3)
    gap = BatchToken("orders", "q", 3, (OffsetRange("orders", 1, 5, 6),))
    with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
        land_nothing(sink, gap)


def test_position_keeps_the_topic_ids_and_what_the_batch_says_of_its_quarantine(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = replace(token(0, 0, 3), topic_ids={"orders": "id-1"}, quarantine={"bad": 4})
    land_nothing(sink, batch)
    held = kit.sink().position()
    assert held is not None
    assert (held.topic_ids, held.last.quarantine) == ({"orders": ("id-1",)}, {"bad": 4})
    # The topic was deleted and created again: its offsets begin anew.
    land_nothing(sink, replace(token(1, 0, 2), topic_ids={"orders": "id-2"}))
    held = kit.sink().position()
    assert held is not None
    assert (held.next, held.topic_ids) == ({TopicPartition("orders", 0): 2}, {"orders": ("id-1", "id-2")})
    with pytest.raises(TerminalError, match="FENCED"):
        land_nothing(sink, replace(token(2, 3, 5), topic_ids={"orders": "id-1"}))


@only_where(lambda kit: not kit.commits_in_task)
def test_position_moved_on_purpose_says_why_and_the_next_batch_starts_there(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    move(sink, token(0, 7, 7, query="moved"), "accept duplicates")
    held = kit.sink().position()
    assert held is not None
    assert (held.next, held.last.reason) == ({TopicPartition("orders", 0): 7}, "accept duplicates")
    land(sink, token(1, 7, 9, query="moved"))
    assert ids(kit) == [0, 1, 2, 7, 8]


@only_where(lambda kit: not kit.commits_in_task)
def test_claimed_position_keeps_its_place_and_refuses_who_was_there_before(kit: SinkKit) -> None:
    hanging, sink = prepared(kit.sink()), prepared(kit.sink())
    for number, batch in enumerate((token(0, 0, 3), token(1, 3, 5))):
        before = hanging.position()
        waiting = stage(hanging, batch, [records(range(batch.ranges[0].start, batch.ranges[0].end))], attempt="waits")
        claimed = Position.claimed(before, batch, f"claimed by run {number}")
        sink.land(claimed, (), before)
        held = kit.sink().position()
        assert held is not None
        assert (held.number, held.last.reason, held.next) == (claimed.number, claimed.last.reason, claimed.next)
        with pytest.raises(TransientError, match="SINK_COMMIT_CONFLICT"):
            hanging.land(Position.after(before, batch), [waiting], before)
        land(sink, batch)
    assert ids(kit) == list(range(5))


def test_batch_that_may_skip_ahead_is_committed_after_a_gap(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    for batch in (token(0, 0, 3), token(5, 9, 11)):
        land(sink, replace(batch, rule=Rule.FORWARD))
    assert ids(kit) == [0, 1, 2, 9, 10]


@only_where(lambda kit: not kit.commits_in_task)
def test_land_onto_another_position_than_the_targets_changes_nothing(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    stale: list[Position | None] = [None]
    for batch in (token(0, 0, 3), token(1, 3, 5)):
        land(sink, batch)
        stale.append(sink.position())
    current = stale.pop()
    batch = token(2, 5, 7)
    manifest = stage(sink, batch, [records(range(5, 7))])
    for onto in stale:
        for one in (sink, prepared(kit.sink())):
            with pytest.raises(TransientError) as refused:
                one.land(Position.after(onto, batch), [manifest], onto)
            assert refused.value.code == "SINK_COMMIT_CONFLICT"
    assert ids(kit) == [0, 1, 2, 3, 4]
    sink.land(Position.after(current, batch), [manifest], current)
    assert ids(kit) == list(range(7))


@only_where(lambda kit: not kit.commits_in_task)
def test_batch_landed_a_second_time_on_its_own_position_adds_rows_and_a_number(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 5)
    commit(sink, batch, [stage(sink, batch, [records(range(3))])])
    held = sink.position()
    more = stage(sink, batch, [records(range(3, 5))], attempt="more")
    sink.land(Position.after(held, batch), [more], held)
    assert ids(kit) == list(range(5))
    held = kit.sink().position()
    assert held is not None
    assert (held.last, held.number) == (batch, 2)


def test_empty_batch_is_committed_with_its_offsets(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 3)
    manifest = stage(sink, batch, [records([])])
    assert (manifest.rows, manifest.size_bytes) == (0, 0)
    commit(sink, batch, [manifest])
    assert holds(prepared(kit.sink()), batch)
    land_nothing(sink, token(1, 3, 3))
    assert kit.rows() == []
    assert last_commit(prepared(kit.sink())) == token(1, 3, 3)


def test_fresh_checkpoint_on_an_old_target_finds_the_other_querys_token(kit: SinkKit) -> None:
    land(prepared(kit.sink()), token(4, 0, 3, query="old-query"))
    sink = prepared(kit.sink())
    assert not holds(sink, token(0, 3, 5, query="new-query"))
    assert last_commit(sink) == token(4, 0, 3, query="old-query")
    land(sink, token(0, 3, 5, query="new-query"))
    assert last_commit(sink) == token(0, 3, 5, query="new-query")
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_last_commit_of_a_target_that_is_not_there_or_empty_is_none(kit: SinkKit) -> None:
    sink = kit.sink()
    assert last_commit(sink) is None
    assert not holds(sink, token(0, 0, 3))
    prepared(sink)
    assert last_commit(sink) is None


def test_two_sinks_of_one_pipeline_on_one_target_do_not_see_each_others_tokens(kit: SinkKit) -> None:
    first, second = prepared(kit.sink(name="a")), prepared(kit.sink(name="b"))
    land(first, token(0, 0, 3))
    assert not holds(second, token(0, 0, 3))
    assert last_commit(second) is None


def test_two_attempts_of_a_slot_only_the_manifest_counts(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 3)
    counted = stage(sink, batch, [records(range(3))], attempt="task-7.0")
    before = kit.staged()
    stage(sink, batch, [records(range(2))], attempt="task-9.1")
    strays = kit.staged() - before
    assert strays or kit.commits_in_task
    commit(sink, batch, [counted])
    assert ids(kit) == [0, 1, 2]
    sink.discard(batch, [counted])
    assert not strays & kit.staged()
    assert ids(kit) == [0, 1, 2]


@only_where(lambda kit: not kit.commits_in_task)
def test_discard_leaves_other_batches_and_committed_rows_alone(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(1, 0, 3))
    before = kit.staged()
    later = stage(sink, token(11, 5, 6), [records([5])])
    kept = kit.staged() - before
    land(sink, token(2, 3, 5))
    sink.discard(token(1, 0, 3), [])
    sink.discard(token(2, 3, 5), [])
    assert kept
    assert kept <= kit.staged()
    assert ids(kit) == [0, 1, 2, 3, 4]
    commit(sink, token(11, 5, 6), [later])
    assert ids(kit) == [0, 1, 2, 3, 4, 5]


@only_where(lambda kit: not kit.commits_in_task)
def test_discard_before_the_commit_leaves_what_another_driver_may_commit(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    slow = prepared(kit.sink())
    manifest = stage(slow, batch, [records(range(3))])
    prepared(kit.sink()).discard(batch, [])
    commit(slow, batch, [manifest])
    assert ids(kit) == [0, 1, 2]


def test_abort_of_a_stage_leaves_nothing(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    staging = sink.stage(token(0, 0, 3), SlotAttempt(0, "0"), SCHEMA)
    staging.write(records(range(3)))
    staging.abort()
    if not kit.commits_in_task:
        finished = sink.stage(token(0, 0, 3), SlotAttempt(0, "1"), SCHEMA)
        finished.write(records(range(3)))
        finished.finish()
        finished.abort()
    assert kit.staged() == set()
    assert kit.rows() == []
    assert not holds(sink, token(0, 0, 3))


def test_sink_after_a_commit_pickles_small_and_stages_elsewhere(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    sent = pickle.dumps(sink)
    assert len(sent) < 20_000
    manifest = pickle.loads(pickle.dumps(stage(pickle.loads(sent), token(1, 3, 5), [records(range(3, 5))])))
    commit(sink, token(1, 3, 5), [manifest])
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_many_commits_the_newest_token_and_every_row_are_there(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    commits = 8 if is_slow(kit, sink) else 30 if isinstance(sink, IcebergSink | PostgresSink) else 120
    for batch_id in range(commits):
        land(sink, token(batch_id, batch_id, batch_id + 1))
    fresh = kit.sink()
    last = token(commits - 1, commits - 1, commits)
    assert last_commit(fresh) == last
    assert holds(fresh, last)
    assert not holds(fresh, token(commits, commits, commits + 1))
    assert ids(kit) == list(range(commits))


def test_token_with_many_partitions_is_kept_whole(kit: SinkKit) -> None:
    ranges = tuple(OffsetRange(f"orders-{n % 3}", n, n, 2**62 + n) for n in range(600))
    batch = BatchToken("orders", "q", 0, ranges)
    land_nothing(prepared(kit.sink()), batch)
    assert last_commit(kit.sink()) == batch


def is_slow(kit: SinkKit, sink: Sink) -> bool:
    """Whether a commit takes a good part of a second: it runs in Spark, or needs a producer of its own."""
    return kit.commits_in_task or sink.needs_sql


def void(_: object) -> None:
    """So that a lambda may return nothing."""
