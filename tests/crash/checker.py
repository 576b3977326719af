"""Nothing lost, nothing twice, by coordinates: the check that the crash runs rely on, and which is itself tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Coordinates = tuple[str, int, int]


@dataclass(frozen=True)
class Verdict:
    """What differs from one row a record."""

    rows: int
    lost: list[Coordinates] = field(repr=False)
    twice: list[Coordinates] = field(repr=False)
    unknown: list[Coordinates] = field(repr=False)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.twice or self.unknown)


def check(found: Iterable[Coordinates], sent: Mapping[tuple[str, int], int]) -> Verdict:
    """`sent` gives the number of records, without holes, of each topic partition."""
    counts = Counter(found)
    expected = {(topic, p, offset) for (topic, p), end in sent.items() for offset in range(end)}
    return Verdict(
        rows=sum(counts.values()),
        lost=sorted(expected - counts.keys()),
        twice=sorted(at for at, number in counts.items() if number > 1),
        unknown=sorted(counts.keys() - expected),
    )


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
