"""The Avro schema of rows: what is written where nobody gave one.

A nullable column is a union with null first, and null is its default, so that a later version may add or drop it.
A struct's record is named by the way to it, so that names are the same at every start and never clash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from penstock.sinks.kafka.encode.shapes import UnfitError, is_bytes, is_listed, is_text

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_TAKEN = frozenset((*_PRIMITIVE, "record", "error", "enum", "array", "map", "union", "fixed"))


def avro_schema(columns: pa.Schema, name: str) -> str:
    """The schema of a record with these columns. `name` may have a namespace before its last dot."""
    namespace, _, own = name.rpartition(".")
    return _text(_record(columns, own, namespace))


def avro_type(column: pa.Field, name: str) -> str:
    """The schema of one column's values, without null: a record whose column is null has no such value at all."""
    namespace, _, own = name.rpartition(".")
    return _text(_type(column.type, own, namespace))


def _text(schema: Any) -> str:
    return json.dumps(schema, separators=(",", ":"))


def _record(fields: Iterable[pa.Field], name: str, namespace: str) -> dict[str, Any]:
    full = f"{namespace}.{name}" if namespace else name
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        record["namespace"] = namespace
    record["fields"] = [_field(field, full) for field in fields]
    return record


def _field(field: pa.Field, parent: str) -> dict[str, Any]:
    if not NAME.fullmatch(field.name):
        raise UnfitError(
            f'no field in Avro can be called "{field.name}": letters, digits and _ only, no digit first; rename it'
        )
    made = _nullable(field, field.name, parent)
    return {"name": field.name, "type": made, "default": None} if field.nullable else {"name": field.name, "type": made}


def _nullable(field: pa.Field, name: str, parent: str) -> Any:
    made = _type(field.type, name, parent)
    return ["null", made] if field.nullable else made


def _type(kind: pa.DataType, name: str, parent: str) -> Any:
    if types.is_struct(kind):
        return _record(kind, f"{name}_" if name in _TAKEN else name, parent)
    if types.is_map(kind):
        if not is_text(kind.key_type):
            raise UnfitError(f"{name}: a map in Avro has strings as keys, not {kind.key_type}")
        return {"type": "map", "values": _nullable(kind.item_field, name, parent)}
    if is_listed(kind):
        return {"type": "array", "items": _nullable(kind.value_field, name, parent)}
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_timestamp(kind) and kind.unit == "us":
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if is_text(kind):
        return "string"
    if is_bytes(kind):
        return "bytes"
    for made, which in _PLAIN.items():
        if kind in which:
            return made
    raise UnfitError(f"{name}: there is no Avro type for {kind}")


_PLAIN = {
    "boolean": (pa.bool_(),),
    "int": (pa.int8(), pa.int16(), pa.int32()),
    "long": (pa.int64(),),
    "float": (pa.float32(),),
    "double": (pa.float64(),),
}
