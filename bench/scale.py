"""How cost grows: with the partitions of a topic, and with the cores.

The same stream of 2,000 events a second in 20, 200 and 1,000 partitions; the same backlog by one core and by two.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backlog import drain_by
from caught_up import watch_job
from events import LIVE_SCHEMA, SCHEMA, create_topic, send_backlog
from growth import Curve, Point
from jobs import DIRECT, Source

PARTITIONS = (20, 200, 1_000)
CORES = (1, 2)
Say = Callable[[str], None]


def run_scale(brokers: str, folder: Path, seconds: float, rows: int, say: Say) -> list[Curve]:
    """Both curves."""
    return [_partitions(brokers, folder, seconds, say), _cores(brokers, folder, rows, say)]


def _partitions(brokers: str, folder: Path, seconds: float, say: Say) -> Curve:
    """The lower of two medians for each size, taken by turns: what is above it was the machine's."""
    found: dict[int, list[float]] = {count: [] for count in PARTITIONS}
    # The first does not count: a new broker compiles itself on the same cores, for a minute with many partitions.
    for number, count in enumerate((max(PARTITIONS), *PARTITIONS, *PARTITIONS)):
        topic = f"scale-{number}-{count}"
        create_topic(brokers, topic, count)
        watch = watch_job(DIRECT, Source(brokers, topic, LIVE_SCHEMA), folder / "job", seconds / 2, 0)
        if number:
            found[count].append(watch.batch_quantiles[50])
        say(
            f"scale: {count:,} partitions: {watch.batches} batches, p50 {watch.batch_quantiles[50]:.2f} s, "
            f"freshness p50 {watch.freshness_quantiles[50]:.2f} s{'' if number else ', to warm up'}"
        )
    points = [Point(count, min(medians)) for count, medians in found.items()]
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
