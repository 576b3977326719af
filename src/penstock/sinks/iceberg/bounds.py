"""What a batch can touch in a table: bounds of its keys, collected while it is staged, as conditions for the MERGE.

Exact: a condition is given only for types that Arrow and Spark order alike, and left out where it could miss a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.model import DELETES
from penstock.model.stored_manifests import stored_as
from penstock.sinks.arrow_types import is_text
from penstock.sinks.spark_sql import literal, quoted

FEW = 100
"""The maximum number of distinct values that are listed."""


@stored_as("iceberg bounds")
@dataclass(frozen=True, slots=True)
class Bounds:
    """The values of one column in some rows, nulls left out. `values` is none where they are many."""

    kind: str
    low: Any
    high: Any
    values: frozenset[Any] | None

    def joined(self, other: Bounds) -> Bounds:
        """The bounds of both."""
        lows = [b.low for b in (self, other) if b.low is not None]
        highs = [b.high for b in (self, other) if b.high is not None]
        values = None if self.values is None or other.values is None else self.values | other.values
        return Bounds(
            self.kind,
            min(lows, default=None),
            max(highs, default=None),
            values if values is None or len(values) <= FEW else None,
        )

    def condition(self, column: str) -> str:
        """What a value of the target fulfils if it is one of these."""
        if self.low is None:
            return "false"
        if self.values:
            return f"{column} IN ({', '.join(_literal(self.kind, value) for value in sorted(self.values))})"
        return f"{column} BETWEEN {_literal(self.kind, self.low)} AND {_literal(self.kind, self.high)}"


def bounds_of(rows: pa.RecordBatch, name: str) -> Bounds | None:
    """The bounds of a column, if it exists, its type allows them and no delete leaves its value out."""
    column = rows.column(name) if name in rows.schema.names else None
    kind = _kind(column.type) if column is not None else None
    if column is None or kind is None:
        return None
    if column.null_count and DELETES in rows.schema.names:
        unknown = pc.and_kleene(pc.is_null(column), rows.column(DELETES))
        if pc.any(unknown).as_py():
            return None
    if kind in ("timestamp", "timestamp_ntz"):
        column = column.cast(pa.int64())  # years beyond 9999 have no Python value
    elif kind == "date":
        column = column.cast(pa.int32())
    ends, distinct = pc.min_max(column), pc.unique(column)
    few = len(distinct) <= FEW
    values = frozenset(value for value in distinct.to_pylist() if value is not None) if few else None
    return Bounds(kind, ends["min"].as_py(), ends["max"].as_py(), values)


def conditions(bounds: Sequence[Mapping[str, Bounds]], names: Iterable[str], target: str) -> dict[str, str]:
    """A condition for each of these columns, over all staged parts; none for one that some part cannot bound."""
    found = {}
    for name in dict.fromkeys(names):
        parts = [part[name] for part in bounds if name in part]
        if parts and len(parts) == len(bounds):
            found[name] = reduce(Bounds.joined, parts).condition(f"{target}.{quoted(name)}")
    return found


def _kind(kind: pa.DataType) -> str | None:
    if types.is_signed_integer(kind):
        return "integer"
    if types.is_date32(kind):
        return "date"
    if is_text(kind):
        return "text"
    if types.is_timestamp(kind) and kind.unit == "us":
        return "timestamp" if kind.tz else "timestamp_ntz"
    return None


def _literal(kind: str, value: Any) -> str:
    if kind == "text":
        return literal(str(value))
    if kind == "date":
        return f"date_from_unix_date({value})"
    if kind == "timestamp":
        return f"timestamp_micros({value})"
    if kind == "timestamp_ntz":
        return f"CAST(timestamp_micros({value}) AS TIMESTAMP_NTZ)"
    return str(value)
