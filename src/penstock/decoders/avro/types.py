"""The columns of an Avro reader schema, as Spark's `from_avro` names them, and its defaults as values.

| Avro | column |
|---|---|
| boolean, int, long, float, double | BOOLEAN, INT, BIGINT, FLOAT, DOUBLE |
| string, string (uuid), enum | STRING |
| bytes, fixed, fixed (duration, uuid) | BINARY |
| decimal, of bytes or fixed | DECIMAL, of at most 38 digits |
| int (date) | DATE |
| int (time-millis), long (time-micros) | INT, BIGINT: the number as it is |
| long (timestamp-millis, -micros) | TIMESTAMP |
| long (local-timestamp-millis, -micros) | TIMESTAMP_NTZ |
| long (timestamp-nanos, local-timestamp-nanos) | BIGINT: the number as it is |
| record, array, map | STRUCT, ARRAY, MAP<STRING, ...> |
| union with null | the other type, which may be NULL |
| union of int and long, of float and double | BIGINT, DOUBLE |
| any other union | STRUCT<member0, member1, ...>, one of which is not NULL; null is not counted |
| null, a record without fields, fixed of no bytes | left out: there is nothing to keep |

A schema that is no record becomes one column, `value`.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.decoders.avro.schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    UnsupportedSchemaError,
    describe,
)
from penstock.model import COORDINATES

VALUE = "value"

_KINDS = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_MAX_DIGITS = 38


def columns_of(reader: Node) -> pa.Schema:
    """The columns of a reader schema. Raises `UnsupportedSchemaError`."""
    if isinstance(reader, Record):
        columns = _fields(reader, "")
    else:
        kind = arrow_type(reader, VALUE)
        columns = [] if kind is None else [pa.field(VALUE, kind)]
    if not columns:
        raise UnsupportedSchemaError(f"{describe(reader)} has no values, so there is no column")
    if COORDINATES in (field.name.lower() for field in columns):
        raise UnsupportedSchemaError(f"field {COORDINATES}: the name is reserved")
    return pa.schema(columns)


def arrow_type(node: Node, path: str = "") -> pa.DataType | None:
    """The type of a reader's column; `None` where it has no values. Raises `UnsupportedSchemaError`."""
    match node:
        case Primitive(kind="null"):
            return None
        case Primitive() | Fixed() if node.logical == "decimal":
            if node.precision > _MAX_DIGITS:
                raise UnsupportedSchemaError(f"field {path}: {describe(node)} has more than {_MAX_DIGITS} digits")
            return pa.decimal128(node.precision, node.scale)
        case Primitive():
            return _LOGICAL.get(node.logical, _KINDS[node.kind])
        case Fixed():
            return pa.binary() if node.size else None
        case Enum():
            return pa.string()
        case Array():
            return pa.list_(pa.field("element", _inner(node.items, f"{path}[]")))
        case Map():
            return pa.map_(pa.string(), _inner(node.values, f"{path}{{}}"))
        case Record():
            fields = _fields(node, f"{path}.")
            return pa.struct(fields) if fields else None
        case Union():
            [*values] = union_values(node)
            if not values:
                return None
            kinds = [_inner(value, path) for value in values]
            return kinds[0] if len(kinds) == 1 else pa.struct([(member(at), kind) for at, kind in enumerate(kinds)])


def union_values(union: Union) -> tuple[Node, ...]:
    """The types of a union's columns: without null, and one where two are kept as one."""
    values = union.values
    kinds = {value.kind for value in values if isinstance(value, Primitive)}
    if len(values) == 2 and kinds in ({"int", "long"}, {"float", "double"}):
        return (Primitive("long" if "long" in kinds else "double"),)
    return values


def member(at: int) -> str:
    """The name of a union's column."""
    return f"member{at}"


def default_value(node: Node, default: str) -> Any:
    """A default as the value that Arrow takes for the column. Raises `ValueError` where it is no such value."""
    return _value(node, json.loads(default))


def _value(node: Node, given: Any) -> Any:
    match node:
        case Union():
            return _union_value(node, given)
        case Record():
            found = {}
            for field in node.fields:
                if arrow_type(field.type) is None:
                    continue
                if isinstance(given, dict) and field.name in given:
                    found[field.name] = _value(field.type, given[field.name])
                elif field.has_default:
                    found[field.name] = default_value(field.type, field.default)
                else:
                    raise ValueError(f"no value for field {field.name}")
            return found
        case Array():
            return [_value(node.items, item) for item in _of(list, given)]
        case Map():
            return [(key, _value(node.values, item)) for key, item in _of(dict, given).items()]
        case Enum():
            if given not in node.symbols:
                raise ValueError(f"no symbol of enum {node.name}")
            return given
        case Fixed():
            return _bytes_value(node, _of(str, given))
        case Primitive(kind="null"):
            if given is not None:
                raise ValueError("not null")
            return None
        case Primitive(kind="bytes"):
            return _bytes_value(node, _of(str, given))
        case Primitive(kind="string"):
            return _of(str, given)
        case Primitive(kind="boolean"):
            return _of(bool, given)
        case Primitive(kind="float" | "double"):
            return float(given)
        case Primitive():
            if isinstance(given, bool) or not isinstance(given, int):
                raise ValueError("not an integer")
            return given * 1000 if node.logical.endswith("timestamp-millis") else given


def _union_value(union: Union, given: Any) -> Any:
    if given is None and union.nullable:
        return None
    values = union_values(union)
    for at, value in enumerate(values):
        try:
            found = _value(value, given)
        except (ValueError, TypeError, ArithmeticError):
            continue
        return found if len(values) == 1 else {member(at): found}
    raise ValueError("of no type of the union")


def _bytes_value(node: Primitive | Fixed, given: str) -> Any:
    value = given.encode("latin-1")
    if isinstance(node, Fixed) and len(value) != node.size:
        raise ValueError(f"not {node.size} bytes")
    if node.logical == "decimal":
        return Decimal(int.from_bytes(value, signed=True)).scaleb(-node.scale)
    return value


def _of(kind: type, given: Any) -> Any:
    if not isinstance(given, kind):
        raise ValueError(f"not a {kind.__name__}")
    return given


def _fields(record: Record, prefix: str) -> list[pa.Field]:
    fields: dict[str, pa.Field] = {}
    for field in record.fields:
        path = f"{prefix}{field.name}"
        kind = arrow_type(field.type, path)
        if kind is None:
            continue
        if field.name.lower() in fields:
            other = fields[field.name.lower()].name
            raise UnsupportedSchemaError(
                f"field {path}: differs from {prefix}{other} by case alone, and columns do not"
            )
        fields[field.name.lower()] = pa.field(field.name, kind)
    return list(fields.values())


def _inner(node: Node, path: str) -> pa.DataType:
    kind = arrow_type(node, path)
    if kind is None:
        raise UnsupportedSchemaError(f"field {path}: {describe(node)} has no values, which no table can hold here")
    return kind
