"""The figures of the crash runs: one row a run, printed as tables, and kept in the page about guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Table:
    """A table of the page: the marks it stands between, and its head."""

    mark: str
    head: tuple[str, ...]

    @property
    def begin(self) -> str:
        return f"<!-- {self.mark}:begin -->"

    @property
    def end(self) -> str:
        return f"<!-- {self.mark}:end -->"

    def of(self, rows: Iterable[str]) -> str:
        return "\n".join([_line(self.head), "|---" * len(self.head) + "|", *rows])


@dataclass(frozen=True)
class Figures:
    """One run: how often something was killed, what that did, and how long it took."""

    table: ClassVar[Table] = Table(
        "crash-runs", ("run", "kills", "rows", "lost", "twice", "last recovery and drain", "in all")
    )
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


@dataclass(frozen=True)
class HostFigures:
    """One run between hosts: what was wrong with their links, and how soon a batch was committed afterwards."""

    table: ClassVar[Table] = Table(
        "host-runs", ("fault", "batches meanwhile", "first commit after it", "rows", "lost", "twice")
    )
    run: str
    meanwhile: int
    first: float | None
    """None where the run was done before."""
    rows: int
    lost: int
    twice: int

    def cells(self) -> tuple[str, ...]:
        first = "done before" if self.first is None else f"{self.first:.1f} s"
        return f"`{self.run}`", str(self.meanwhile), first, f"{self.rows:,}", str(self.lost), str(self.twice)


TABLES = (Figures.table, HostFigures.table)


def lines(table: Table, figures: Iterable[Figures | HostFigures]) -> list[str]:
    return [_line(one.cells()) for one in figures if one.table == table]


def update(page: Path, table: Table, figures: Iterable[Figures | HostFigures], known: Callable[[str], bool]) -> None:
    """Put the figures into the page; those of runs that were not made this time stay, while the run is `known`."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(table.begin)
    old, _, after = rest.partition(table.end)
    kept = {_run(line): line for line in old.splitlines() if line.startswith("| `") and known(_run(line))}
    kept |= {_run(line): line for line in lines(table, figures)}
    rows = table.of(kept[name] for name in sorted(kept))
    page.write_text(f"{before}{table.begin}\n{rows}\n{table.end}{after}", encoding="utf-8")


def _run(line: str) -> str:
    return line.split("`")[1]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
