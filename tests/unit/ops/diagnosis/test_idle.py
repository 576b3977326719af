"""A pipeline at which no run is active: a cause where the last one ended badly, a word where it stopped cleanly."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.unit.ops.diagnosis.evidences import NOW, batches, behind, brokers, caught_up, causes, codes, config, run
from tests.unit.ops.snapshots import seen

from penstock.checkpoint.presence import RunStatus
from penstock.metrics.history import RetryNoted
from penstock.model import TopicPartition
from penstock.ops.diagnosis.diagnosing import rank_causes
from penstock.ops.diagnosis.evidence import CheckpointFacts, Evidence
from penstock.ops.snapshot import read_position

LATER = NOW + timedelta(minutes=14)
NEVER = RunStatus("none", None, None)


def told(evidence: Evidence) -> str | None:
    return rank_causes(evidence).idle


def test_failed_run_is_first_with_its_error_its_time_and_what_waits(tmp_path: Path) -> None:
    evidence = behind(config(tmp_path), batches=batches(phases={"commit:out": 6.0}), run=run("failed", error="AWAY"))
    evidence = replace(evidence, at=LATER, waiting_since=NOW, retries=(RetryNoted("AWAY", "connecting: refused"),))
    [first, *others] = causes(evidence)
    assert (first.code, first.weight) == ("NOT_RUNNING", 1.0)
    assert first.summary == "no run is active: the last run was ended by AWAY"
    assert first.evidence[0].endswith("ended at 2026-01-31 12:00:00 UTC, 14 min ago")
    assert first.evidence[1:] == (
        "AWAY: connecting: refused",
        "50,000 offsets wait, the oldest unread record is 14 min old",
    )
    assert first.change.endswith(f"then penstock run {tmp_path / 'orders.yaml'}")
    assert [one.code for one in others] == ["SLOW_SINK"]
    assert told(evidence) is None


def test_killed_run_is_first_with_the_batch_that_it_left_open(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path), checkpoint=CheckpointFacts(6, NOW, 5), run=run("killed")))
    [cause] = causes(evidence)
    assert cause.summary == "no run is active: the last run was killed"
    assert cause.evidence[1:] == (
        "nothing waits",
        "batch 6 started and has not committed; the last committed batch is 5: it is retried with the same offsets",
    )
    blind = replace(evidence, brokers=None, checkpoint=CheckpointFacts(0, NOW, None))
    assert causes(blind)[0].evidence[1].startswith("the lag is unknown")
    assert "no batch was ever committed" in causes(blind)[0].evidence[2]


def test_silent_run_is_first_with_the_host_to_look_on(tmp_path: Path) -> None:
    [cause] = causes(caught_up(behind(config(tmp_path), run=run("silent"))))
    assert "has not been heard of since 2026-01-31 12:00:00 UTC" in cause.summary
    assert cause.change.startswith("check on ")


def test_run_that_stopped_cleanly_is_no_cause_and_what_waits_is_told(tmp_path: Path) -> None:
    evidence = replace(caught_up(behind(config(tmp_path), run=run("stopped"))), at=LATER)
    assert (codes(evidence), told(evidence)) == (
        [],
        "not running since 2026-01-31 12:00:00 UTC, when it stopped; nothing waits",
    )
    late = replace(evidence, brokers=brokers(0, 1), waiting_since=NOW)
    assert codes(late) == []
    assert (told(late) or "").endswith(
        f"; 1 offset waits, the oldest unread record is 14 min old; start it with penstock run {tmp_path}/orders.yaml"
    )
    assert told(replace(late, run=run("running"))) is None


@pytest.mark.parametrize(("start", "words"), [("earliest", "30 offsets wait"), ("latest", "nothing waits")])
def test_pipeline_that_never_ran_is_said_to_be_so(tmp_path: Path, start: str, words: str) -> None:
    pipeline, logs = config(tmp_path, source={"start": start}), brokers(10, 20)
    first = CheckpointFacts(position=read_position(seen(pipeline, bounds=logs.bounds)).positions)
    never = Evidence(pipeline, NOW, NEVER, brokers=logs, checkpoint=first)
    assert codes(never) == []
    assert (told(never) or "").startswith(f"it has not run yet; {words}")


def test_next_offset_is_that_of_the_checkpoint_or_the_beginning_of_a_new_partition(tmp_path: Path) -> None:
    facts = CheckpointFacts(0, NOW, 0, {TopicPartition("orders", 0): 7})
    evidence = Evidence(config(tmp_path, source={"start": "latest"}), NOW, brokers=brokers(10, 20), checkpoint=facts)
    assert evidence.lags == {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 20}


def test_how_it_catches_up_is_only_told_of_a_run_that_is_at_work(tmp_path: Path) -> None:
    evidence = behind(config(tmp_path), run=run("running"))
    assert any("behind and" in note for note in rank_causes(evidence).notes)
    stopped = rank_causes(replace(evidence, run=run("stopped"), at=LATER)).notes
    assert len(stopped) == 1 and stopped[0].startswith("what the batches tell is ")
