"""A typed piece of an expression: what it evaluates to, and how Arrow computes it.

Every term gives exactly what Spark gives, or it is not made: `NoFormError` is raised instead, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
Datum = Any
"""An Arrow array or, where no column is involved, an Arrow scalar."""

_SQL_NAMES = {
    pa.null(): "VOID",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}


class NoFormError(Exception):
    """This piece has no exact Arrow form; the message says why."""


@dataclass(frozen=True, slots=True)
class Term:
    """A typed piece of an expression. `value` is set where it is a constant."""

    type: pa.DataType
    run: Callable[[pa.RecordBatch], Datum]
    value: pa.Scalar | None = None

    @property
    def is_null(self) -> bool:
        """Whether this is a NULL constant."""
        return self.value is not None and not self.value.is_valid


def constant(scalar: pa.Scalar) -> Term:
    """A term that has the same value in every row."""
    return Term(scalar.type, lambda rows: scalar, scalar)


def literal(value: object, kind: pa.DataType) -> Term:
    """A constant of a Python value, None for NULL."""
    return constant(pa.scalar(value, kind))


def call(kind: pa.DataType, function: Callable[..., Datum], *terms: Term) -> Term:
    """A term that applies an Arrow function to others. Constants are folded."""
    values = [term.value for term in terms if term.value is not None]
    if len(values) == len(terms):
        return constant(function(*values).cast(kind))
    return Term(kind, lambda rows: function(*(term.run(rows) for term in terms)))


def sql_name(kind: pa.DataType) -> str:
    """What Spark SQL calls an Arrow type."""
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _SQL_NAMES.get(kind) or str(kind).upper()


def is_plain(kind: pa.DataType) -> bool:
    """Whether values of this type can be compared and converted here: not nested, and a type of Spark's."""
    return kind in _SQL_NAMES or pa.types.is_decimal128(kind)
