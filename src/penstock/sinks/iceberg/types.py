"""Arrow types as Iceberg's, and rows as files that carry a table's field ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

_FIELD_ID = b"PARQUET:field_id"


def to_iceberg(schema: pa.Schema) -> Schema:
    """The columns as an Iceberg schema: all may be null, the ids are provisional."""
    ids = iter(range(1, 1_000_000))
    return Schema(*_fields(list(schema), ids))


def has_type(kind: pa.DataType) -> bool:
    """Whether Iceberg has a plain type."""
    return _primitive(kind) is not None


def with_ids(schema: pa.Schema, held: StructType) -> pa.Schema:
    """The columns as a file of the table has them: with its field ids, required as there, small integers widened."""
    return pa.schema([_with_id(field, held) for field in schema])


def as_held(names: Sequence[str], held: Schema) -> pa.Schema:
    """These columns as the table has them, for a reader that is to fill in what rows lack."""
    arrow = schema_to_pyarrow(held, include_field_ids=False)
    return pa.schema([arrow.field(name) for name in names])


def iceberg_type(kind: pa.DataType) -> IcebergType:
    """One type as Iceberg's."""
    return to_iceberg(pa.schema([pa.field("_", kind)])).fields[0].field_type


def _fields(fields: list[pa.Field], ids: Iterator[int]) -> list[NestedField]:
    return [
        NestedField(next(ids), field.name, _type(field.type, ids), required=False)  # numbered before what is inside
        for field in fields
    ]


def _type(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    if types.is_struct(kind):
        return StructType(*_fields(list(kind), ids))
    if types.is_list(kind) or types.is_large_list(kind):
        number = next(ids)
        return ListType(number, _type(kind.value_type, ids), element_required=False)
    if types.is_map(kind):
        key, value = next(ids), next(ids)
        return MapType(key, _type(kind.key_type, ids), value, _type(kind.item_type, ids), value_required=False)
    found = _primitive(kind)
    if found is None:
        raise ValueError(f"Iceberg has no type for {kind}")
    return found


def _primitive(kind: pa.DataType) -> IcebergType | None:
    if types.is_timestamp(kind):
        if kind.unit != "us" or kind.tz not in (None, "UTC"):
            return None
        return TimestamptzType() if kind.tz else TimestampType()
    if types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if types.is_signed_integer(kind):
        return LongType() if kind.bit_width == 64 else IntegerType()
    for fits, made in (
        (types.is_float32, FloatType),
        (types.is_float64, DoubleType),
        (types.is_boolean, BooleanType),
        (types.is_string, StringType),
        (types.is_large_string, StringType),
        (types.is_binary, BinaryType),
        (types.is_large_binary, BinaryType),
        (types.is_date32, DateType),
    ):
        if fits(kind):
            return made()
    return None


def _with_id(field: pa.Field, held: StructType) -> pa.Field:
    its = next(known for known in held.fields if known.name == field.name)
    return _numbered(field.name, field.type, field.nullable or its.optional, its.field_id, its.field_type)


def _numbered(name: str, kind: pa.DataType, nullable: bool, number: int, held: IcebergType) -> pa.Field:
    if isinstance(held, StructType):
        kind = pa.struct([_with_id(inner, held) for inner in kind])
    elif isinstance(held, ListType):
        inner = kind.value_field
        nulls = inner.nullable or not held.element_required
        element = _numbered(inner.name, inner.type, nulls, held.element_id, held.element_type)
        kind = pa.large_list(element) if types.is_large_list(kind) else pa.list_(element)
    elif isinstance(held, MapType):
        key = _numbered("key", kind.key_type, False, held.key_id, held.key_type)
        nulls = kind.item_field.nullable or not held.value_required
        kind = pa.map_(key, _numbered("value", kind.item_type, nulls, held.value_id, held.value_type))
    elif types.is_signed_integer(kind) and kind.bit_width < 32:
        kind = pa.int32()
    return pa.field(name, kind, nullable, metadata={_FIELD_ID: str(number).encode()})
