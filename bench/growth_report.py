"""How costs grow, told: a table and the exponent of each curve, and all of them as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from growth import Curve

from tables import table

_COLORS = ("#0b6e99", "#2e8b57", "#c0392b", "#8a8f98")


def curve_text(curve: Curve) -> list[str]:
    """The paragraphs on one curve."""
    rows = [(f"{point.size:,.0f}", f"{point.cost:,.4g}") for point in curve.points]
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
