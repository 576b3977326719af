"""Arrow's many spellings of a type, brought to the one that decoders give, as Spark would read the same files."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.types as types

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_MOST_DIGITS = 38


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns in plain types, without metadata."""
    return pa.schema([pa.field(field.name, plain_type(field.type), field.nullable) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that decoders give for such values."""
    if _is_uuid(kind):
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_date64(kind):
        return pa.date32()
    if types.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type), field.nullable) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if _is_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type), kind.value_field.nullable))
    return _UNSIGNED.get(kind, kind)


def to_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, which is plain, out of a batch that has them in any spelling."""
    return pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field.type) for field in schema], schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if _is_uuid(column.type) and kind == pa.string():
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        return pa.array([value and str(uuid.UUID(bytes=value)) for value in stored.to_pylist()], kind)
    if isinstance(column, pa.ExtensionArray):
        return _cast(column.storage, kind)
    # Only the parts of a microsecond are lost: Spark has none.
    return column.cast(kind, safe=not types.is_timestamp(kind))


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
