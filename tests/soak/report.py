"""What a soak came to, as numbers and as a page: everything that was judged, and the verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.flat import IN_BYTES, MEGABYTE, Flatness

TOGETHER = "two at once"


@dataclass(frozen=True)
class Met:
    """One fault, or two at once: how long it was on, and how long each pipeline was without a commit from then on."""

    kind: str
    whom: str
    at: float
    """Seconds since the soak began."""
    seconds: float
    quiet: dict[str, float]
    recovered: bool


@dataclass(frozen=True)
class Held:
    """What one target held in the end."""

    pipeline: str
    sink: str
    rows: int
    lost: int
    twice: int
    unknown: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.twice or self.unknown)


@dataclass
class Report:
    """Filled as the soak goes on, so that one that is broken off has it as well."""

    seed: int
    asked_minutes: float
    minutes: float = 0.0
    rate: float = 0.0
    rows: int = 0
    batches: dict[str, int] = field(default_factory=dict)
    met: list[Met] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Faults that this machine cannot have, and why."""
    held: list[Held] = field(default_factory=list)
    curves: list[Flatness] = field(default_factory=list)
    more_handles: dict[str, list[str]] = field(default_factory=dict)
    """For each process what it held more of at the end of the judged stretch than at its beginning."""
    starts: int = 0
    """How often the driver was started."""
    again: int = 0
    """How often it asked for that itself, with 75."""
    problems: list[str] = field(default_factory=list)
    """What is wrong beside the figures."""
    finished: bool = False
    """Whether it came to its end, with every target judged."""

    @property
    def wrong(self) -> list[str]:
        """Everything that does not hold."""
        found = list(self.problems)
        found += [
            f"{one.pipeline}.{one.sink}: {one.lost} lost, {one.twice} twice, {one.unknown} unknown"
            for one in self.held
            if not one.clean
        ]
        found += [
            f"{one.kind} ({one.whom}): not every pipeline went on by itself" for one in self.met if not one.recovered
        ]
        found += [f"{one.role}: {one.measure} {_verdict(one)}" for one in self.curves if not one.flat]
        if not self.finished:
            found.append("the soak did not come to its end")
        return found

    @property
    def passed(self) -> bool:
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        """Everything, with the verdict."""
        return {"passed": self.passed, "wrong": self.wrong, **asdict(self)}

    def as_markdown(self) -> str:
        """The page."""
        batches = ", ".join(f"{count:,} of `{name}`" for name, count in self.batches.items())
        parts = [
            f"# Soak: {'passed' if self.passed else 'FAILED'}",
            *([_list(self.wrong)] if self.wrong else []),
            _table(
                ("", ""),
                [
                    ("seed", str(self.seed)),
                    ("minutes", f"{self.minutes:.1f} of {self.asked_minutes:g}"),
                    ("events", f"{self.rows:,}, about {self.rate:g} a second"),
                    ("batches", batches),
                    ("faults", f"{len(self.met)}"),
                    ("starts of the driver", f"{self.starts}, {self.again} as it asked for itself (75)"),
                ],
            ),
            "## Targets",
            _table(
                ("pipeline", "sink", "rows", "lost", "twice", "unknown"),
                [
                    (one.pipeline, one.sink, f"{one.rows:,}", str(one.lost), str(one.twice), str(one.unknown))
                    for one in self.held
                ],
            ),
            "## Faults",
            _table(("fault", "times", "longest without a commit"), self._by_kind()),
            *(["Left out:", _list(self.left_out)] if self.left_out else []),
            "## What the processes held, while they were left alive",
            _table(
                ("process", "", "first", "middle", "last", "an hour", "over", "verdict"),
                [_curve(one) for one in self.curves],
            ),
            *(f"Handles of {role}, more than at first: {', '.join(more)}" for role, more in self.more_handles.items()),
        ]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Both forms into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "soak.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        (folder / "soak.md").write_text(self.as_markdown())

    def _by_kind(self) -> list[tuple[str, ...]]:
        times = Counter(one.kind for one in self.met)
        longest = {
            kind: max((max(one.quiet.values(), default=0.0) for one in self.met if one.kind == kind), default=0.0)
            for kind in times
        }
        return [(kind, str(times[kind]), f"{longest[kind]:.0f} s") for kind in sorted(times, key=_alone_first)]


def _alone_first(kind: str) -> tuple[bool, str]:
    return kind == TOGETHER, kind


def _verdict(one: Flatness) -> str:
    if one.verdict == "too short":
        return f"cannot be judged by {one.points} samples in {one.seconds:.0f} s"
    return f"rose from {_value(one, one.first)} to {_value(one, one.last)} in {one.seconds:.0f} s"


def _curve(one: Flatness) -> tuple[str, ...]:
    values = (_value(one, value) for value in (one.first, one.middle, one.last))
    slope = f"{'+' if one.per_hour >= 0 else '-'}{_value(one, abs(one.per_hour))}"
    return one.role, one.measure, *values, slope, f"{one.seconds:.0f} s", one.verdict


def _value(one: Flatness, value: float) -> str:
    return f"{value / MEGABYTE:,.0f} MB" if one.measure in IN_BYTES else f"{value:,.0f}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_line(head), "|---" * len(head) + "|", *map(_line, rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
