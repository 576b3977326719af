"""From single runs to the figures that are reported: medians, ratios within a repetition, targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, TypeVar

from backlog import Drain
from caught_up import Watch
from format_report import format_goals
from formats import FormatRun
from jobs import DIRECT, FRAME, HAND_WRITTEN
from sink_jobs import SinkRun
from sink_report import sink_goals
from transform_report import transform_goals
from transforms import TransformRun

Run = TypeVar("Run", Drain, Watch)

DIRECT_RATIO, FRAME_RATIO, BATCH_RATIO, FRESH_SECONDS = 2.5, 1.4, 1 / 8, 1.0


@dataclass(frozen=True)
class Target:
    """A figure that Penstock set itself, and what was measured."""

    what: str
    wanted: str
    found: str
    met: bool

    @property
    def verdict(self) -> str:
        """For people."""
        return "pass" if self.met else "falls short"


@dataclass
class Results:
    """Everything that one run of the bench measured."""

    taken_at: str
    settings: dict[str, Any]
    machine: dict[str, str]
    drains: list[Drain] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    sinks: list[SinkRun] = field(default_factory=list)
    formats: list[FormatRun] = field(default_factory=list)
    transforms: list[TransformRun] = field(default_factory=list)
    validate_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """All of it, with the targets."""
        return {**asdict(self), "targets": [{**asdict(t), "verdict": t.verdict} for t in targets(self)]}


def jobs_of(runs: Sequence[Drain] | Sequence[Watch]) -> list[str]:
    """The jobs, the hand-written one first."""
    order = (HAND_WRITTEN, DIRECT, FRAME)
    return sorted({run.job for run in runs}, key=order.index)


def median_of(runs: Sequence[Run], job: str, figure: Callable[[Run], float]) -> float:
    """The median over the repetitions."""
    return median(figure(run) for run in runs if run.job == job)


def ratio_of(runs: Sequence[Run], job: str, figure: Callable[[Run], float]) -> float:
    """The median of the ratios to the hand-written job of the same repetition."""
    base = {run.repetition: figure(run) for run in runs if run.job == HAND_WRITTEN}
    return median(figure(run) / base[run.repetition] for run in runs if run.job == job)


def typical(drains: Sequence[Drain], job: str) -> Drain:
    """The run in the middle of its job's runs."""
    runs = sorted((d for d in drains if d.job == job), key=lambda d: d.seconds)
    return runs[len(runs) // 2]


def targets(results: Results) -> list[Target]:
    """The targets of the parts that were run."""
    found = []
    if results.drains:
        for job, wanted in ((DIRECT, DIRECT_RATIO), (FRAME, FRAME_RATIO)):
            ratio = ratio_of(results.drains, job, lambda d: d.rate)
            found.append(
                Target(
                    f"backlog, {job}, rows/s in all",
                    f"at least {wanted} times hand-written",
                    f"{ratio:.2f} times",
                    ratio >= wanted,
                )
            )
    if results.watches:
        batch = ratio_of(results.watches, DIRECT, lambda w: w.interval_quantiles[50])
        fresh = median_of(results.watches, DIRECT, lambda w: w.freshness_quantiles[50])
        found.append(
            Target(
                "caught up, batch, commit to commit, p50",
                "at most 1/8 of hand-written",
                f"1/{1 / batch:.1f}",
                batch <= BATCH_RATIO,
            )
        )
        found.append(
            Target(
                "caught up, event to committed table, p50",
                f"under {FRESH_SECONDS:g} s",
                f"{fresh:.2f} s",
                fresh < FRESH_SECONDS,
            )
        )
    goals = sink_goals(results.sinks) + format_goals(results.formats) + transform_goals(results.transforms)
    found += [Target(goal.what, *goal.told(), goal.met) for goal in goals]
    return found
