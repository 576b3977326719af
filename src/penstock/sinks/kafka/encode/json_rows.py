"""Rows as JSON by a JSON Schema: made from the columns, or given, and then with a property for each column.

The schema that is made allows no other properties: only then a later version may add one without breaking readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from penstock.sinks.arrow_types import is_bytes, is_listed
from penstock.sinks.kafka.encode.shapes import Misfit, Shape, UnfitError, misfits
from penstock.sinks.row_json import json_rows

_DRAFT = "http://json-schema.org/draft-07/schema#"


def json_schema(columns: pa.Schema, name: str) -> str:
    """The JSON Schema of an object with these columns."""
    made = {"$schema": _DRAFT, "title": name.rpartition(".")[2], **_object(columns)}
    return json.dumps(made, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class JsonRows:
    """Writes rows as JSON objects."""

    shape: Shape
    slow: str | None = None

    @classmethod
    def of(cls, columns: pa.Schema, text: str) -> JsonRows:
        """Writes `columns` by a schema. Raises `UnfitError` where it names others."""
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise UnfitError(f"the JSON Schema is not valid: {error}") from None
        known = schema.get("properties", {}) if isinstance(schema, dict) else {}
        required = schema.get("required", []) if isinstance(schema, dict) else []
        missing = [name for name in required if name not in columns.names]
        unknown = [name for name in columns.names if name not in known]
        if missing:
            raise UnfitError(f"the row: the schema requires {', '.join(missing)}")
        if unknown:
            raise UnfitError(f"the row: the schema has no property {', '.join(unknown)}")
        shapes = tuple((field.name, Shape(field.name, not _takes_null(known[field.name]))) for field in columns)
        return cls(Shape("", True, fields=shapes))

    def misfits(self, rows: pa.RecordBatch) -> Iterator[Misfit]:
        """The rows with a null that the schema does not have."""
        return misfits(rows.to_struct_array(), self.shape)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The text of each row, as bytes."""
        return json_rows(rows).cast(pa.binary())


def _takes_null(schema: Any) -> bool:
    """Whether a property may be null, as far as one can see without resolving references."""
    if not isinstance(schema, dict) or not schema.keys() & {"type", "oneOf", "anyOf"}:
        return True
    kinds = schema.get("type", [])
    choices = [*schema.get("oneOf", []), *schema.get("anyOf", [])]
    return "null" in ([kinds] if isinstance(kinds, str) else kinds) or any(_takes_null(choice) for choice in choices)


def _object(fields: Iterable[pa.Field]) -> dict[str, Any]:
    columns = list(fields)
    made: dict[str, Any] = {"type": "object", "properties": {field.name: _property(field) for field in columns}}
    required = [field.name for field in columns if not field.nullable]
    return {**made, **({"required": required} if required else {}), "additionalProperties": False}


def _property(field: pa.Field) -> dict[str, Any]:
    made = _type(field.type, field.name)
    # JSON has neither NaN nor the infinities: they are written as null.
    if field.nullable or types.is_floating(field.type):
        made["type"] = [made["type"], "null"]
    return made


def _type(kind: pa.DataType, name: str) -> dict[str, Any]:
    if types.is_struct(kind):
        return _object(kind)
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _property(kind.item_field)}
    if is_listed(kind):
        return {"type": "array", "items": _property(kind.value_field)}
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_integer(kind):
        return {"type": "integer"}
    if types.is_floating(kind) or types.is_decimal(kind):
        return {"type": "number"}
    if types.is_date(kind):
        return {"type": "string", "format": "date"}
    if types.is_timestamp(kind):
        return {"type": "string", "format": "date-time"} if kind.tz else {"type": "string"}
    if is_bytes(kind):
        return {"type": "string", "contentEncoding": "base64"}
    return {"type": "string"}
