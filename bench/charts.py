"""The results as pictures: bars for the backlog, curves for freshness."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from jobs import DIRECT, FRAME, HAND_WRITTEN
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from summary import Results, jobs_of, median_of

_COLORS = {HAND_WRITTEN: "#8a8f98", DIRECT: "#0b6e99", FRAME: "#5fb0cf"}


def draw_backlog(results: Results, file: Path) -> None:
    """Rows a second of each job, in all and steady; a dot for each repetition."""
    drains, jobs = results.drains, jobs_of(results.drains)
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    width = 0.8 / len(jobs)
    for number, job in enumerate(jobs):
        at = [group + (number - (len(jobs) - 1) / 2) * width for group in (0, 1)]
        heights = [median_of(drains, job, lambda d: d.rate), median_of(drains, job, lambda d: d.steady_rate)]
        bars = axes.bar(at, heights, width * 0.92, label=job, color=_COLORS[job])
        axes.bar_label(bars, [f"{height:,.0f}" for height in heights], padding=6, fontsize=8)
        for drain in (d for d in drains if d.job == job):
            axes.plot(at, [drain.rate, drain.steady_rate], ".", color="black", markersize=4)
    axes.set_xticks([0, 1], ["in all", "steady"])
    axes.set_ylabel("rows a second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(f"Draining {drains[0].rows:,} JSON events from Kafka into a Delta table", fontsize=10)
    _finish(figure, axes, file)


def draw_caught_up(results: Results, file: Path) -> None:
    """The share of events that the table shows within a time, a curve for each repetition."""
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for watch in results.watches:
        label = watch.job if watch.repetition == 0 else None
        axes.plot(watch.freshness_quantiles, range(101), label=label, color=_COLORS[watch.job])
    axes.axvline(1, color="black", linewidth=0.6, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g} s")
    axes.set_xlabel("from the sending of an event to the commit that shows it")
    axes.set_ylabel("percent of events")
    axes.set_title("Caught up: how fresh the table is", fontsize=10)
    _finish(figure, axes, file)


def _finish(figure: Figure, axes: Axes, file: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)
