"""A batch that stands still, a JVM that is busy with itself, records that are all bad."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from tests.unit.ops.diagnosis.evidences import (
    NOW,
    WATERMARK,
    batch,
    batches,
    behind,
    caught_up,
    causes,
    codes,
    config,
    run,
)

from penstock.checkpoint.presence import RunStatus
from penstock.metrics.history import RetryNoted
from penstock.ops.diagnosis.evidence import CheckpointFacts

POSTGRES = {"name": "pg", "type": "postgres", "url": "postgresql://u@h/d", "table": "public.orders"}


def opened(minutes: float) -> CheckpointFacts:
    return CheckpointFacts(6, NOW - timedelta(minutes=minutes), 5)


def test_batch_stuck_is_found_first_and_only_when_it_is_open_for_too_long(tmp_path: Path) -> None:
    slow = batches(phases={"commit:out": 6.0})
    evidence = behind(config(tmp_path), batches=slow, checkpoint=opened(30), run=run("running"))
    assert codes(evidence) == ["BATCH_STUCK", "SLOW_SINK"]
    assert causes(evidence)[0].evidence[0] == "batch 6 started 30 min ago; the last committed batch is 5"
    assert codes(replace(evidence, checkpoint=opened(1.5))) == ["SLOW_SINK"]
    # Batches of a minute and a half: four times that is not too long.
    long = caught_up(replace(evidence, batches=batches(seconds=90), checkpoint=opened(5)))
    assert codes(long) == []


def test_batch_stuck_is_not_told_of_a_run_that_is_gone(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path), checkpoint=opened(30), run=run("killed")))
    assert codes(evidence) == ["NOT_RUNNING"]
    assert codes(replace(evidence, run=run("stopped"))) == []
    # Without any note of a run nobody knows how it ended.
    assert codes(replace(evidence, run=RunStatus("none", None, None))) == ["BATCH_STUCK"]


def test_batch_stuck_says_which_process_to_end(tmp_path: Path) -> None:
    live = caught_up(behind(config(tmp_path), checkpoint=opened(30), run=run("running")))
    [cause] = causes(live)
    assert cause.change.startswith(f"kill -9 {os.getpid()} on {socket.gethostname()}, then penstock run ")
    unnoted = replace(live, run=RunStatus("running", "process 7", None))
    assert causes(unnoted)[0].change.startswith("stop its process, then penstock run ")


def test_batch_stuck_says_what_it_waits_for(tmp_path: Path) -> None:
    waiting = run("running", "waiting to retry: SINK_UNREACHABLE")
    retries = (RetryNoted("SINK_UNREACHABLE", "connecting: refused"),)
    evidence = caught_up(behind(config(tmp_path), checkpoint=opened(30), run=waiting, retries=retries))
    [cause] = causes(evidence)
    assert cause.change.startswith("fix the cause of SINK_UNREACHABLE")
    assert "connecting: refused" in cause.evidence[-1]
    locked = caught_up(behind(config(tmp_path, sinks=[POSTGRES]), checkpoint=opened(30), run=run("running")))
    assert "'public.orders'::regclass" in causes(locked)[0].change


def test_gc_pressure_is_found_by_its_share_of_the_batches(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path), batches=batches(gc_seconds=3.0)))
    [cause] = causes(evidence)
    assert (cause.code, cause.change) == ("GC_PRESSURE", "spark: {spark.driver.memory: 2g}")
    larger = config(tmp_path, spark={"spark.driver.memory": "1536m"})
    assert causes(replace(evidence, config=larger))[0].change == "spark: {spark.driver.memory: 3072m}"
    assert codes(replace(evidence, batches=batches(gc_seconds=0.8))) == []
    # A short pause in short batches is no pressure.
    assert codes(replace(evidence, batches=tuple(batch(n, 0.2, lag=0, gc_seconds=0.1) for n in range(4)))) == []


def test_quarantine_storm_is_found_with_its_code_and_its_beginning(tmp_path: Path) -> None:
    calm = tuple(batch(number, lag=0, quarantined=3) for number in range(3))
    bad = tuple(batch(n, lag=0, quarantined=4_000, codes={"MALFORMED_JSON": 3_900, "X": 100}) for n in range(3, 8))
    evidence = caught_up(behind(config(tmp_path), batches=(*calm, *bad)))
    [cause] = causes(evidence)
    assert (cause.code, cause.summary) == ("QUARANTINE_STORM", "40 % of the records go to quarantine")
    assert cause.evidence[1] == "of the records before it was 0 %"
    assert cause.evidence[2] == "codes: MALFORMED_JSON 19,500, X 500"
    assert cause.evidence[3].startswith("it started with batch 3 at ")
    assert "--code MALFORMED_JSON" in cause.change
    assert codes(replace(evidence, batches=(*bad, *calm, *calm))) == []
    assert codes(replace(evidence, batches=tuple(batch(n, lag=0, rows_in=30, quarantined=3) for n in range(4)))) == []


def test_quarantine_storm_begins_with_twenty_records(tmp_path: Path) -> None:
    evidence = caught_up(behind(config(tmp_path), batches=batches(4, lag=0, rows_in=30, quarantined=5)))
    assert codes(evidence) == ["QUARANTINE_STORM"]
    few = tuple(batch(n, lag=0, rows_in=30, quarantined=5 - (n == 0)) for n in range(4))
    assert codes(replace(evidence, batches=few)) == []


def test_quarantine_storm_of_late_rows_asks_for_a_longer_delay(tmp_path: Path) -> None:
    steps = [
        {"watermark": {**WATERMARK["watermark"], "late": "quarantine"}},
        {"dedupe": {"keys": ["id"], "within": "1 hour"}},
    ]
    late = batches(lag=0, quarantined=5_000, codes={"LATE": 5_000})
    evidence = caught_up(behind(config(tmp_path, transforms=steps), batches=late))
    assert causes(evidence)[0].change == "watermark.delay: 20 minutes (now 10 minutes)"
