"""How cost grows: with the partitions of a topic, the commits of a table, and the cores.

The same stream of 2,000 events a second in 20, 200 and 1,000 partitions; the same backlog by one core and by two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from backlog import drain_by
from caught_up import RATE, watch_job
from commits import MOST, run_commits
from events import LIVE_SCHEMA, SCHEMA, create_topic, send_backlog
from growth import Curve, Point
from growth_report import curve_text, draw_curves
from jobs import DIRECT, Source
from machine import machine_facts

from tables import table

PARTITIONS = (20, 200, 1_000)
CORES = (1, 2)
LONGER = 3.0
"""How much longer a batch over the most partitions may take than over the fewest."""
Say = Callable[[str], None]


def run_scale(brokers: str, folder: Path, seconds: float, rows: int, commits: int, say: Say) -> list[Curve]:
    """All curves."""
    return [
        _partitions(brokers, folder, seconds, say),
        _cores(brokers, folder, rows, say),
        *run_commits(folder, commits, say),
    ]


def _partitions(brokers: str, folder: Path, seconds: float, say: Say) -> Curve:
    points = []
    # The first does not count: a new broker compiles itself on the same cores, for a minute with many partitions.
    for number, count in enumerate((max(PARTITIONS), *PARTITIONS)):
        topic = f"scale-{number}-{count}"
        create_topic(brokers, topic, count)
        watch = watch_job(DIRECT, Source(brokers, topic, LIVE_SCHEMA), folder / "job", seconds, 0)
        if number:
            points.append(Point(count, watch.batch_quantiles[50]))
        say(
            f"scale: {count:,} partitions: {watch.batches} batches, p50 {watch.batch_quantiles[50]:.2f} s, "
            f"freshness p50 {watch.freshness_quantiles[50]:.2f} s{'' if number else ', to warm up'}"
        )
    return Curve("partitions", DIRECT, "partitions", "seconds a batch (median)", points)


def _cores(brokers: str, folder: Path, rows: int, say: Say) -> Curve:
    topic = "scale-backlog"
    create_topic(brokers, topic)
    send_backlog(brokers, topic, rows)
    points = []
    for cores in CORES:
        drain = drain_by(DIRECT, Source(brokers, topic, SCHEMA), folder / "job", rows, 0, cores)
        points.append(Point(cores, drain.steady_rate))
        say(f"scale: {cores} cores: {drain.steady_rate:,.0f} rows/s steady, {drain.rate:,.0f} in all")
    return Curve("cores", DIRECT, "cores", "rows a second (steady)", points)


def write_scale(curves: Sequence[Curve], folder: Path) -> list[str]:
    """Write them all. The verdicts, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {"taken_at": taken, "machine": machine, "curves": [{**asdict(c), "exponent": c.exponent} for c in curves]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    draw_curves(curves, folder / "curves.png")
    verdicts = [line for curve in curves for line in _verdict(curve)]
    parts = [
        "# Bench: scale",
        f"Written by `bench/run.py --only scale` on {taken}. {RATE:,} events a second where partitions are counted. An "
        "exponent of 0 does not grow, one of 1 grows as the size does.",
        "![the curves](curves.png)",
        *(text for curve in curves for text in curve_text(curve)),
        "## Wanted",
        *verdicts,
        "## Machine",
        table(("", ""), list(machine.items())),
    ]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return verdicts


def _verdict(curve: Curve) -> list[str]:
    most = {"partitions": LONGER, "commits": MOST}.get(curve.part)
    if most is None:
        return []
    verdict = "pass" if curve.growth <= most else "falls short"
    return [f"{verdict:11}  {curve.part}, {curve.name}: {curve.growth:.2f} times, wanted at most {most:g} times"]
