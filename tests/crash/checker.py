"""Nothing lost, nothing twice, nothing out of order: the checks that the crash runs rely on, themselves tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

Coordinates = tuple[str, int, int]


@dataclass(frozen=True)
class Verdict:
    """What differs from one row for each that is expected."""

    rows: int
    lost: list[Any] = field(repr=False)
    twice: list[Any] = field(repr=False)
    unknown: list[Any] = field(repr=False)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.twice or self.unknown)

    def __str__(self) -> str:
        parts = {"lost": self.lost, "twice": self.twice, "unknown": self.unknown}
        told = ", ".join(f"{len(items)} {name} {items[:5] or ''}".rstrip() for name, items in parts.items())
        return f"{self.rows} rows: {told}"


def compare(found: Iterable[Any], expected: Set[Any]) -> Verdict:
    """Hold what a reader found against what has to be there, each once."""
    counts = Counter(found)
    return Verdict(
        rows=sum(counts.values()),
        lost=sorted(expected - counts.keys()),
        twice=sorted(item for item, number in counts.items() if number > 1),
        unknown=sorted(counts.keys() - expected),
    )


def check(found: Iterable[Coordinates], sent: Mapping[tuple[str, int], int]) -> Verdict:
    """`sent` gives the number of records, without holes, of each topic partition."""
    return compare(found, {(topic, p, offset) for (topic, p), end in sent.items() for offset in range(end)})


def out_of_order(records: Iterable[tuple[bytes | None, int, Coordinates]]) -> list[bytes]:
    """The keys whose records do not lie in one partition in the order of their source.

    A record is its key, its partition and the coordinates that it came from, in the order in which it was read. A
    key of the events is in one source partition alone; records without a key have no order.
    """
    last: dict[bytes, tuple[int, int]] = {}
    wrong: set[bytes] = set()
    for key, partition, (_, _, offset) in records:
        if key is None:
            continue
        before = last.get(key)
        if before is not None and (before[0] != partition or before[1] >= offset):
            wrong.add(key)
        last[key] = (partition, offset)
    return sorted(wrong)


def ranges_in_order(history: Iterable[tuple[int, Mapping[tuple[str, int], tuple[int, int]]]]) -> bool:
    """Whether each batch begins where the one before it ended, with no batch twice."""
    last: dict[tuple[str, int], int] = {}
    batches = sorted(history, key=lambda entry: entry[0])
    if [number for number, _ in batches] != list(range(len(batches))):
        return False
    for _, ranges in batches:
        for at, (start, end) in ranges.items():
            if start != last.get(at, 0):
                return False
            last[at] = end
    return True
