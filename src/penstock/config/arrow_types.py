"""Column types to Arrow and back. Kept apart so that only who needs Arrow pays for importing it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.config.ddl import SIMPLE, Column, ColumnType, read_columns, read_type

SQL_NAMES: Mapping[pa.DataType, str] = {
    **{getattr(pa, maker)(): name for name, maker in SIMPLE.items()},
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}
"""The Arrow types of columns that have no parts, and what Spark SQL calls them."""


def parse_columns(text: str) -> pa.Schema:
    """The Arrow schema of a columns text. Raises `ColumnsError`."""
    return pa.schema([_arrow_field(column) for column in read_columns(text)])


def parse_type(text: str) -> pa.DataType:
    """The Arrow type of a Spark SQL type. Raises `ColumnsError`."""
    return arrow_type(read_type(text))


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """The Arrow type of a column type."""
    match column_type.name:
        case "DECIMAL":
            return pa.decimal128(column_type.precision, column_type.scale)
        case "TIMESTAMP":
            return pa.timestamp("us", tz="UTC")
        case "TIMESTAMP_NTZ":
            return pa.timestamp("us")
        case "ARRAY":
            return pa.list_(pa.field("element", arrow_type(column_type.items[0])))
        case "MAP":
            key, value = column_type.items
            return pa.map_(arrow_type(key), arrow_type(value))
        case "STRUCT":
            return pa.struct([_arrow_field(field) for field in column_type.fields])
        case name:
            return getattr(pa, SIMPLE[name])()


def arrow_to_ddl(arrow: pa.DataType) -> str:
    """An Arrow type as Spark SQL writes it, for messages."""
    types = pa.types
    if types.is_decimal(arrow):
        return f"DECIMAL({arrow.precision}, {arrow.scale})"
    if types.is_timestamp(arrow):
        return "TIMESTAMP" if arrow.tz else "TIMESTAMP_NTZ"
    if types.is_map(arrow):
        return f"MAP<{arrow_to_ddl(arrow.key_type)}, {arrow_to_ddl(arrow.item_type)}>"
    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        return f"ARRAY<{arrow_to_ddl(arrow.value_type)}>"
    if types.is_struct(arrow):
        fields = (f"{f.name}: {arrow_to_ddl(f.type)}" + ("" if f.nullable else " NOT NULL") for f in arrow)
        return f"STRUCT<{', '.join(fields)}>"
    if types.is_large_string(arrow) or types.is_string_view(arrow):
        return "STRING"
    if types.is_large_binary(arrow) or types.is_binary_view(arrow):
        return "BINARY"
    return SQL_NAMES.get(arrow) or str(arrow).upper()


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of an Arrow schema; as Spark SQL knows them."""
    return tuple(Column(field.name, read_type(arrow_to_ddl(field.type)), field.nullable) for field in schema)


def _arrow_field(column: Column) -> pa.Field:
    metadata = {"comment": column.comment} if column.comment else None
    return pa.field(column.name, arrow_type(column.type), nullable=column.nullable, metadata=metadata)
