"""Exactly once: what a sink does with a token, whatever happens around the commit."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.contract.kits import SinkKit
from tests.contract.rows import SCHEMA, land, records, stage, token

from penstock.contracts import Sink
from penstock.errors import TerminalError
from penstock.model import BatchToken, Guarantee


def prepared(sink: Sink) -> Sink:
    sink.prepare(SCHEMA)
    return sink


def ids(kit: SinkKit) -> list[int]:
    return sorted(row["id"] for row in kit.rows())


def test_commit_of_a_batch_shows_every_row_with_its_nested_values(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    assert sorted(kit.rows(), key=lambda row: row["id"]) == records(range(3)).to_pylist()
    assert sink.guarantee is Guarantee.EXACTLY_ONCE


def test_commit_of_many_rows_in_many_pieces_and_slots_shows_each_once(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 20_000)
    manifests = [
        stage(sink, batch, [records(range(low, low + 1000)) for low in range(10_000 * s, 10_000 * s + 10_000, 1000)], s)
        for s in range(2)
    ]
    sink.commit(batch, manifests)
    assert ids(kit) == list(range(20_000))
    assert [manifest.rows for manifest in manifests] == [10_000, 10_000]
    assert all(manifest.size_bytes > 0 for manifest in manifests)


def test_commit_with_the_same_token_again_is_a_no_op(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    manifest = land(sink, token(0, 0, 3))
    sink.commit(token(0, 0, 3), [manifest])
    land(prepared(kit.sink()), token(0, 0, 3))
    assert ids(kit) == [0, 1, 2]


def test_holds_before_and_after_the_commit_tells_them_apart(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    assert not sink.holds(token(0, 0, 3))
    land(sink, token(0, 0, 3))
    assert sink.holds(token(0, 0, 3))
    assert not sink.holds(token(1, 3, 5))
    assert not sink.holds(token(0, 0, 3, query="another-query"))


def test_crash_before_the_commit_leaves_nothing_visible_and_the_next_run_cleans_up(kit: SinkKit) -> None:
    crashed = stage(prepared(kit.sink()), token(0, 0, 3), [records(range(3))], attempt="0")
    assert kit.rows() == []
    left = kit.staged()

    sink = prepared(kit.sink())
    batch = token(0, 0, 3)
    manifest = stage(sink, batch, [records(range(3))], attempt="1")
    sink.commit(batch, [manifest])
    sink.discard(batch, [manifest])
    assert ids(kit) == [0, 1, 2]
    assert crashed.rows == 3
    assert not left & kit.staged()


def test_commit_that_landed_without_an_answer_shows_the_rows_once(kit: SinkKit) -> None:
    prepared(kit.sink())
    sink = prepared(kit.sink_losing_answer(landed=True))
    land(sink, token(0, 0, 3))
    land(sink, token(1, 3, 5))
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_commit_that_failed_without_an_answer_is_tried_again(kit: SinkKit) -> None:
    sink = prepared(kit.sink_losing_answer(landed=False))
    land(sink, token(0, 0, 3))
    assert ids(kit) == [0, 1, 2]


def test_two_drivers_with_one_token_exactly_one_wins(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    winner = prepared(kit.sink())
    winning = stage(winner, batch, [records(range(3))], attempt="winner")
    loser = prepared(kit.sink_overtaken(lambda: winner.commit(batch, [winning])))
    losing = stage(loser, batch, [records(range(3))], attempt="loser")
    loser.commit(batch, [losing])
    assert ids(kit) == [0, 1, 2]
    winner.discard(batch, [winning])
    assert ids(kit) == [0, 1, 2]


def test_two_drivers_with_one_batch_id_and_other_offsets_the_second_is_refused(kit: SinkKit) -> None:
    winner = prepared(kit.sink())
    loser = prepared(kit.sink_overtaken(lambda: void(land(winner, token(0, 0, 3)))))
    with pytest.raises(TerminalError) as refused:
        land(loser, token(0, 0, 5))
    assert refused.value.code == "SINK_TOKEN_MISMATCH"
    assert ids(kit) == [0, 1, 2]


def test_another_pipeline_committing_in_between_both_land(kit: SinkKit) -> None:
    other = prepared(kit.sink(pipeline="returns"))
    batch = token(7, 100, 103, pipeline="returns", query="other")
    sink = prepared(kit.sink_overtaken(lambda: void(land(other, batch))))
    land(sink, token(0, 0, 3))
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
    assert refused.value.context == {"checkpoint": "orders[0] 0-5", "table": "orders[0] 0-3"}
    with pytest.raises(TerminalError, match="SINK_TOKEN_MISMATCH"):
        sink.commit(token(0, 0, 5), [stage(sink, token(0, 0, 5), [records(range(5))], attempt="1")])
    assert ids(kit) == [0, 1, 2]


def test_older_batch_run_again_is_a_no_op(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    land(sink, token(1, 3, 5))
    assert sink.holds(token(0, 0, 3))
    land(sink, token(0, 0, 3))
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_empty_batch_is_committed_with_its_offsets(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    batch = token(0, 0, 3)
    manifest = stage(sink, batch, [records([])])
    assert (manifest.rows, manifest.size_bytes) == (0, 0)
    sink.commit(batch, [manifest])
    sink.commit(token(1, 3, 3), [])
    assert kit.rows() == []
    assert prepared(kit.sink()).holds(batch)
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
    sink.prepare(SCHEMA)
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
    stage(sink, batch, [records(range(2))], attempt="task-9.1")
    sink.commit(batch, [counted])
    assert ids(kit) == [0, 1, 2]
    assert len(kit.staged()) == 2
    sink.discard(batch, [counted])
    assert len(kit.staged()) == 1
    assert ids(kit) == [0, 1, 2]


def test_discard_leaves_other_batches_and_committed_rows_alone(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    land(sink, token(1, 0, 3))
    stage(sink, token(11, 9, 10), [records([9])])
    land(sink, token(2, 3, 5))
    kept = kit.staged()
    sink.discard(token(1, 0, 3), [])
    sink.discard(token(2, 3, 5), [])
    assert kit.staged() == kept
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_discard_before_the_commit_leaves_what_another_driver_may_commit(kit: SinkKit) -> None:
    batch = token(0, 0, 3)
    slow = prepared(kit.sink())
    manifest = stage(slow, batch, [records(range(3))])
    prepared(kit.sink()).discard(batch, [])
    slow.commit(batch, [manifest])
    assert ids(kit) == [0, 1, 2]


def test_abort_of_a_stage_leaves_nothing(kit: SinkKit) -> None:
    from penstock.model import SlotAttempt

    sink = prepared(kit.sink())
    staging = sink.stage(token(0, 0, 3), SlotAttempt(0, "0"), SCHEMA)
    staging.write(records(range(3)))
    staging.abort()
    finished = sink.stage(token(0, 0, 3), SlotAttempt(0, "1"), SCHEMA)
    finished.write(records(range(3)))
    finished.finish()
    finished.abort()
    assert kit.staged() == set()


def test_sink_after_a_commit_pickles_small_and_stages_elsewhere(kit: SinkKit, tmp_path: Path) -> None:
    sink = prepared(kit.sink())
    land(sink, token(0, 0, 3))
    sent = pickle.dumps(sink)
    assert len(sent) < 20_000
    manifest = pickle.loads(pickle.dumps(stage(pickle.loads(sent), token(1, 3, 5), [records(range(3, 5))])))
    sink.commit(token(1, 3, 5), [manifest])
    assert ids(kit) == [0, 1, 2, 3, 4]


def test_many_commits_the_newest_token_and_every_row_are_there(kit: SinkKit) -> None:
    sink = prepared(kit.sink())
    for batch_id in range(120):
        land(sink, token(batch_id, batch_id, batch_id + 1))
    fresh = kit.sink()
    assert fresh.last_commit() == token(119, 119, 120)
    assert fresh.holds(token(119, 119, 120))
    assert not fresh.holds(token(120, 120, 121))
    assert ids(kit) == list(range(120))


def void(_: object) -> None:
    """So that a lambda may return nothing."""


def test_token_with_many_partitions_is_kept_whole(kit: SinkKit) -> None:
    from penstock.model import OffsetRange

    ranges = tuple(OffsetRange(f"orders-{n % 3}", n, n, 2**62 + n) for n in range(600))
    batch = BatchToken("orders", "q", 0, ranges)
    sink = prepared(kit.sink())
    sink.commit(batch, [])
    assert kit.sink().last_commit() == batch
