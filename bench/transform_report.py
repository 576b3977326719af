"""The transforms part as text and as targets: ratios within a repetition, their median over the repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from sink_report import Goal
from transforms import DEDUPE, ENRICH, FEW, HAND_WRITTEN, HOUR, JOBS, MANY, PENSTOCK, WINDOW, TransformRun

from tables import share, table

_TITLES = {
    ENRICH: "A table of 100,000 rows beside each event",
    WINDOW: "One-minute windows by key",
    DEDUPE: "Each id once, with state",
}
_GOALS = ((ENRICH, HAND_WRITTEN, 2.0), (WINDOW, FEW, 1.0), (WINDOW, MANY, 1.0), (DEDUPE, FEW, 1.0), (DEDUPE, MANY, 1.0))
_FLAT = 1.1

Figure = Callable[[TransformRun], float]


def transform_goals(runs: Sequence[TransformRun]) -> list[Goal]:
    """What was set: twice the broadcast join, no slower with state, and a state that does not grow.

    The rates are those of the batches, by the checkpoint.
    """
    found = []
    for case, base, wanted in _GOALS:
        if of_case := _of(runs, case):
            ratio = _ratio(of_case, base, PENSTOCK, lambda run: run.steady_rate)
            found.append(Goal(f"{_TITLES[case]}, rows/s steady, to {base}", wanted, ratio, True))
    for run in _hours(runs):
        found.append(Goal(f"{_TITLES[run.case]}, state rows, second half hour to first", _FLAT, _growth(run), False))
    return found


def transforms_text(runs: Sequence[TransformRun]) -> list[str]:
    """A section a case, and one for the state."""
    parts = ["## Transforms"]
    for case, title in _TITLES.items():
        if of_case := _of(runs, case):
            parts += [f"### {title}", _section(of_case, case)]
    if hours := _hours(runs):
        parts += ["### State in an hour of event time", _state(hours)]
    return parts


def transforms_profile(runs: Sequence[TransformRun]) -> list[str]:
    """Where the time of each job's first run went."""
    parts = []
    for run in runs:
        if run.repetition or run.job == HOUR:
            continue
        on_driver = [(name, took) for name, took in run.phases.items() if not name.startswith("task_")]
        inside = [(name, took) for name, took in run.phases.items() if name.startswith("task_")]
        steps = [("start-up and end", run.seconds - run.steady_seconds), *((f"batches: {n}", t) for n, t in on_driver)]
        rows = [(name, f"{took:.2f}", share(took, run.seconds)) for name, took in steps]
        rows += [(f"in the tasks: {name[5:]}", f"{took:.2f}", "") for name, took in inside]
        parts += [
            f"## {_TITLES[run.case]}, {run.job}",
            f"{run.rows:,} rows, {run.seconds:.2f} s in all, {run.steady_seconds:.2f} s in {run.batches} batches. "
            "What happens in the tasks is summed over them; they run side by side.",
            table(("step", "seconds", "share"), rows),
        ]
    return parts


def _section(runs: Sequence[TransformRun], case: str) -> str:
    base = JOBS[case][0]
    header = (
        "job",
        "rows/s steady",
        "times",
        "rows/s in all",
        "times",
        "batches",
        "start-up and end",
        "each run in all",
    )
    rows = []
    for job in JOBS[case]:
        mine = [run for run in runs if run.job == job]
        rows.append(
            (
                job,
                f"{median(run.steady_rate for run in mine):,.0f}",
                f"{_ratio(runs, base, job, lambda run: run.steady_rate):.2f}",
                f"{median(run.rate for run in mine):,.0f}",
                f"{_ratio(runs, base, job, lambda run: run.rate):.2f}",
                str(mine[0].batches),
                f"{median(run.seconds - run.steady_seconds for run in mine):.1f} s",
                ", ".join(f"{run.seconds:.1f} s" for run in mine),
            )
        )
    return table(header, rows)


def _state(hours: Sequence[TransformRun]) -> str:
    header = ("", "batches", "rows first", "peak", "last", "second half to first", "MB first", "peak", "last")
    rows = []
    for run in hours:
        counts, sizes = [kept.rows for kept in run.kept], [kept.bytes for kept in run.kept]
        rows.append(
            (
                _TITLES[run.case],
                str(run.batches),
                *(f"{count:,}" for count in (counts[0], max(counts), counts[-1])),
                f"{_growth(run):.2f}",
                *(f"{size / 1e6:.1f}" for size in (sizes[0], max(sizes), sizes[-1])),
            )
        )
    return table(header, rows)


def _of(runs: Sequence[TransformRun], case: str) -> list[TransformRun]:
    return [run for run in runs if run.case == case and run.job != HOUR]


def _hours(runs: Sequence[TransformRun]) -> list[TransformRun]:
    return [run for run in runs if run.job == HOUR]


def _growth(run: TransformRun) -> float:
    """The most rows of the second half of the batches to the most of the first."""
    counts = [kept.rows for kept in run.kept]
    half = len(counts) // 2
    return max(counts[half:]) / max(counts[:half])


def _ratio(runs: Sequence[TransformRun], base: str, job: str, figure: Figure) -> float:
    """The median of `job` to `base` of the same repetition."""
    bases = {run.repetition: figure(run) for run in runs if run.job == base}
    return median(figure(run) / bases[run.repetition] for run in runs if run.job == job)
