"""The columns that leave a step, in order: the one place for each kind of step.

Columns are names, each with a value that only the caller interprets: a type while a file is checked, an
Arrow field for a plan, an array where rows flow, or a piece of SQL. Loading a file therefore needs no Arrow, whose
import would nearly double its time (0.4 s to 0.7 s of CPU), and still checks the very columns that the steps give.

Nothing is refused here. Names are found without regard to case, as Spark finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.config.fields import COORDINATES

T = TypeVar("T")
Columns = Iterable[tuple[str, T]]


def computed(columns: Columns[T], made: Columns[T]) -> list[tuple[str, T]]:
    """`derive`, `cast`, `expect`: what is made takes the place of the column of its name, or is added."""
    new = {name.lower(): (name, one) for name, one in made}
    kept = [new.pop(name.lower(), (name, one)) for name, one in columns]
    return added(kept, new.values())


def added(columns: Columns[T], made: Columns[T]) -> list[tuple[str, T]]:
    """`enrich`: what is made comes after the others, before the coordinates."""
    kept = list(columns)
    end = len(kept) - (bool(kept) and kept[-1][0] == COORDINATES)
    return [*kept[:end], *made, *kept[end:]]


def renamed(columns: Columns[T], names: Mapping[str, str]) -> list[tuple[str, T]]:
    """`rename`: all at once, so that two may swap their names."""
    new = {old.lower(): name for old, name in names.items()}
    return [(new.get(name.lower(), name), one) for name, one in columns]


def without(columns: Columns[T], names: Iterable[str]) -> list[tuple[str, T]]:
    """`drop`."""
    gone = {name.lower() for name in names}
    return [(name, one) for name, one in columns if name.lower() not in gone]


def exploded(
    columns: Columns[T], column: str, elements: Sequence[T], place: T, into: str | None, position: str | None
) -> list[tuple[str, T]]:
    """`explode`: `elements` are those of an array, or the keys and the values of a map; `place` counts them."""
    into = into or column
    names = [into] if len(elements) == 1 else [f"{into}_key", f"{into}_value"]
    made = [*([(position, place)] if position is not None else []), *zip(names, elements, strict=True)]
    return [new for name, one in columns for new in (made if name == column else [(name, one)])]


def flattened(
    columns: Columns[T],
    fields: Callable[[T], Columns[T] | None],
    chosen: Collection[str] | None = None,
    depth: int | None = None,
) -> list[tuple[tuple[str, ...], T]]:
    """`flatten`: each leaf with its path. `fields` gives those of a struct, None for anything else."""
    wanted = None if chosen is None else {name.lower() for name in chosen}

    def leaves(path: tuple[str, ...], one: T, levels: int | None) -> Iterable[tuple[tuple[str, ...], T]]:
        inner = fields(one) if levels != 0 else None
        if inner is None:
            yield path, one
            return
        for name, field in inner:
            yield from leaves((*path, name), field, None if levels is None else levels - 1)

    found: list[tuple[tuple[str, ...], T]] = []
    for name, one in columns:
        stays = name == COORDINATES or (wanted is not None and name.lower() not in wanted)
        found += leaves((name,), one, 0 if stays else depth)
    return found


def windowed(start: T, end: T, by: Columns[T], aggregates: Columns[T]) -> list[tuple[str, T]]:
    """`window`, without the coordinates."""
    return [("window_start", start), ("window_end", end), *by, *aggregates]


def joined(left: Columns[T], right: Columns[T], on: Mapping[str, str]) -> list[tuple[str, T]]:
    """`join`, without the coordinates: a key that has one name on both sides is there once."""
    shared = [one for one, other in on.items() if one == other]
    return [*without(left, [COORDINATES]), *without(right, [COORDINATES, *shared])]
