"""What part of a table a batch can touch: bounds of some columns, collected in tasks, as a predicate for a MERGE.

Exact, or absent: a column that cannot be bounded with certainty gets no predicate, since a row that a MERGE does not
see is inserted a second time. Bounds are literals of the column's own type: Delta skips files by the analysed
condition, and a cast around a literal would make it read them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.model.stored_manifests import stored_as
from penstock.sinks.arrow_types import is_text
from penstock.sinks.spark_sql import literal as text_literal

Literal = Callable[[pa.DataType, Any], str | None]
"""A value as SQL of exactly this type, or none where there is none to trust."""

FEW = 100
_LONGEST_TEXT = 1_000
_SUFFIXES = {8: "Y", 16: "S", 32: "", 64: "L"}


@stored_as("delta bounds")
@dataclass(frozen=True, slots=True)
class Touched:
    """The values of one column in the staged rows, nulls left out; `values` are all of them while they are few."""

    column: str
    low: Any
    high: Any
    values: frozenset[Any] | None


class BoundsCollector:
    """Collects the bounds of one column, batch by batch, and its distinct values where they are to be `listed`."""

    def __init__(self, column: str, *, listed: bool) -> None:
        self._column = column
        self._low: Any = None
        self._high: Any = None
        self._values: frozenset[Any] | None = frozenset() if listed else None
        self._known = True

    def add(self, rows: pa.RecordBatch, unknown: pa.Array | None = None) -> None:
        """Take in some rows. A null where `unknown` is true is an unknown value: the column then has no bounds."""
        if not self._known or not rows.num_rows:
            return
        if self._column not in rows.schema.names or not _is_ordered(rows.schema.field(self._column).type):
            self._known = False
            return
        values = rows.column(self._column)
        if values.null_count and unknown is not None and pc.any(pc.and_(pc.is_null(values), unknown)).as_py():
            self._known = False
            return
        try:
            self._take(values)
        except (OverflowError, ValueError):  # a time that Python has no value for
            self._known = False

    def bounds(self) -> Touched | None:
        """The bounds; none where the column has none that can be trusted."""
        if not self._known or self._low is None:
            return None
        return Touched(self._column, self._low, self._high, self._values)

    def _take(self, values: pa.Array) -> None:
        bounds = pc.min_max(values)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is None:
            return
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)
        if self._values is not None:
            distinct = pc.unique(values).drop_null()
            self._values = _few(self._values.union(distinct.slice(0, FEW + 1).to_pylist()))


def joint_bounds(parts: Sequence[Iterable[Touched]]) -> dict[str, Touched]:
    """The columns that every part knows, each with the values of all parts."""
    by_column = [{touched.column: touched for touched in part} for part in parts]
    found: dict[str, Touched] = {}
    for column in by_column[0] if by_column else ():
        if all(column in part for part in by_column):
            first, *others = (part[column] for part in by_column)
            for other in others:
                first = _both(first, other)
            found[column] = first
    return found


def predicate(name: str, kind: pa.DataType, touched: Touched, literal: Literal) -> str | None:
    """The predicate that `name`, of type `kind`, has a touched value: one of a list, or between the bounds."""
    if touched.values is not None:
        texts = [literal(kind, value) for value in sorted(touched.values)]
        if None not in texts:
            return f"{name} IN ({', '.join(str(text) for text in texts)})"
    low, high = literal(kind, touched.low), literal(kind, touched.high)
    return None if low is None or high is None else f"{name} >= {low} AND {name} <= {high}"


def spark_literal(kind: pa.DataType, value: Any) -> str | None:
    """A value as a Spark SQL literal of exactly this type, or none where there is none to trust."""
    if types.is_signed_integer(kind):
        return f"{value}{_SUFFIXES[kind.bit_width]}"
    if types.is_date32(kind) and isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if types.is_timestamp(kind) and isinstance(value, datetime):
        moment = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return f"TIMESTAMP_LTZ '{moment}Z'" if kind.tz else f"TIMESTAMP_NTZ '{moment}'"
    if is_text(kind) and isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        return text_literal(value)
    return None


def _both(one: Touched, other: Touched) -> Touched:
    values = None if one.values is None or other.values is None else _few(one.values | other.values)
    return Touched(one.column, min(one.low, other.low), max(one.high, other.high), values)


def _few(values: frozenset[Any]) -> frozenset[Any] | None:
    return values if len(values) <= FEW else None


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether Arrow, Python and Spark put values of this type in the same order."""
    # Python orders text by code points, which is the order of the UTF-8 bytes.
    return bool(
        types.is_signed_integer(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"))
        or is_text(kind)
    )
