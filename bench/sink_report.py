"""The sinks part as text and as targets: ratios within a repetition, their median over the repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from pruning import LARGE, PRUNE, SMALL, batch_median
from sink_jobs import SinkRun
from sinks import HAND_WRITTEN, ICEBERG, KAFKA, MERGE, PENSTOCK, POSTGRES, THREE, TUNED

from tables import share, table

_TITLES = {
    MERGE: "Delta merge, 30 % updates",
    PRUNE: "Delta merge into a table with history, pruned by date",
    ICEBERG: "Iceberg append",
    KAFKA: "Kafka: exactly once against Spark's at-least-once sink",
    POSTGRES: "PostgreSQL: upsert against Spark's JDBC append",
    THREE: "Delta, Iceberg and Kafka at once against three jobs one after another",
}


@dataclass(frozen=True)
class Goal:
    """A figure to reach: at least, or at most."""

    what: str
    wanted: float
    found: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.found >= self.wanted if self.at_least else self.found <= self.wanted

    def told(self) -> tuple[str, str]:
        """What was wanted, and what was measured."""
        if self.at_least:
            return f"at least {self.wanted:g} times", f"{self.found:.2f} times"
        return f"at most {self.wanted:g} times", f"{self.found:.2f} times"


def sink_goals(runs: Sequence[SinkRun]) -> list[Goal]:
    """The goals of the cases that were run. For the merge into a fresh table none is set but not to be slower."""
    cases = {run.case for run in runs}
    found = []
    for case, base, wanted in (
        (MERGE, HAND_WRITTEN, 1.0),
        (ICEBERG, HAND_WRITTEN, 2.0),
        (KAFKA, HAND_WRITTEN, 2.0),
        (KAFKA, TUNED, 2.0),
        (POSTGRES, HAND_WRITTEN, 2.0),
    ):
        if case in cases:
            ratio = _ratio(_of(runs, case), base, PENSTOCK, lambda run: run.seconds)
            found.append(Goal(f"{_TITLES[case]}, rows/s in all, to {base}", wanted, 1 / ratio, True))
    if PRUNE in cases:
        growth = _ratio(_of(runs, PRUNE), SMALL, LARGE, batch_median)
        found.append(Goal("Delta merge, a batch into a table 10 times larger", 1.5, growth, False))
    if THREE in cases:
        found.append(Goal(f"{_TITLES[THREE]}, in all", 0.25, _share_of_three(_of(runs, THREE)), False))
    return found


def sinks_text(runs: Sequence[SinkRun]) -> list[str]:
    """A section a case."""
    parts = ["## Sinks"]
    for case, title in _TITLES.items():
        if of_case := _of(runs, case):
            parts += [f"### {title}", _case(of_case)]
    return parts


def sinks_profile(runs: Sequence[SinkRun]) -> list[str]:
    """Where the time of Penstock's first run of each case went."""
    parts = []
    for run in runs:
        if run.repetition or run.job not in (PENSTOCK, LARGE):
            continue
        steps = [
            ("start-up and end", run.seconds - run.steady_seconds, run.seconds),
            *((f"batches: {name}", took, run.seconds) for name, took in run.phases.items() if not _in_task(name)),
        ]
        inside = [(f"in the tasks: {name[5:]}", took) for name, took in run.phases.items() if _in_task(name)]
        all_slots = run.phases.get("stage", 0.0) * run.slots
        steps += [(name, took, all_slots) for name, took in sorted(inside, key=lambda step: -step[1])]
        parts += [
            f"## {_TITLES[run.case]}, {run.job}",
            f"{run.rows:,} rows, {run.seconds:.2f} s in all, {len(run.batch_seconds)} batches. What happens in the "
            f"tasks is summed over {run.slots} slots, which run side by side within `stage`.",
            table(("step", "seconds", "share"), [(name, f"{t:.2f}", share(t, whole)) for name, t, whole in steps]),
        ]
    return parts


def _case(runs: Sequence[SinkRun]) -> str:
    jobs = list(dict.fromkeys(run.job for run in sorted(runs, key=lambda run: run.repetition)))
    header = (
        "job",
        "seconds in all",
        "rows/s in all",
        "rows/s steady",
        "batches",
        "a batch, median",
        "each run in all",
    )
    rows = []
    for job in jobs:
        mine = [run for run in runs if run.job == job]
        rows.append(
            (
                job,
                f"{median(run.seconds for run in mine):.1f}",
                f"{median(run.rate for run in mine):,.0f}",
                f"{median(run.steady_rate for run in mine):,.0f}",
                str(len(mine[0].batch_seconds)),
                f"{median(_usual_batch(run) for run in mine):.2f} s",
                ", ".join(f"{run.seconds:.1f} s" for run in mine),
            )
        )
    return table(header, rows)


def _usual_batch(run: SinkRun) -> float:
    return batch_median(run) if len(run.batch_seconds) > 1 else run.batch_seconds[0]


def _share_of_three(runs: Sequence[SinkRun]) -> float:
    shares = []
    for ours in (run for run in runs if run.job == PENSTOCK):
        others = [run.seconds for run in runs if run.repetition == ours.repetition and run.job != PENSTOCK]
        shares.append(ours.seconds / sum(others))
    return median(shares)


def _ratio(runs: Sequence[SinkRun], base: str, job: str, figure: Callable[[SinkRun], float]) -> float:
    bases = {run.repetition: figure(run) for run in runs if run.job == base}
    return median(figure(run) / bases[run.repetition] for run in runs if run.job == job)


def _of(runs: Sequence[SinkRun], case: str) -> list[SinkRun]:
    return [run for run in runs if run.case == case]


def _in_task(phase: str) -> bool:
    return phase.startswith("task_")
