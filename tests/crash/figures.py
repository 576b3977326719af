"""The figures of the crash runs: one row a run, printed as one table, and kept in the page about guarantees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- crash-runs:begin -->", "<!-- crash-runs:end -->"
_HEAD = ("run", "kills", "rows", "lost", "twice", "last recovery and drain", "in all")


@dataclass(frozen=True)
class Figures:
    """One run: how often something was killed, what that did, and how long it took."""

    run: str
    kills: int
    rows: int
    lost: int
    twice: int
    last: float
    in_all: float

    def cells(self) -> tuple[str, ...]:
        times = (f"{self.last:.1f} s", f"{self.in_all:.0f} s")
        return f"`{self.run}`", str(self.kills), f"{self.rows:,}", str(self.lost), str(self.twice), *times


def as_table(rows: Iterable[str]) -> str:
    return "\n".join([_line(_HEAD), "|---" * len(_HEAD) + "|", *rows])


def lines(figures: Iterable[Figures]) -> list[str]:
    return [_line(one.cells()) for one in figures]


def update(page: Path, figures: Iterable[Figures], tests: str) -> None:
    """Put the figures into the page; those of runs that were not made this time stay, while `tests` has the test."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = {_test(line): line for line in old.splitlines() if line.startswith("| `") and _known(line, tests)}
    kept |= {_test(line): line for line in lines(figures)}
    table = as_table(kept[name] for name in sorted(kept))
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def _test(line: str) -> str:
    return line.split("`")[1]


def _known(line: str, tests: str) -> bool:
    return f"def {_test(line).partition('[')[0]}(" in tests


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
