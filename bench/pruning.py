"""Merging into a table 10 times larger: batches that touch the newest dates alone must not take much longer.

The tables are made beforehand, untimed, by delta-rs: one file a date.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median

from deltalake import write_deltalake
from sink_checks import check, delta_rows
from sink_events import History, pairs_of
from sink_jobs import Ground, Ran, SinkRun, batch_cap, rotated

PRUNE = "prune"
HAND_SMALL, HAND_LARGE = "hand-written", "hand-written, 10 times larger"
SMALL, LARGE = "penstock", "penstock, 10 times larger"
_JOBS = (HAND_SMALL, SMALL, HAND_LARGE, LARGE)
_TOPIC = "newest"
_DATES, _TIMES = 10, 10
_BATCH_SHARE, _BATCHES = 5, 5

Say = Callable[[str], None]


def run_pruning(brokers: str, folder: Path, rows: int, repeat: int, say: Say) -> list[SinkRun]:
    """Merge the same events into a table of `rows` rows and into one of 10 times as many."""
    history, batch = History(rows // _DATES), rows // _BATCH_SHARE
    say(
        f"prune: sending {_BATCHES} batches of {batch:,} events for the newest dates of {rows:,} rows and 10 times that"
    )
    sent = history.send(brokers, _TOPIC, _BATCHES * batch)
    made = {}
    for jobs, dates in (((HAND_SMALL, SMALL), _DATES), ((HAND_LARGE, LARGE), _DATES * _TIMES)):
        table = folder / f"history-{dates}"
        before = history.rows(dates)
        write_deltalake(table, before, partition_by=["order_date"])
        wanted = pairs_of(before).then(sent).newest()
        made.update(dict.fromkeys(jobs, (table, wanted)))
    runs = []
    for repetition in range(repeat):
        for job in rotated(_JOBS, repetition):
            (table, wanted), place = made[job], folder / "sink"
            shutil.copytree(table, place / "table")
            ground = Ground(brokers, _TOPIC, place, f"orders-{PRUNE}-{repetition}", batch_cap(batch))
            ran = _merge(job, ground)
            check(job, "table", wanted, delta_rows(place / "table"))
            run = ran.as_run(PRUNE, job, repetition, _BATCHES * batch)
            say(f"{PRUNE} {repetition + 1}/{repeat}: {run.told()};  a batch {batch_median(run):.2f} s")
            runs.append(run)
            shutil.rmtree(place)
    return runs


def batch_median(run: SinkRun) -> float:
    """The usual batch of a run. Its first one, which also warms everything up, does not count."""
    return median(run.batch_seconds[1:])


def _merge(job: str, ground: Ground) -> Ran:
    table = ground.folder / "table"
    if job in (HAND_SMALL, HAND_LARGE):
        return ground.run_hand_written("merge", table=table, dated=True)
    dated = {"partition_by": ["order_date"], "prune_by": ["order_date"], "coordinates": False}
    sink = {"name": "out", "type": "delta", "path": str(table), "mode": "merge", "keys": ["order_id"], **dated}
    return ground.run_penstock(sink, derive={"order_date": "date(event_time)"})
