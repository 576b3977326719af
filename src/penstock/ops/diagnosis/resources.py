"""Causes in what a pipeline uses: memory that is too small, state or small files that grow without a bound, work that
is not spread over the partitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from penstock.config import (
    DedupeConfig,
    JoinConfig,
    StatefulConfig,
    WatermarkConfig,
    WindowConfig,
    flows,
    reveal,
    show_duration,
)
from penstock.metrics.history import StateKept
from penstock.ops.diagnosis.evidence import Cause, Evidence, middle
from penstock.wording import counted, percent, size, span

_FEWEST_BATCHES = 4
_FEWEST_STATE_ROWS = 100
_TIMES = 2
_MANY_FILES = 100
_FAR_TOO_MANY_FILES = 1000
_SUGGESTED = "1 hour"


def state_grows(evidence: Evidence) -> Cause | None:
    """The state grows with every batch without limit: no bound, or a watermark that does not advance."""
    states = evidence.states
    if len(states) < _FEWEST_BATCHES:
        return None
    first, last = states[0], states[-1]
    shrank = any(after.rows < before.rows for before, after in pairwise(states))
    if shrank or last.rows < _FEWEST_STATE_ROWS or last.rows < _TIMES * first.rows:
        return None
    why = _unbounded(evidence, states)
    if why is None:
        return None
    reason, change = why
    return Cause(
        "STATE_GROWS",
        0.7 if evidence.slow else 0.6,
        f"the state grows with every batch without limit: {last.rows:,} rows",
        (
            f"batch {first.batch_id}: {first.rows:,} rows, {size(first.size_bytes)}; batch {last.batch_id}: "
            f"{last.rows:,} rows, {size(last.size_bytes)}; it never shrank",
            reason,
        ),
        change,
    )


def small_files(evidence: Evidence) -> Cause | None:
    """A table of many files that should be few."""
    worst = max(evidence.tables, key=lambda one: one.figures.small_files, default=None)
    if worst is None:
        return None
    asked, done = evidence.config.maintenance, evidence.checkpoint.maintained_at
    late = asked is not None and (done is None or evidence.age(done) > 2 * asked.every)
    figures = worst.figures
    if figures.small_files < (_MANY_FILES if asked is None or late else _FAR_TOO_MANY_FILES):
        return None
    facts = [
        f"{worst.name}: {figures.small_files:,} of {figures.files:,} files are small; a file has "
        f"{size(figures.size_bytes / figures.files)} on average",
    ]
    if asked is None:
        facts.append("the file has no maintenance: they are never compacted")
        change = f"maintenance: {{every: {_SUGGESTED}}}"
    elif late:
        when = f"{done:%Y-%m-%d %H:%M:%S} UTC" if done is not None else "never"
        facts.append(f"maintenance is set to every {show_duration(asked.every)}, but last ran {when}")
        change = f"penstock compact {evidence.file} --sink {worst.name}"
    else:
        facts.append(f"maintenance is every {show_duration(asked.every)}, and within {show_duration(asked.within)}")
        change = f"maintenance.within: {show_duration(asked.within * 4)} (now {show_duration(asked.within)})"
    share = figures.small_files / figures.files
    return Cause(
        "SMALL_FILES",
        0.55,
        f"{percent(share)} of the {figures.files:,} files of {worst.name} are small",
        tuple(facts),
        change,
    )


def _unbounded(evidence: Evidence, states: Sequence[StateKept]) -> tuple[str, str] | None:
    """Why nothing ends the state, and what would."""
    for flow in flows(evidence.config):
        own = [step for step in flow.transforms if isinstance(step, StatefulConfig)]
        for step in own:
            if step.stateful.ttl is None and step.stateful.time == "none":
                name = step.stateful.cls
                return (
                    f"{name} keeps a state for each of {', '.join(step.stateful.keys)}, without ttl and without timers",
                    f"stateful: {{time: processing, ttl: 1 day}} for {name}",
                )
        marks = (*flow.transforms, *(step for side in flow.sides for step in side.transforms))
        mark = next((step for step in marks if isinstance(step, WatermarkConfig)), None)
        if mark is None:
            continue
        key, longest = max(_kept_by(mark, flow.transforms), key=lambda one: one[1])
        keeps = sum((span for _, span in _kept_by(mark, flow.transforms)), timedelta())
        # Of the first batch there is none yet.
        known = [one.watermark_at for one in states if one.watermark_at is not None]
        if 0 < len(known) < _FEWEST_BATCHES - 1:
            continue
        moved = known[-1] - known[0] if known else timedelta()
        if not moved:
            newest = f"it is {known[-1]:%Y-%m-%d %H:%M:%S} UTC" if known else "there is none"
            return (
                f"the watermark over {mark.watermark.column} does not advance: {newest}",
                f"set {mark.watermark.column} to the event time in every record: the newest one advances the "
                f"watermark{', in both sources' if flow.sides else ''}",
            )
        if moved > 2 * keeps:
            return (
                f"rows end {show_duration(keeps)} after the newest event, which has moved by "
                f"{show_duration(timedelta(seconds=round(moved.total_seconds())))}: more rows arrive than expire",
                f"{key}: {show_duration(longest / 2)} (now {show_duration(longest)})",
            )
    return None


def _kept_by(mark: WatermarkConfig, steps: Sequence[object]) -> list[tuple[str, timedelta]]:
    """The settings that determine how long a row stays in the state, with their values."""
    found = [("watermark.delay", mark.watermark.delay)]
    for step in steps:
        match step:
            case DedupeConfig() if step.dedupe.within is not None:
                found.append(("dedupe.within", step.dedupe.within))
            case WindowConfig():
                found += [
                    (f"window.{key}", span)
                    for key in ("size", "gap")
                    if (span := getattr(step.window, key)) is not None
                ]
            case JoinConfig() if step.join.bounds is not None:
                found.append(("join.within", max(step.join.bounds)))
    return found


_SHARE = 0.2
_SECONDS = 0.5
_KEY, _DEFAULT = "spark.driver.memory", "1g"


def gc_pressure(evidence: Evidence) -> Cause | None:
    """The JVM of the driver spends a good part of the batches on its garbage."""
    spent, took = sum(batch.gc_seconds for batch in evidence.batches), evidence.seconds
    if len(evidence.batches) < 2 or spent < _SECONDS or spent < _SHARE * took:
        return None
    now = reveal(evidence.config.spark).get(_KEY, _DEFAULT)
    return Cause(
        "GC_PRESSURE",
        0.5 + 0.4 * min(1.0, spent / took),
        f"the JVM spends {percent(min(1.0, spent / took))} of the batches on its garbage",
        (
            f"{evidence.last_batches}: {span(spent)} of {span(took)}; up to {percent(_SHARE)} is usual",
            f"{_KEY} is {now}",
        ),
        f"spark: {{{_KEY}: {_doubled(now)}}}",
    )


def _doubled(memory: str) -> str:
    found = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", memory.strip())
    return f"{int(found[1]) * 2}{found[2]}" if found is not None else "2g"


_SEVERAL = 3
_FEWEST_ROWS = 1000
_SKEWED = 0.6
_MATTERS = 0.3
"""The minimum share of a batch that its slowest task takes if skew makes it long."""
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
    facts = [
        f"{hottest}: {lags[hottest]:,} offsets wait, {percent(lags[hottest] / total)} of all; half of the other "
        f"partitions of the topic have at most {usual:,.0f}"
    ]
    if came := sum(evidence.arrived.values()):
        facts.append(f"{percent(evidence.arrived.get(hottest, 0) / came)} of the new records went there")
    whole = evidence.whole_partitions
    facts.append(
        f"it cannot be split: {whole}" if whole else "it is split among the slots, so it hardly slows the others"
    )
    return Cause(
        "HOT_PARTITION",
        0.9 if whole else 0.45,
        f"partition {hottest} has most of the unread records",
        tuple(facts),
        f"let the producers of {hottest.topic} use a key with more distinct values, or none: records then go to all "
        f"{len(others) + 1} partitions",
    )


def few_partitions(evidence: Evidence) -> Cause | None:
    """Idle cores, if a partition is read by one task."""
    whole, cores = evidence.whole_partitions, evidence.cores
    if not evidence.behind or whole is None or cores is None or evidence.brokers is None:
        return None
    partitions = len(evidence.bounds)
    if not 0 < partitions < cores:
        return None
    topics = sorted({at.topic for at in evidence.bounds})
    each = -(-cores // len(topics))
    return Cause(
        "FEW_PARTITIONS",
        0.5 + 0.4 * (1 - partitions / cores),
        f"{counted(partitions, 'partition')} for {cores} cores",
        (
            f"{', '.join(topics)}: {partitions} in total, and Spark runs {cores} tasks in parallel",
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
    # A small difference between two tasks is not skew.
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
            f"{evidence.last_batches}: {most:,} of {rows:,} rows leave the fullest of {tasks} tasks; an even spread "
            f"would be {percent(1 / tasks)}",
            f"the slowest task takes {span(slowest / len(evidence.batches))} of "
            f"{span(evidence.seconds / len(evidence.batches))} a batch",
        ),
        change,
    )


def _keyed(evidence: Evidence) -> tuple[str, str, str] | None:
    """The first step that groups rows by key: its kind, its keys, and how to remove the skew."""
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
