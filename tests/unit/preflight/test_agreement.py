"""The sinks' tokens and the brokers' logs, held against a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agreements import sink_findings
from tests.committing import position_at
from tests.spark_checkpoint import QUERY, lose, write_checkpoint

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.logs import read_files
from penstock.kafka import LogBounds
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, TopicPartition
from penstock.preflight.agreement import compare_sinks, ranges_behind, rename_findings
from penstock.preflight.loss import log_findings
from penstock.preflight.recreated import topic_findings
from penstock.preflight.standings import FormerName, Standing
from penstock.storage import Storage

ENDS = [{0: 5}, {0: 10}, {0: 15}]


def token(batch: int, start: int, end: int, query: str = QUERY) -> BatchToken:
    return BatchToken("orders", query, batch, (OffsetRange("orders", 0, start, end),))


def at(held: BatchToken | None, name: str = "out", **more: Any) -> Standing:
    begun = position_at(more.pop("begun", None))
    return Standing(name, Guarantee.EXACTLY_ONCE, position_at(held), more.pop("torn", None), begun=begun, **more)


def codes(root: Path, *standings: Standing, committed: int | None = None) -> list[tuple[str, bool]]:
    found = sink_findings(SparkCheckpoint(str(root)), standings, committed=committed)
    return [(one.code, one.blocks) for one in found]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "cp", ENDS)


@pytest.fixture
def open_root(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "open", ENDS, committed=1)


def test_sinks_at_the_last_batch_agree(root: Path) -> None:
    assert codes(root, at(token(2, 10, 15))) == []


def test_sinks_one_batch_apart_agree_while_it_is_open(open_root: Path) -> None:
    assert codes(open_root, at(token(2, 10, 15)), at(token(1, 5, 10), "other")) == []
    torn = at(token(1, 5, 10), torn="0: batch 2, 1: batch 1", begun=token(2, 10, 15))
    assert codes(open_root, torn) == []


def test_sink_with_a_batch_that_was_never_begun_is_told_beside_what_was(root: Path, open_root: Path) -> None:
    for folder, told in ((root, "batch 2 committed"), (open_root, "batch 1 committed, batch 2 begun")):
        (found,) = sink_findings(SparkCheckpoint(str(folder)), [at(token(5, 30, 35))])
        assert found.code == "CHECKPOINT_WENT_BACK"
        assert found.context["checkpoint"] == told


def test_sink_that_was_asked_before_the_checkpoint_went_on_by_two_batches_agrees(open_root: Path) -> None:
    files = read_files(str(open_root))
    assert compare_sinks(str(open_root), files, [at(token(0, 0, 5))], 0) == []
    [found] = compare_sinks(str(open_root), files, [at(token(0, 0, 5))], 1)
    assert found.code == "TARGET_WENT_BACK"


def test_sink_ahead_of_the_checkpoint_blocks(root: Path) -> None:
    assert codes(root, at(token(3, 15, 20))) == [("CHECKPOINT_WENT_BACK", True)]
    assert codes(root, at(token(2, 10, 15), torn="...", begun=token(3, 15, 20))) == [("CHECKPOINT_WENT_BACK", True)]


def test_sink_behind_the_checkpoint_blocks(root: Path, open_root: Path) -> None:
    assert codes(root, at(token(1, 5, 10))) == [("TARGET_WENT_BACK", True)]
    assert codes(open_root, at(token(0, 0, 5))) == [("TARGET_WENT_BACK", True)]


def test_sink_behind_the_checkpoint_names_the_catch_up_whatever_the_others_hold(root: Path) -> None:
    checkpoint, behind = SparkCheckpoint(str(root)), at(token(1, 5, 10))
    for others in ([], [at(token(2, 10, 15), "other")]):
        (found,) = sink_findings(checkpoint, [behind, *others])
        assert "penstock run FILE --catch-up" in found.way_out
        assert found.context["missing"] == "orders[0] 10-15"


def test_sink_that_the_checkpoint_has_written_and_that_holds_nothing_went_back(tmp_path: Path) -> None:
    SparkCheckpoint(str(tmp_path / "cp")).note_sinks({"out": "lake/orders"})
    root = write_checkpoint(tmp_path / "cp", ENDS)
    SparkCheckpoint(str(root)).note_sinks({"out": "lake/orders"})
    assert codes(root, at(None, target="lake/orders")) == [("TARGET_WENT_BACK", True)]
    assert codes(root, at(None, target="lake/another")) == [("SINK_HOLDS_NOTHING", False)]


def test_sink_that_was_added_and_has_got_no_batch_yet_did_not_go_back(root: Path) -> None:
    SparkCheckpoint(str(root)).note_sinks({"out": "lake/orders", "held": "lake/held"}, {"held"})
    assert codes(root, at(None, target="lake/orders")) == [("SINK_HOLDS_NOTHING", False)]
    assert codes(root, at(None, "held", target="lake/held")) == [("TARGET_WENT_BACK", True)]


def renamed(root: Path, own: BatchToken | None, *former: BatchToken, **more: Any) -> list[tuple[str, bool]]:
    """What a sink is told whose target has these positions under former names."""
    found = [FormerName("out", at(held, f"former-{number}", **more)) for number, held in enumerate(former)]
    files = read_files(str(root), Storage())
    return [(one.code, one.blocks) for one in compare_sinks(str(root), files, [at(own)], files.committed, {}, found)]


def test_sink_renamed_while_its_former_name_holds_the_open_batch_blocks(open_root: Path) -> None:
    held = token(2, 10, 15)
    assert renamed(open_root, None, held) == [("SINK_RENAMED", True)]
    assert renamed(open_root, token(1, 5, 10), held) == [("SINK_RENAMED", True)]
    assert renamed(open_root, None, token(1, 5, 10), begun=held, torn="0: batch 2") == [("SINK_RENAMED", True)]
    assert renamed(open_root, None, token(7, 0, 20, "another")) == [("SINK_RENAMED", True)]
    assert renamed(open_root, held, held) == []


def test_sink_renamed_where_the_next_batch_starts_goes_on_and_is_no_new_one(root: Path, open_root: Path) -> None:
    assert renamed(root, None, token(2, 10, 15)) == []
    assert renamed(open_root, None, token(1, 5, 10)) == []
    assert renamed(root, None, token(2, 10, 15), token(1, 5, 10), token(2, 10, 15)) == []
    assert renamed(root, token(2, 10, 15), token(1, 5, 10)) == []


def test_sink_that_takes_the_target_of_one_that_ended_earlier_blocks(root: Path) -> None:
    assert renamed(root, None, token(1, 5, 10)) == [("SINK_RENAMED", True)]


def test_sink_renamed_with_a_fresh_checkpoint_blocks_unless_it_covers_its_former_name() -> None:
    former = [FormerName("out", at(token(2, 10, 15), "former"))]
    (found,) = rename_findings(former, [at(None)], None)
    assert (found.code, found.context["next batch"]) == ("SINK_RENAMED", "the first one")
    assert found.way_out.startswith("put the name former back")
    assert [one.code for one in rename_findings(former, [at(token(1, 5, 10))], None)] == ["SINK_RENAMED"]
    assert rename_findings(former, [at(token(3, 15, 20))], None) == []


def test_former_name_that_cannot_be_asked_blocks(root: Path) -> None:
    away = FormerName("out", Standing("former", Guarantee.EXACTLY_ONCE, error="SINK_AWAY no answer"))
    assert [one.code for one in rename_findings([away], [at(None)], None)] == ["SINK_UNREACHABLE"]


def test_quarantine_with_fewer_commits_than_the_sinks_carry_went_back(root: Path) -> None:
    carrying = replace(token(2, 10, 15), quarantine={"quarantine": 2})
    sink = Standing("out", Guarantee.EXACTLY_ONCE, Position.first(carrying))
    assert codes(root, sink, at(token(1, 5, 10), "quarantine", sparse=True)) == [("TARGET_WENT_BACK", True)]
    whole = replace(Position.first(token(1, 5, 10)), number=2)
    assert codes(root, sink, Standing("quarantine", Guarantee.EXACTLY_ONCE, whole, sparse=True)) == []


def test_sink_asked_before_the_last_commit_of_a_running_stream_is_not_behind(root: Path) -> None:
    assert codes(root, at(token(1, 5, 10)), committed=1) == []
    assert codes(root, at(None), committed=-1) == []


def test_sink_with_other_offsets_blocks(root: Path) -> None:
    assert codes(root, at(token(2, 10, 14))) == [("SINK_TOKEN_MISMATCH", True)]


def test_sink_without_a_token_is_a_warning_that_names_the_replay(root: Path) -> None:
    (one,) = sink_findings(SparkCheckpoint(str(root)), [at(None, "new")])
    assert (one.code, one.blocks) == ("SINK_HOLDS_NOTHING", False)
    assert "penstock replay FILE --sink new --from earliest --to committed" in one.way_out


def test_sink_that_keeps_no_token_of_every_batch_is_never_behind(root: Path) -> None:
    assert codes(root, at(token(0, 0, 5), sparse=True), at(None, sparse=True)) == []
    assert codes(root, at(token(3, 15, 20), sparse=True)) == [("CHECKPOINT_WENT_BACK", True)]
    assert codes(root, Standing("log", Guarantee.AT_LEAST_ONCE, None, None)) == []


def test_sink_of_another_query_is_judged_by_its_offsets(root: Path) -> None:
    assert codes(root, at(token(7, 0, 15, "another"))) == []
    assert codes(root, at(token(7, 0, 5, "another"))) == [("TARGET_WENT_BACK", True)]
    assert codes(root, at(token(7, 0, 20, "another"))) == [("FENCED", True)]


def test_sink_that_cannot_be_asked_is_a_finding_and_hides_no_other(root: Path) -> None:
    away = Standing("pg", Guarantee.EXACTLY_ONCE, error="SINK_AWAY no answer")
    assert codes(root, away, at(token(3, 15, 20))) == [("SINK_UNREACHABLE", True), ("CHECKPOINT_WENT_BACK", True)]


def test_sink_whose_batch_is_purged_or_whose_file_is_gone_is_not_compared(root: Path) -> None:
    lose(root, "offsets/2")
    assert codes(root, at(token(2, 10, 15))) == [("CHECKPOINT_WENT_BACK", True)]


POSITION = {TopicPartition("orders", 0): 10, TopicPartition("orders", 1): 10}


def bounds(*logs: tuple[int, int]) -> dict[TopicPartition, LogBounds]:
    return {TopicPartition("orders", p): LogBounds(*log) for p, log in enumerate(logs)}


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([(0, 12), (10, 10)], []),
        ([(11, 12), (0, 10)], ["OFFSETS_BEFORE_LOG"]),
        ([(0, 9), (0, 10)], ["OFFSETS_BEYOND_LOG"]),
        ([(0, 10)], ["PARTITION_GONE"]),
        ([(11, 20)], ["OFFSETS_BEFORE_LOG", "PARTITION_GONE"]),
    ],
)
def test_log_findings_name_what_was_lost(logs: list[tuple[int, int]], expected: list[str]) -> None:
    found = log_findings(POSITION, bounds(*logs), "fail")
    assert [(one.code, one.blocks) for one in found] == [(code, True) for code in expected]
    assert [one.blocks for one in log_findings(POSITION, bounds(*logs), "record")] == [False] * len(expected)


def test_log_findings_end_of_an_open_batch_counts(tmp_path: Path) -> None:
    ends = {TopicPartition("orders", 0): 15}
    found = log_findings(POSITION, bounds((0, 12), (0, 12)), "fail", open_ends=ends)
    assert [(one.code, dict(one.context)) for one in found] == [
        ("OFFSETS_BEYOND_LOG", {"orders[0] 15": "the log holds 0-12"})
    ]


def test_topic_findings_same_name_with_another_id() -> None:
    noted, now = {"orders": "a", "gone": "x"}, {"orders": "b", "new": "c"}
    (one,) = topic_findings(noted, now, "fail", stateful=False)
    assert (one.code, one.blocks) == ("TOPIC_RECREATED", True)
    assert [f.blocks for f in topic_findings(noted, now, "record", stateful=False)] == [False]
    assert [f.blocks for f in topic_findings(noted, now, "record", stateful=True)] == [True]
    assert topic_findings({"orders": "a"}, {"orders": "a"}, "fail", stateful=False) == []


def test_ranges_that_a_target_lacks_begin_where_it_ends() -> None:
    at = TopicPartition("orders", 0)
    first = Position.first(BatchToken("orders", QUERY, 0, (OffsetRange("orders", 0, 5, 10),)))
    assert ranges_behind(first, {at: 10}, {at: 5}) == []
    assert ranges_behind(first, {at: 12}, {at: 5}) == [OffsetRange("orders", 0, 10, 12)]
    assert ranges_behind(None, {at: 12}, {at: 5}) == [OffsetRange("orders", 0, 5, 12)]
    assert ranges_behind(None, {at: 12}, {}) == [OffsetRange("orders", 0, 0, 12)]
