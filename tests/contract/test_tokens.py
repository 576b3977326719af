"""Exactly once: what a sink does with a token, whatever happens around the commit."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import pytest
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

from penstock.contracts import Sink, SqlSink
from penstock.errors import TerminalError
from penstock.model import BatchToken, Guarantee, OffsetRange, SlotAttempt

NOTHING_STAGED = "its slots commit in their tasks: there is nothing staged"


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
    sink.commit(batch, manifests)
    assert ids(kit) == list(range(6000))
    assert [manifest.rows for manifest in manifests] == [3000, 3000]
    assert all(manifest.size_bytes > 0 for manifest in manifests)


def test_commit_with_the_same_token_again_is_a_no_op(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    manifests = land(sink, token(0, 0, 3))
    sink.commit(token(0, 0, 3), manifests)
    land(sink, token(0, 0, 3), attempt="1")
    assert ids(kit) == [0, 1, 2]


def test_holds_before_and_after_the_commit_tells_them_apart(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    assert not sink.holds(token(0, 0, 3))
    land(sink, token(0, 0, 3))
    assert sink.holds(token(0, 0, 3))
    assert not sink.holds(token(1, 3, 5))
    assert not sink.holds(token(0, 0, 3, query="another-query"))


def test_crash_before_the_commit_leaves_nothing_visible_and_the_next_run_cleans_up(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    dead = prepared(kit.sink()).stage(batch, SlotAttempt(0, "0"), SCHEMA)
    dead.write(records(range(3)))
    if not kit.commits_in_task:
        dead.finish()
    assert kit.rows() == []
    left = kit.staged()

    sink = prepared(kit.sink())
    assert not sink.holds(batch)
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
    assert sink.last_commit() == token(0, 0, 3)
    assert not sink.holds(batch)
    manifests = land(sink, batch, attempt="1")
    sink.discard(batch, manifests)
    assert ids(kit) == [0, 1, 2, 3, 4]
    assert sink.last_commit() == batch


def test_crash_after_the_commit_the_next_run_finds_the_batch_and_adds_nothing(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    land(prepared(kit.sink()), batch)
    sink = prepared(kit.sink())
    assert sink.holds(batch)
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
    assert sink.holds(token(0, 0, 3))
    assert sink.last_commit() == token(0, 0, 3)
    assert other.last_commit() == batch


def test_batch_id_with_other_offsets_is_refused_showing_both_sides(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    with pytest.raises(TerminalError) as refused:
        sink.holds(token(0, 0, 5))
    assert refused.value.code == "SINK_TOKEN_MISMATCH"
    assert {"orders[0] 0-5", "orders[0] 0-3"} <= set(refused.value.context.values())
    with pytest.raises(TerminalError, match="SINK_TOKEN_MISMATCH"):
        land(sink, token(0, 0, 5), attempt="1")
    assert ids(kit) == [0, 1, 2]


def test_older_batch_run_again_adds_nothing(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    land(sink, token(1, 3, 5))
    # A slot keeps its last batch alone, so it can only say that an older one is out of step.
    with pytest.raises(TerminalError) if kit.commits_in_task else nullcontext():
        land(sink, token(0, 0, 3), attempt="1")
    assert ids(kit) == [0, 1, 2, 3, 4]
    if not kit.commits_in_task:
        assert sink.holds(token(0, 0, 3))


def test_empty_batch_is_committed_with_its_offsets(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 3)
    manifest = stage(sink, batch, [records([])])
    assert (manifest.rows, manifest.size_bytes) == (0, 0)
    sink.commit(batch, [manifest])
    assert prepared(kit.sink()).holds(batch)
    land_nothing(sink, token(1, 3, 3))
    assert kit.rows() == []
    assert prepared(kit.sink()).last_commit() == token(1, 3, 3)


def test_fresh_checkpoint_on_an_old_target_finds_the_other_querys_token(kit: SinkKit) -> None:
    land(prepared(kit.sink()), token(4, 0, 3, query="old-query"))
    sink = prepared(kit.sink())
    assert not sink.holds(token(0, 3, 5, query="new-query"))
    assert sink.last_commit() == token(4, 0, 3, query="old-query")
    land(sink, token(0, 3, 5, query="new-query"))
    assert sink.last_commit() == token(0, 3, 5, query="new-query")
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_last_commit_of_a_target_that_is_not_there_or_empty_is_none(kit: SinkKit) -> None:
    sink = kit.sink()
    assert sink.last_commit() is None
    assert not sink.holds(token(0, 0, 3))
    prepared(sink)
    assert sink.last_commit() is None


def test_two_sinks_of_one_pipeline_on_one_target_do_not_see_each_others_tokens(kit: SinkKit) -> None:
    first, second = prepared(kit.sink(name="a")), prepared(kit.sink(name="b"))
    land(first, token(0, 0, 3))
    assert not second.holds(token(0, 0, 3))
    assert second.last_commit() is None


def test_two_attempts_of_a_slot_only_the_manifest_counts(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 3)
    counted = stage(sink, batch, [records(range(3))], attempt="task-7.0")
    before = kit.staged()
    stage(sink, batch, [records(range(2))], attempt="task-9.1")
    strays = kit.staged() - before
    assert strays or kit.commits_in_task
    sink.commit(batch, [counted])
    assert ids(kit) == [0, 1, 2]
    sink.discard(batch, [counted])
    assert not strays & kit.staged()
    assert ids(kit) == [0, 1, 2]


def test_discard_leaves_other_batches_and_committed_rows_alone(kit: SinkKit) -> None:
    only_where(not kit.commits_in_task, NOTHING_STAGED)
    sink = prepared(kit.sink())
    land(sink, token(1, 0, 3))
    before = kit.staged()
    later = stage(sink, token(11, 9, 10), [records([9])])
    kept = kit.staged() - before
    land(sink, token(2, 3, 5))
    sink.discard(token(1, 0, 3), [])
    sink.discard(token(2, 3, 5), [])
    assert kept
    assert kept <= kit.staged()
    assert ids(kit) == [0, 1, 2, 3, 4]
    sink.commit(token(11, 9, 10), [later])
    assert ids(kit) == [0, 1, 2, 3, 4, 9]


def test_discard_before_the_commit_leaves_what_another_driver_may_commit(kit: SinkKit) -> None:
    only_where(not kit.commits_in_task, NOTHING_STAGED)
    batch = token(0, 0, 3)
    slow = prepared(kit.sink())
    manifest = stage(slow, batch, [records(range(3))])
    prepared(kit.sink()).discard(batch, [])
    slow.commit(batch, [manifest])
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
    assert not sink.holds(token(0, 0, 3))


def test_sink_after_a_commit_pickles_small_and_stages_elsewhere(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    sent = pickle.dumps(sink)
    assert len(sent) < 20_000
    manifest = pickle.loads(pickle.dumps(stage(pickle.loads(sent), token(1, 3, 5), [records(range(3, 5))])))
    sink.commit(token(1, 3, 5), [manifest])
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_many_commits_the_newest_token_and_every_row_are_there(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    commits = 8 if is_slow(kit, sink) else 120
    for batch_id in range(commits):
        land(sink, token(batch_id, batch_id, batch_id + 1))
    fresh = kit.sink()
    last = token(commits - 1, commits - 1, commits)
    assert fresh.last_commit() == last
    assert fresh.holds(last)
    assert not fresh.holds(token(commits, commits, commits + 1))
    assert ids(kit) == list(range(commits))


def test_token_with_many_partitions_is_kept_whole(kit: SinkKit) -> None:
    ranges = tuple(OffsetRange(f"orders-{n % 3}", n, n, 2**62 + n) for n in range(600))
    batch = BatchToken("orders", "q", 0, ranges)
    land_nothing(prepared(kit.sink()), batch)
    assert kit.sink().last_commit() == batch


def is_slow(kit: SinkKit, sink: Sink) -> bool:
    """Whether a commit takes a good part of a second: it runs in Spark, or needs a producer of its own."""
    return kit.commits_in_task or (isinstance(sink, SqlSink) and sink.needs_sql)


def void(_: object) -> None:
    """So that a lambda may return nothing."""
