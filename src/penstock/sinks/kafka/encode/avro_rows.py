"""Rows to Avro, whole record batches at a time: the bytes of the schema, without any framing.

The fast encoder knows few types. Others are lowered to one that has the same bytes (a decimal is bytes, and bytes are
text as far as it can tell); what has no such type, a `fixed`, is written row by row, and the notice says so.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.types as types
import pyruhvro
from fastavro.schema import SchemaParseException, UnknownType

from penstock.sinks.kafka.encode.avro_leaves import leaf
from penstock.sinks.kafka.encode.shapes import Misfit, Shape, UnfitError, encodable, is_listed, is_text, misfits

_ONLY = "value"
_CONSTANTS = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class AvroRows:
    """Writes rows by one Avro schema. `slow` says why it goes row by row, where it does."""

    shape: Shape
    wire: str
    single: bool
    """The schema is not a record of the columns but the type of the only one; a null is then no value at all."""
    slow: str | None = None

    @classmethod
    def of(cls, columns: pa.Schema, text: str, references: Sequence[str] = ()) -> AvroRows:
        """Writes `columns` by a schema. Raises `UnfitError` where they have no place in it."""
        names: dict[str, Any] = {}
        try:
            for reference in references:
                fastavro.parse_schema(json.loads(reference), named_schemas=names)
            schema = fastavro.parse_schema(json.loads(text), named_schemas=names)
        except (SchemaParseException, UnknownType, ValueError) as error:
            raise UnfitError(f"the Avro schema is not valid: {type(error).__name__} {error}") from None
        single = _resolved(schema, names)["type"] != "record"
        if single:
            columns = _renamed(columns)
            schema = {"type": "record", "name": "Single", "fields": [{"name": _ONLY, "type": schema}]}
        fast = _Planner(names, bytes_as_text=True)
        shape, wire = fast.plan(pa.struct(columns), schema, "")
        if fast.slow is not None:
            shape, wire = _Planner(names, bytes_as_text=False).plan(pa.struct(columns), schema, "")
        return cls(shape, json.dumps(wire), single, fast.slow)

    def misfits(self, rows: pa.RecordBatch) -> Iterator[Misfit]:
        """The rows that the schema cannot hold."""
        if not self.single:
            return misfits(rows.to_struct_array(), self.shape)
        (_, shape), *_ = self.shape.fields or ()
        return misfits(rows.column(0), replace(shape, required=False))

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The bytes of each row; `misfits` must be out."""
        if not self.single:
            return self._encoded(rows)
        there = rows.column(0).is_valid()
        encoded = self._encoded(pa.RecordBatch.from_arrays([rows.column(0).filter(there)], [_ONLY]))
        valid = there.to_numpy(zero_copy_only=False)
        return encoded.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))

    def _encoded(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        values = encodable(rows, self.shape)
        if not rows.num_rows:
            return pa.array([], pa.binary())
        if self.slow is None:
            return pyruhvro.serialize_record_batch(values, self.wire, 1)[0]
        schema = _parsed(self.wire)
        return pa.array([_written(schema, row) for row in values.to_pylist(maps_as_pydicts="lossy")], pa.binary())


def _renamed(columns: pa.Schema) -> pa.Schema:
    if len(columns) != 1:
        raise UnfitError(
            f"the schema is not a record, but there are {len(columns)} columns: {', '.join(columns.names)}"
        )
    return pa.schema([columns.field(0).with_name(_ONLY)])


@lru_cache(maxsize=64)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


def _written(schema: Any, row: Mapping[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, row)
    return target.getvalue()


def _resolved(schema: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """A type, not a union, as an object; a name as what it stands for."""
    while True:
        if isinstance(schema, list):
            return {"type": "union"}
        if isinstance(schema, str):
            schema = names.get(schema) or {"type": schema}
        elif isinstance(schema["type"], dict | list) or schema["type"] in names:
            schema = schema["type"]
        else:
            return dict(schema)


class _Planner:
    """Puts column types and Avro types together; `wire` schemas have no logical types and names of their own."""

    def __init__(self, names: Mapping[str, Any], *, bytes_as_text: bool) -> None:
        self.slow: str | None = None
        self._names = names
        self._bytes_as_text = bytes_as_text
        self._numbers = itertools.count()

    def plan(self, kind: pa.DataType, schema: Any, path: str) -> tuple[Shape, Any]:
        """How values of a column type are written as an Avro type."""
        if isinstance(schema, list):
            return self._union(kind, schema, path)
        avro = _resolved(schema, self._names)
        if types.is_struct(kind) and avro["type"] == "record":
            return self._record(kind, avro, path)
        if is_listed(kind) and avro["type"] == "array":
            item, wire = self.plan(kind.value_type, avro["items"], f"{path}[]")
            return Shape(path, True, item=item), {"type": "array", "items": wire}
        if types.is_map(kind) and avro["type"] == "map" and is_text(kind.key_type):
            item, wire = self.plan(kind.item_type, avro["values"], f"{path}[]")
            return Shape(path, True, item=item), {"type": "map", "values": wire}
        plain = None if types.is_nested(kind) else leaf(kind, avro, self._unique, bytes_as_text=self._bytes_as_text)
        if plain is None:
            raise UnfitError(f"{path or 'the row'}: the column is {kind}, the schema has {_told(avro)}")
        if avro["type"] == "fixed":
            self.slow = f"{path} is fixed"
        return Shape(path, True, plain.convert, plain.rules), plain.wire

    def _union(self, kind: pa.DataType, schema: Sequence[Any], path: str) -> tuple[Shape, Any]:
        others = [branch for branch in schema if not self._is_null(branch)]
        if len(others) != 1:
            raise UnfitError(
                f"{path}: the schema has a union of {len(others)} types; one, with or without null, is taken"
            )
        shape, wire = self.plan(kind, others[0], path)
        if len(schema) == 1:
            self.slow = f"{path} is a union of one type"
        return replace(shape, required=len(schema) == 1), ["null" if self._is_null(b) else wire for b in schema]

    def _is_null(self, schema: Any) -> bool:
        return not isinstance(schema, list) and bool(_resolved(schema, self._names)["type"] == "null")

    def _record(self, kind: pa.StructType, avro: Mapping[str, Any], path: str) -> tuple[Shape, Any]:
        unknown = [field.name for field in kind if field.name not in {other["name"] for other in avro["fields"]}]
        if unknown:
            raise UnfitError(f"{path or 'the row'}: the schema has no field for {', '.join(unknown)}")
        shapes, fields = [], []
        for field in avro["fields"]:
            name = field["name"]
            there = kind.get_field_index(name)
            inner = f"{path}.{name}" if path else name
            if there >= 0:
                shape, wire = self.plan(kind.field(there).type, field["type"], inner)
            else:
                shape, wire = self._absent(field, inner)
            shapes.append((name, shape))
            fields.append({"name": name, "type": wire})
        return Shape(path, True, fields=tuple(shapes)), {"type": "record", "name": self._unique(), "fields": fields}

    def _absent(self, field: Mapping[str, Any], path: str) -> tuple[Shape, Any]:
        """A field of the schema that is no column gets null, or its default where that is a plain value."""
        schema = field["type"]
        if isinstance(schema, list):
            for wire in (["null", "int"], ["int", "null"]):
                if self._is_null(schema[wire.index("null")] if len(schema) > 1 else schema[0]):
                    return Shape(path, False, constant=(pa.int32(), None)), wire
        name = "" if isinstance(schema, list) else _resolved(schema, self._names)["type"]
        if "default" not in field or name not in _CONSTANTS:
            raise UnfitError(f"{path}: the schema has this field, without null or a plain default, but it is no column")
        return Shape(path, True, constant=(_CONSTANTS[name], field["default"])), name

    def _unique(self) -> str:
        return f"T{next(self._numbers)}"


def _told(avro: Mapping[str, Any]) -> str:
    """An Avro type in few words."""
    logical = avro.get("logicalType")
    if logical == "decimal":
        return f"decimal({avro['precision']}, {avro.get('scale', 0)})"
    return f"{avro['type']} ({logical})" if logical else str(avro["type"])
