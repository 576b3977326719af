"""Lag in words: one sentence that says how far behind a pipeline is and where that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ops.wording import rate, spell

if TYPE_CHECKING:
    from penstock.ops.lag.lag import LagReport

_NOISE_SHARE, _NOISE = 0.01, 0.5
_HOVERING_SHARE = 0.5


def describe(report: LagReport) -> str:
    """How much waits, how old the oldest of it is, and whether it is catching up."""
    if report.total == 0:
        return "caught up: nothing waits" if report.running else f"nothing waits; {_at_rest(report)}"
    told = f"{report.total:,} behind"
    if report.behind_seconds is not None:
        told += f", the oldest unread record is {spell(report.behind_seconds)} old"
    return f"{told}; {_outlook(report) if report.running else _at_rest(report)}"


def _at_rest(report: LagReport) -> str:
    rest = "it has not run yet" if report.never_ran else "the pipeline does not run"
    coming = report.growth is not None and report.growth > _NOISE
    return f"{rest}, and {rate(report.growth or 0.0)} come in" if coming else rest


def _outlook(report: LagReport) -> str:
    growth = report.growth
    if keeps_up(report):
        return "it keeps up: no more waits than the next batch or two take"
    if growth is None:
        return "whether that grows is not known yet"
    if growth > noise(report.input_rate):
        return f"growing by {rate(growth)}: it does not catch up"
    if report.catch_up_seconds is None:
        return "neither growing nor shrinking: it does not catch up"
    return f"shrinking by {rate(-growth)}: caught up in about {spell(report.catch_up_seconds)}"


def keeps_up(report: LagReport) -> bool:
    """Whether no more waits than comes in while a batch is made: lag then rises and falls with every batch."""
    if report.batch_offsets is None or report.total > 2 * report.batch_offsets:
        return False
    return report.growth is None or report.growth <= _HOVERING_SHARE * (report.input_rate or 0.0) + _NOISE


def noise(incoming: float | None) -> float:
    """Growth that is none."""
    return max(_NOISE, _NOISE_SHARE * (incoming or 0.0))
