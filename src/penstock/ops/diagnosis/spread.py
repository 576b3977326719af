"""Work that is not spread: a partition that has most of the records, too few of them, a key that most rows share."""

from __future__ import annotations

from penstock.config import DedupeConfig, JoinConfig, StatefulConfig, WindowConfig, flows, reveal
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.diagnosis.figures import middle
from penstock.ops.wording import counted, percent, span

_SEVERAL = 3
_FEWEST_ROWS = 1000
_SKEWED = 0.6
_MATTERS = 0.3
"""The part of a batch that its slowest task takes at least where skew is what makes it long."""
_SHUFFLES = "8"
"""The session's own `spark.sql.shuffle.partitions`."""


def hot_partition(evidence: Evidence) -> Cause | None:
    """Most of what waits is in one partition."""
    lags = evidence.lags
    if not evidence.behind or not lags:
        return None
    hottest, total = max(lags, key=lambda at: lags[at]), sum(lags.values())
    others = [lag for at, lag in lags.items() if at.topic == hottest.topic and at != hottest]
    usual = middle(others)
    if not others or lags[hottest] < _SEVERAL * usual or 2 * lags[hottest] < total:
        return None
    told = [
        f"{hottest}: {lags[hottest]:,} offsets wait, {percent(lags[hottest] / total)} of all; half of the others of "
        f"the topic have no more than {usual:,.0f}"
    ]
    if came := sum(evidence.arrived.values()):
        told.append(f"of what came meanwhile {percent(evidence.arrived.get(hottest, 0) / came)} went there")
    whole = evidence.whole_partitions
    told.append(
        f"it cannot be split: {whole}" if whole else "it is split among the slots, so it slows the others little"
    )
    return Cause(
        "HOT_PARTITION",
        0.9 if whole else 0.45,
        f"partition {hottest} has most of the records that wait",
        tuple(told),
        f"let the producers of {hottest.topic} use a key with more different values, or none: records then go to all "
        f"{len(others) + 1} partitions",
    )


def few_partitions(evidence: Evidence) -> Cause | None:
    """Cores that have nothing to read, where a partition is read by one task."""
    whole, cores = evidence.whole_partitions, evidence.cores
    if not evidence.behind or whole is None or cores is None or evidence.brokers is None:
        return None
    partitions = len(evidence.brokers.bounds)
    if not 0 < partitions < cores:
        return None
    topics = sorted({at.topic for at in evidence.brokers.bounds})
    each = -(-cores // len(topics))
    return Cause(
        "FEW_PARTITIONS",
        0.5 + 0.4 * (1 - partitions / cores),
        f"{counted(partitions, 'partition')} for {cores} cores",
        (
            f"{', '.join(topics)}: {partitions} in all, and Spark runs {cores} tasks side by side",
            f"a partition is read by one task: {whole}",
            f"{evidence.lag:,} offsets wait",
        ),
        f"kafka-topics.sh --bootstrap-server {evidence.config.source.brokers} --alter --topic {topics[0]} "
        f"--partitions {each}",
    )


def skewed_keys(evidence: Evidence) -> Cause | None:
    """Behind a shuffle by key one task has most of the rows."""
    step = _keyed(evidence)
    if not evidence.slow or step is None:
        return None
    tasks = int(reveal(evidence.config.spark).get("spark.sql.shuffle.partitions", _SHUFFLES))
    rows = sum(sum(batch.slot_rows_out) for batch in evidence.batches)
    most = sum(batch.slot_rows_out[0] for batch in evidence.batches if batch.slot_rows_out)
    # Two tasks of which one has a little more than the other are no skew.
    if tasks < 2 or rows < _FEWEST_ROWS or most < max(_SKEWED, 1.6 / tasks) * rows:
        return None
    slowest = sum(batch.slot_seconds[0] for batch in evidence.batches if batch.slot_seconds)
    if slowest < _MATTERS * evidence.seconds:
        return None
    what, keys, change = step
    return Cause(
        "SKEWED_KEYS",
        0.5 + 0.4 * min(1.0, slowest / evidence.seconds),
        f"{what} by {keys}: one task has {percent(most / rows)} of the rows",
        (
            f"{evidence.last_batches}: {most:,} of {rows:,} rows leave the fullest of {tasks} tasks; evenly spread it "
            f"would be {percent(1 / tasks)}",
            f"the slowest task takes {span(slowest / len(evidence.batches))} of "
            f"{span(evidence.seconds / len(evidence.batches))} a batch",
        ),
        change,
    )


def _keyed(evidence: Evidence) -> tuple[str, str, str] | None:
    """The first step that brings rows of equal keys together: what it is, its keys, and how to take the skew away."""
    for flow in flows(evidence.config):
        for at, step in enumerate(flow.transforms):
            before = f"transforms, before step {at + 1}"
            match step:
                case JoinConfig():
                    keys = list(step.join.on)
                    return "the join", ", ".join(keys), _leave_out(f"sources.{step.join.left}.transforms", keys)
                case WindowConfig() if step.window.by:
                    keys = list(step.window.by)
                    return "the window", ", ".join(keys), _leave_out(before, keys)
                case StatefulConfig():
                    keys = list(step.stateful.keys)
                    return "the state", ", ".join(keys), _leave_out(before, keys)
                case DedupeConfig() if step.dedupe.within is not None:
                    keys = list(step.keys)
                    return "the dedupe", ", ".join(keys), _leave_out(before, keys)
    return None


def _leave_out(place: str, keys: list[str]) -> str:
    return f'{place}: add - where: "{keys[0]} IS NOT NULL AND {keys[0]} <> <the value that most rows share>"'
