"""Compares actual rows with expected rows.

An expected row only checks the columns that it names; the same applies to the fields of a struct. Numbers are compared
by value, and a FLOAT by the digits that it can hold. Decimals, times, dates and binary are written as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.model import COMPUTED, COORDINATES, DELETES

Row = Mapping[str, Any]
Kind = Literal["same", "differs", "missing", "unexpected"]


class MapValue(dict[str, Any]):
    """The value of a MAP column: unlike a struct it is compared whole."""


@dataclass(frozen=True)
class RowDiff:
    """An expected row and the actual row it was compared with; one of them may be missing."""

    expected: Row | None
    seen: Row | None
    columns: tuple[str, ...] = ()
    """The columns in which they differ."""

    @property
    def kind(self) -> Kind:
        """How the two rows compare."""
        if self.expected is None:
            return "unexpected"
        if self.seen is None:
            return "missing"
        return "differs" if self.columns else "same"


@dataclass(frozen=True)
class TableDiff:
    """The rows of one sink, or of the quarantine, expected against seen."""

    name: str
    rows: tuple[RowDiff, ...]
    ordered: bool = False

    @property
    def passed(self) -> bool:
        """Whether all is as expected."""
        return all(row.kind == "same" for row in self.rows)

    def count(self, kind: Kind) -> int:
        """How many rows compare like that."""
        return sum(row.kind == kind for row in self.rows)


def compare(
    name: str, expected: Sequence[Row], seen: Sequence[Row], *, ordered: bool = False, exact: bool = False
) -> TableDiff:
    """Compare rows. Unordered, each expected row is matched with an actual row, if possible for all."""
    if ordered:
        both = min(len(expected), len(seen))
        found = [RowDiff(e, s, _differing(e, s, exact)) for e, s in zip(expected, seen, strict=False)]
        found += [RowDiff(row, None) for row in expected[both:]] + [RowDiff(None, row) for row in seen[both:]]
        return TableDiff(name, tuple(found), ordered=True)
    partner = _assigned(expected, seen, exact)
    left = [at for at in range(len(seen)) if at not in partner.values()]
    wanting = [at for at in range(len(expected)) if at not in partner]
    for at, other in _nearest(expected, seen, wanting, left).items():
        partner[at] = other
        left.remove(other)
    found = []
    for at, row in enumerate(expected):
        near = seen[partner[at]] if at in partner else None
        found.append(RowDiff(row, near, _differing(row, near, exact) if near is not None else ()))
    return TableDiff(name, (*found, *(RowDiff(None, seen[at]) for at in left)))


def _assigned(expected: Sequence[Row], seen: Sequence[Row], exact: bool) -> dict[int, int]:
    """The largest assignment of expected rows to seen rows that fit them, by augmenting paths."""
    fitting = [[at for at, row in enumerate(seen) if not _differing(want, row, exact)] for want in expected]
    taken: dict[int, int] = {}

    def place(at: int, tried: set[int]) -> bool:
        for candidate in fitting[at]:
            if candidate not in tried:
                tried.add(candidate)
                if candidate not in taken or place(taken[candidate], tried):
                    taken[candidate] = at
                    return True
        return False

    for at in range(len(expected)):
        place(at, set())
    return {at: candidate for candidate, at in taken.items()}


def _nearest(
    expected: Sequence[Row], seen: Sequence[Row], wanting: Iterable[int], left: Sequence[int]
) -> dict[int, int]:
    """Pairs of rows that share some cells, the most similar first, to show which cell is wrong."""
    scored = [
        (len(expected[e]) - len(_differing(expected[e], seen[s], exact=False)), e, s) for e in wanting for s in left
    ]
    pairs: dict[int, int] = {}
    for score, e, s in sorted(scored, key=lambda one: (-one[0], one[1], one[2])):
        if score > 0 and e not in pairs and s not in pairs.values():
            pairs[e] = s
    return pairs


def _differing(expected: Row, seen: Row, exact: bool) -> tuple[str, ...]:
    off = [name for name, value in expected.items() if name not in seen or not matches(value, seen[name], exact)]
    if exact:
        off += [name for name in shown_columns(seen) if name not in expected]
    return tuple(off)


def shown_columns(row: Row) -> list[str]:
    """The columns to compare by default: all but Penstock's own, and a mark for a delete."""
    own = [name for name in row if name != COORDINATES and not name.startswith(COMPUTED)]
    return [*own, *([DELETES] if row.get(DELETES) else [])]


def matches(expected: Any, seen: Any, exact: bool = False) -> bool:
    """Whether a seen value is the expected one."""
    match seen:
        case None | bool():
            return expected is seen
        case int() | float():
            return _same_number(expected, seen)
        case Decimal():
            return not isinstance(expected, bool) and _decimal(expected) == seen
        case datetime():
            return _time(expected, seen) == seen
        case date():
            return bool(expected == seen.isoformat())
        case bytes():
            return _binary(expected) == seen
        case MapValue():
            return isinstance(expected, dict) and expected.keys() == seen.keys() and _all_match(expected, seen, exact)
        case dict():
            named = isinstance(expected, dict) and (
                expected.keys() == seen.keys() if exact else expected.keys() <= seen.keys()
            )
            return named and _all_match(expected, seen, exact)
        case list():
            pairs = zip(expected, seen, strict=False) if isinstance(expected, list) else ()
            return isinstance(expected, list) and len(expected) == len(seen) and all(matches(*p, exact) for p in pairs)
    return bool(expected == seen)


def _all_match(expected: Mapping[str, Any], seen: Mapping[str, Any], exact: bool) -> bool:
    return all(matches(value, seen[name], exact) for name, value in expected.items())


def _same_number(expected: Any, seen: float) -> bool:
    if isinstance(seen, float) and not math.isfinite(seen):
        return bool(expected == to_plain(seen))
    return isinstance(expected, int | float) and not isinstance(expected, bool) and expected == seen


def _decimal(text: Any) -> Decimal | None:
    try:
        return Decimal(str(text))
    except InvalidOperation:
        return None


def _time(text: Any, seen: datetime) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    if seen.tzinfo is not None and time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time if (seen.tzinfo is None) == (time.tzinfo is None) else None


def _binary(text: Any) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except ValueError:
        return text.encode()


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as Python values that `matches` and `to_plain` know."""
    types = {field.name: field.type for field in table.schema}
    return [{name: _value(row[name], types[name]) for name in types} for row in table.to_pylist()]


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return MapValue({str(to_plain(k)): _value(v, kind.item_type) for k, v in value})
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(item, kind.value_type) for item in value]
    # Widened to 64 bits, 0.1 would be 0.10000000149.
    return float(str(np.float32(value))) if pa.types.is_float32(kind) else value


def to_plain(value: Any) -> Any:
    """A seen value as the case file writes it."""
    match value:
        case bool() | None:
            return value
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes():
            return _text_or_hex(value)
        case dict():
            return {name: to_plain(inner) for name, inner in value.items()}
        case list():
            return [to_plain(inner) for inner in value]
    return value


def _text_or_hex(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() and not text.startswith("0x") else f"0x{value.hex()}"
