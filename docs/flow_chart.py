"""Draws docs/images/flow.svg from the simulation: `python docs/flow_chart.py`.

A pipeline with a burst of ten times its rate, while its sink becomes four times slower for a while. What it does is
computed by the controller that a run has; only the pipeline is on paper. Its colours can be read on white and on black.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from penstock.config import FlowConfig
from penstock.flow.simulation import Arrivals, Burst, Simulated, Work, adaptive, simulate

IMAGE = Path(__file__).parent / "images" / "flow.svg"
FLOW = FlowConfig()
BURST = Burst(300_000, start=120, seconds=60)
SLOW = (250.0, 430.0)
TIMES_SLOWER = 4.0
SECONDS = 960.0
WORK = Work(
    fixed=1.0,
    per_offset=2e-5,
    cores=2,
    split=True,
    noise=0.08,
    load=lambda time: (1.0, TIMES_SLOWER) if SLOW[0] <= time < SLOW[1] else (1.0, 1.0),
)
_INK, _LINE, _ACCENT, _WARM = "#7d8590", "#7d8590", "#2f81f7", "#d29922"
_SMALL: dict[str, Any] = {"fontsize": 8, "color": _INK}


def run() -> Simulated:
    """The run that is drawn."""
    return simulate(WORK, Arrivals(30_000, (BURST,)), adaptive(FLOW, 2), SECONDS, trigger=5, seed=4)


def draw(image: Path) -> None:
    """Backlog, cap and batch time over the same minutes, and each decision with its reason."""
    done = run()
    plt.rcParams.update({"svg.hashsalt": "penstock", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, (backlog, caps, seconds) = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
    times = range(0, int(SECONDS), 2)
    backlog.fill_between(
        [at / 60 for at in times], [done.backlog(at) / 1e6 for at in times], color=_ACCENT, alpha=0.45, lw=0
    )
    backlog.set_title("offsets that wait, millions", loc="left")
    starts = [step.start / 60 for step in done.steps]
    caps.step([*starts, SECONDS / 60], [*(step.batch.cap for step in done.steps), done.steps[-1].batch.cap],
              where="post", color=_ACCENT, lw=1.6)  # fmt: skip
    caps.plot(starts, [step.batch.offsets for step in done.steps], ".", color=_WARM, ms=4)
    caps.set_yscale("log")
    caps.set_ylim(1e3, 2e7)
    caps.set_title("the cap (line), and what batches took (dots), offsets", loc="left")
    told = ""
    for step in done.changes:
        if step.decision.reason != told:
            told = step.decision.reason
            caps.annotate(told, (step.start / 60, step.batch.cap), (4, -10), textcoords="offset points", **_SMALL)
    seconds.vlines(starts, 0, [step.batch.seconds for step in done.steps], color=_ACCENT, lw=1.6)
    for level, name in (
        (FLOW.target_batch.total_seconds(), "target_batch"),
        (FLOW.max_batch.total_seconds(), "max_batch"),
    ):
        seconds.axhline(level, color=_WARM, lw=1, ls="--")
        seconds.annotate(
            name, (SECONDS / 60, level), (0, 3), textcoords="offset points", ha="right", fontsize=8, color=_WARM
        )
    seconds.set_ylim(0, 135)
    seconds.set_title("seconds that batches took", loc="left")
    seconds.set_xlabel("minutes")
    for axes in (backlog, caps, seconds):
        _finish(axes)
    _name_stretches(backlog)
    image.parent.mkdir(exist_ok=True)
    figure.savefig(image, transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _finish(axes: Axes) -> None:
    axes.axvspan(BURST.start / 60, (BURST.start + BURST.seconds) / 60, color=_ACCENT, alpha=0.15, lw=0)
    axes.axvspan(SLOW[0] / 60, SLOW[1] / 60, color=_WARM, alpha=0.15, lw=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_LINE)
    axes.tick_params(colors=_INK, which="both", labelsize=8)
    axes.title.set_color(_INK)
    axes._left_title.set(color=_INK, fontsize=9)  # type: ignore[attr-defined]
    axes.xaxis.label.set_color(_INK)
    axes.set_xlim(0, SECONDS / 60)


def _name_stretches(axes: Axes) -> None:
    axes.set_ylim(0, 19)
    for start, text in ((BURST.start, "10 times\nthe rate"), (SLOW[0], "the sink is\n4 times slower")):
        axes.annotate(text, (start / 60, 19), (3, -3), textcoords="offset points", va="top", **_SMALL)


if __name__ == "__main__":
    draw(IMAGE)
    print(f"wrote {IMAGE}")
