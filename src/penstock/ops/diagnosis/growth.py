"""What grows without a bound: the state of the steps, and the number of small files."""

from __future__ import annotations

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
    show_duration,
)
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.diagnosis.figures import Kept
from penstock.ops.wording import percent, size

_FEWEST_BATCHES = 4
_FEWEST_ROWS = 100
_TIMES = 2
_MANY_FILES = 100
_FAR_TOO_MANY_FILES = 1000
_SUGGESTED = "1 hour"


def state_grows(evidence: Evidence) -> Cause | None:
    """The state has grown with every batch, and nothing ends it: no bound, or a watermark that stands still."""
    states = evidence.states
    if len(states) < _FEWEST_BATCHES:
        return None
    first, last = states[0], states[-1]
    shrank = any(after.rows < before.rows for before, after in pairwise(states))
    if shrank or last.rows < _FEWEST_ROWS or last.rows < _TIMES * first.rows:
        return None
    why = _unbounded(evidence, states)
    if why is None:
        return None
    reason, change = why
    return Cause(
        "STATE_GROWS",
        0.7 if evidence.slow else 0.6,
        f"the state grows with every batch, and nothing ends it: {last.rows:,} rows",
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
    told = [
        f"{worst.name}: {figures.small_files:,} of {figures.files:,} files are small; a file has "
        f"{size(figures.size_bytes / figures.files)} on average",
    ]
    if asked is None:
        told.append("the file has no maintenance: nothing joins them")
        change = f"maintenance: {{every: {_SUGGESTED}}}"
    elif late:
        when = f"{done:%Y-%m-%d %H:%M:%S} UTC" if done is not None else "never"
        told.append(f"maintenance is to be every {show_duration(asked.every)}, and was last done {when}")
        change = f"penstock compact {evidence.file} --sink {worst.name}"
    else:
        told.append(f"maintenance is every {show_duration(asked.every)}, and within {show_duration(asked.within)}")
        change = f"maintenance.within: {show_duration(asked.within * 4)} (now {show_duration(asked.within)})"
    share = figures.small_files / figures.files
    return Cause(
        "SMALL_FILES",
        0.55,
        f"{percent(share)} of the {figures.files:,} files of {worst.name} are small",
        tuple(told),
        change,
    )


def _unbounded(evidence: Evidence, states: Sequence[Kept]) -> tuple[str, str] | None:
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
        known = [one.watermark for one in states if one.watermark is not None]
        if 0 < len(known) < _FEWEST_BATCHES - 1:
            continue
        moved = known[-1] - known[0] if known else timedelta()
        if not moved:
            stands = f"it stands at {known[-1]:%Y-%m-%d %H:%M:%S} UTC" if known else "there is none"
            return (
                f"the watermark over {mark.watermark.column} does not advance: {stands}",
                f"let {mark.watermark.column} be the time of the event in every record: the newest one moves the "
                f"watermark{', in both sources' if flow.sides else ''}",
            )
        if moved > 2 * keeps:
            return (
                f"rows end {show_duration(keeps)} behind the newest event, and that has moved by "
                f"{show_duration(timedelta(seconds=round(moved.total_seconds())))}: more comes than goes",
                f"{key}: {show_duration(longest / 2)} (now {show_duration(longest)})",
            )
    return None


def _kept_by(mark: WatermarkConfig, steps: Sequence[object]) -> list[tuple[str, timedelta]]:
    """The settings of the file that say how long a row stays, with their values."""
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
