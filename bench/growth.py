"""How a cost grows: points enter, the exponent of the power law through them leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """What one size costs."""

    size: float
    cost: float


@dataclass(frozen=True)
class Curve:
    """What the sizes of one thing cost."""

    part: str
    name: str
    size: str
    cost: str
    points: Sequence[Point]

    @property
    def exponent(self) -> float:
        """Of the power law with the least squares: 0 does not grow, 1 grows as the size does."""
        xs = [math.log(point.size) for point in self.points]
        ys = [math.log(point.cost) for point in self.points]
        x, y = sum(xs) / len(xs), sum(ys) / len(ys)
        return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)

    @property
    def growth(self) -> float:
        """The last against the first."""
        return self.points[-1].cost / self.points[0].cost
