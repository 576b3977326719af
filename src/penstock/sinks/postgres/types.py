"""Arrow's types in PostgreSQL: what a new table is given, what a table that is there may have, and how rows are staged.

A staging column is wide: whatever the table may refuse (a smaller integer, `varchar(n)`, a domain's check) has to
fail at the INSERT, where the row can be found, and not in the COPY. What would be lost in silence (the scale of a
`numeric`, the precision of a timestamp) is refused when the table is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as types

from penstock.postgres import quote

_SIZES = ("smallint", "integer", "bigint")
_INTEGERS = ("int2", "int4", "int8", "numeric")
_TEXTS = ("text", "varchar", "bpchar", "citext")
_READ_FROM_TEXT = ("json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8", "interval")
_TIMESTAMPS = ("timestamp", "timestamptz")
_MICROSECONDS = (-1, 6)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table that is there; of a domain, its base type."""

    name: str
    declared: str
    type_name: str
    type_schema: str
    is_enum: bool
    modifier: int
    not_null: bool
    has_default: bool
    generated: bool

    @property
    def base_type(self) -> str:
        """The type without length or scale: a cast to it refuses and never cuts."""
        return f"{quote(self.type_schema)}.{quote(self.type_name)}"

    @property
    def scale(self) -> int | None:
        """Digits behind the point of a `numeric`; none where it takes any number of them."""
        return None if self.modifier < 0 else (((self.modifier - 4) & 0x7FF) ^ 1024) - 1024


def new_column_type(kind: pa.DataType) -> str | None:
    """The type that a new table has for a column, or none where PostgreSQL has nothing for it."""
    if types.is_integer(kind):
        return _integer(kind)
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return staged_type(kind) if kind.unit != "ns" and kind.tz in (None, "UTC") else None
    return staged_type(kind)


def declared(field: pa.Field) -> str:
    """A new column in a statement."""
    return f"{quote(field.name)} {new_column_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def staged_type(kind: pa.DataType, column: TableColumn | None = None) -> str | None:
    """The type of a staging column: it holds every value that `sinks.postgres.text` lets through."""
    if is_nested(kind):
        return "json" if column is not None and column.type_name == "json" else "jsonb"
    if is_text(kind):
        # Keys are compared as the table compares them: `uuid` and `citext` in any case, `char(n)` without blanks.
        return column.base_type if column is not None and column.type_name in ("uuid", "bpchar", "citext") else "text"
    if types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    for test, name in (
        (types.is_uint64, "numeric"),
        (types.is_integer, "bigint"),
        (types.is_float32, "real"),
        (types.is_float64, "double precision"),
        (types.is_decimal, "numeric"),
        (types.is_boolean, "boolean"),
        (types.is_date32, "date"),
        (is_bytes, "bytea"),
    ):
        if test(kind):
            return name
    return None


def fits(kind: pa.DataType, column: TableColumn) -> bool:
    """Whether every value of the column can go there whole, or is refused."""
    name = column.type_name
    if is_text(kind):
        return name in _TEXTS or name == "uuid" or is_cast(kind, column)
    if types.is_decimal(kind):
        return name == "numeric" and (column.scale is None or column.scale >= kind.scale)
    if types.is_timestamp(kind):
        return name == _TIMESTAMPS[bool(kind.tz)] and column.modifier in _MICROSECONDS
    if types.is_uint64(kind):
        return name in ("int8", "numeric")
    if types.is_integer(kind):
        return name in _INTEGERS
    if is_nested(kind):
        return name in ("jsonb", "json")
    for test, names in (
        (types.is_float32, ("float4", "float8")),
        (types.is_float64, ("float8",)),
        (types.is_boolean, ("bool",)),
        (types.is_date32, ("date",)),
        (is_bytes, ("bytea",)),
    ):
        if test(kind):
            return name in names
    return False


def widened_type(kind: pa.DataType, column: TableColumn) -> str | None:
    """The type that a column is to have so that it holds every value of the rows and its own; none where it does.

    Only of a column whose type is plain: a domain is somebody's rule, and stays.
    """
    now = column.declared
    if types.is_integer(kind) and now in _SIZES:
        wanted = _integer(kind)
        return wanted if wanted in _SIZES and _SIZES.index(wanted) > _SIZES.index(now) else None
    if types.is_float64(kind) and now == "real":
        return "double precision"
    if is_text(kind) and now.startswith("character varying("):
        return "text"
    if types.is_decimal(kind) and now.startswith("numeric(") and column.scale is not None:
        precision, scale = ((column.modifier - 4) >> 16) & 0xFFFF, max(column.scale, kind.scale)
        digits = max(precision - column.scale, kind.precision - kind.scale)
        return None if (digits + scale, scale) == (precision, column.scale) else f"numeric({digits + scale},{scale})"
    return None


def is_cast(kind: pa.DataType, column: TableColumn) -> bool:
    """Whether the staged value is text that the table's type reads at the INSERT."""
    return is_text(kind) and (column.is_enum or column.type_name in _READ_FROM_TEXT)


def can_be_key(kind: pa.DataType, column: TableColumn | None) -> bool:
    """Whether equal keys are equal as they are staged, too. Two texts may be one `inet`."""
    if is_nested(kind):
        return False
    return column is None or not is_cast(kind, column) or column.is_enum


def is_text(kind: pa.DataType) -> bool:
    """Whether it is a string that COPY can take: Arrow writes no CSV of views."""
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether it is binary that COPY can take."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def is_nested(kind: pa.DataType) -> bool:
    """Whether it becomes JSON."""
    return bool(types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind))


def _integer(kind: pa.DataType) -> str:
    if types.is_uint64(kind):
        return "numeric(20,0)"
    bits = kind.bit_width * 2 if types.is_unsigned_integer(kind) else kind.bit_width
    return "smallint" if bits <= 16 else "integer" if bits == 32 else "bigint"
