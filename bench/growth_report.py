"""How costs grow, told: a table and the exponent of each curve, all of them as a picture, and what is wanted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from growth import Curve
from machine import machine_facts

from tables import table

_COLORS = ("#0b6e99", "#2e8b57", "#c0392b", "#8a8f98")

WANTED = {"partitions": 3.0, "commits": 1.3}
"""How much more the last point of a curve may cost than the first."""


def write_curves(part: str, how: str, curves: Sequence[Curve], folder: Path) -> list[str]:
    """Write them all. The verdicts, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {"taken_at": taken, "machine": machine, "curves": [{**asdict(c), "exponent": c.exponent} for c in curves]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    draw_curves(curves, folder / "curves.png")
    verdicts = [_verdict(curve) for curve in curves if curve.part in WANTED]
    parts = [
        f"# Bench: {part}",
        f"Written by `bench/run.py --only {part}` on {taken}. {how} An exponent of 0 does not grow, one of 1 grows as "
        "the size does.",
        "![the curves](curves.png)",
        *(text for curve in curves for text in curve_text(curve)),
        "## Wanted",
        *verdicts,
        "## Machine",
        table(("", ""), list(machine.items())),
    ]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return verdicts


def _verdict(curve: Curve) -> str:
    most = WANTED[curve.part]
    verdict = "pass" if curve.growth <= most else "falls short"
    return f"{verdict:11}  {curve.part}, {curve.name}: {curve.growth:.2f} times, wanted at most {most:g} times"


def curve_text(curve: Curve) -> list[str]:
    """The paragraphs on one curve."""
    rows = [(f"{p.size:,.0f}", f"{p.cost:,.0f}" if p.cost >= 1_000 else f"{p.cost:.4g}") for p in curve.points]
    return [
        f"## {curve.part}: {curve.name}",
        table((curve.size, curve.cost), rows),
        f"Exponent {curve.exponent:.2f}; the last is {curve.growth:.2f} times the first.",
    ]


def draw_curves(curves: Sequence[Curve], file: Path) -> None:
    """A field for each part, on scales on which a power law is a straight line."""
    parts = list(dict.fromkeys(curve.part for curve in curves))
    figure, fields = plt.subplots(1, len(parts), figsize=(4.2 * len(parts), 3.8), squeeze=False, layout="constrained")
    for part, axes in zip(parts, fields[0], strict=True):
        drawn = [curve for curve in curves if curve.part == part]
        for curve, color in zip(drawn, _COLORS, strict=False):
            sizes, costs = [point.size for point in curve.points], [point.cost for point in curve.points]
            axes.plot(sizes, costs, "o-", label=f"{curve.name} ({curve.exponent:+.2f})", color=color, markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        least, most = min(p.cost for c in drawn for p in c.points), max(p.cost for c in drawn for p in c.points)
        axes.set_ylim(least / 3, most * 3)
        axes.set_xticks([point.size for point in drawn[0].points], minor=False)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel(drawn[0].size)
        axes.set_ylabel(drawn[0].cost)
        axes.set_title(part, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)
