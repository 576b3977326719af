"""The formats part as text and as targets: ratios within a repetition, their median over the repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from formats import (
    DELTA,
    ENDS,
    FROM_AVRO,
    JOBS,
    PENSTOCK_AVRO,
    PENSTOCK_JSON,
    PENSTOCK_MIXED,
    PENSTOCK_PROTOBUF,
    FormatRun,
)
from sink_report import Goal

from tables import share, table

_FAST = 3.0
_MIXED_AT_MOST = 1.2

Figure = Callable[[FormatRun], float]


def format_goals(runs: Sequence[FormatRun]) -> list[Goal]:
    """What was set: three times the hand-written job, faster than JSON, and versions that cost next to nothing.

    The rates are those of the batches, by the checkpoint; how long a process takes to start is no matter of formats.
    """
    if not runs:
        return []
    found = []
    for job in (PENSTOCK_AVRO, PENSTOCK_PROTOBUF):
        for base, wanted in ((FROM_AVRO, _FAST), (PENSTOCK_JSON, 1.0)):
            ratio = _ratio(runs, DELTA, base, job, lambda run: run.steady_rate)
            found.append(Goal(f"{job} to Delta, rows/s steady, to {base}", wanted, ratio, True))
    for end in ENDS:
        cost = _ratio(runs, end, PENSTOCK_AVRO, PENSTOCK_MIXED, lambda run: run.checkpoint_seconds)
        found.append(Goal(f"three schema versions mixed, {end}, to one", _MIXED_AT_MOST, cost, False))
    return found


def formats_text(runs: Sequence[FormatRun]) -> list[str]:
    """A section an end."""
    parts = ["## Formats"]
    for end in ENDS:
        parts += [f"### {end[0].upper()}{end[1:]}", _section(runs, end)]
    return parts


def formats_profile(runs: Sequence[FormatRun]) -> list[str]:
    """Where the time of Penstock's tasks went, in the first run of each job."""
    mine = [run for run in runs if run.repetition == 0 and run.phases.get("stage")]
    if not mine:
        return []
    names = list(dict.fromkeys(name for run in mine for name in run.phases if name.startswith("task_")))
    rows = []
    for run in mine:
        whole = run.phases["stage"] * run.slots
        shares = (f"{run.phases.get(name, 0.0):.2f} ({share(run.phases.get(name, 0.0), whole)})" for name in names)
        rows.append((run.job, run.end, *shares))
    return [
        "## Formats, in the tasks",
        "Seconds, summed over the slots, and their share of the time that these had.",
        table(("job", "", *(name.removeprefix("task_") for name in names)), rows),
    ]


def _section(runs: Sequence[FormatRun], end: str) -> str:
    header = (
        *("job", "bytes each", "rows/s steady", "times from_avro", "rows/s in all", "times from_avro"),
        *("decoded rows/s a core", "start-up and end", "each run in all"),
    )
    rows = []
    for job in JOBS:
        mine = [run for run in runs if run.end == end and run.job == job]
        decoded = [run.decode_rate for run in mine if run.decode_rate is not None]
        rows.append(
            (
                job,
                f"{mine[0].bytes_each:.0f}",
                f"{median(run.steady_rate for run in mine):,.0f}",
                f"{_ratio(runs, end, FROM_AVRO, job, lambda run: run.steady_rate):.2f}",
                f"{median(run.rate for run in mine):,.0f}",
                f"{_ratio(runs, end, FROM_AVRO, job, lambda run: run.rate):.2f}",
                f"{median(decoded):,.0f}" if decoded else "",
                f"{median(run.seconds - run.checkpoint_seconds for run in mine):.1f} s",
                ", ".join(f"{run.seconds:.1f} s" for run in mine),
            )
        )
    return table(header, rows)


def _ratio(runs: Sequence[FormatRun], end: str, base: str, job: str, figure: Figure) -> float:
    """The median of `job` to `base` of the same repetition."""
    bases = {run.repetition: figure(run) for run in runs if (run.end, run.job) == (end, base)}
    return median(figure(run) / bases[run.repetition] for run in runs if (run.end, run.job) == (end, job))
