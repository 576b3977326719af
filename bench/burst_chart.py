"""The results of the part `burst` as a picture: what waits, how long the batches are and the memory, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from burst_events import TIMES
from burst_run import ADAPTIVE, BEST, HIGH, LOW, BurstRun, Setting
from matplotlib.axes import Axes

_COLORS = {ADAPTIVE: "#0b6e99", BEST: "#2e8b57", HIGH: "#c0392b", LOW: "#8a8f98"}


def draw_burst(runs: Sequence[BurstRun], setting: Setting, file: Path) -> None:
    """A curve for each variant; the caps that were tried beside the best one are left out."""
    figure, rows = plt.subplots(3, 1, figsize=(8, 8.4), sharex=True, layout="constrained")
    for run in runs:
        if run.variant in _COLORS:
            _draw_run(run, *rows)
    waiting, batches, memory = rows
    for axes in rows:
        axes.axvspan(0, setting.burst_seconds, color="black", alpha=0.06, linewidth=0)
        axes.spines[["top", "right"]].set_visible(False)
    waiting.set_ylabel("events that wait")
    waiting.yaxis.set_major_formatter("{x:,.0f}")
    waiting.legend(frameon=False, fontsize=9)
    batches.axhline(setting.max_batch, color="black", linewidth=0.8, linestyle=":")
    at = (1, setting.max_batch)
    batches.annotate("max_batch", at, xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    batches.set_ylabel("seconds of a batch")
    memory.set_ylabel("memory, GiB")
    memory.set_ylim(bottom=0)
    memory.set_xlim(left=-2 * setting.normal_seconds)
    memory.set_xlabel("seconds from the beginning of the burst")
    title = f"{TIMES} times the normal rate for {setting.burst_seconds:g} s, onto a slow sink"
    figure.suptitle(title, fontsize=10)
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _draw_run(run: BurstRun, waiting: Axes, batches: Axes, memory: Axes) -> None:
    label = run.variant if run.cap is None else f"{run.variant} ({run.cap:,})"
    color, width = _COLORS[run.variant], 2.0 if run.variant == ADAPTIVE else 1.2
    starts = [one.started_at - run.burst_began for one in run.moments]
    waiting.plot(starts, [one.waiting for one in run.moments], label=label, color=color, linewidth=width)
    ends = [one.finished_at - run.burst_began for one in run.moments]
    batches.plot(ends, [one.seconds for one in run.moments], ".-", color=color, linewidth=width, markersize=4)
    looks = [(at - run.burst_began, held / 2**30) for at, held in run.memory]
    memory.plot(*zip(*looks, strict=True), color=color, linewidth=width)
