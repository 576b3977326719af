"""Rows to Avro, whole record batches at a time: a schema for them, and the bytes without any framing.

Where no schema is given, one is made of the columns. A nullable column is a union with null first, and null is its
default, so that a later version may add or drop it. A struct's record is named by its path, so that names are the same
at every start and never clash.

The fast encoder knows few types. Others are lowered to one that has the same bytes (a decimal is bytes, and bytes are
text as far as it can tell); a schema with a type that has none, a `fixed`, is written row by row, and a notice says so.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
import pyruhvro
from fastavro.schema import SchemaParseException, UnknownType

from penstock.sinks.arrow_types import is_bytes, is_listed, is_text
from penstock.sinks.kafka.encode.shapes import (
    Misfit,
    Rule,
    Shape,
    UnfitError,
    cast_to,
    encodable,
    misfits,
    nulls,
    one_of,
)

FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_TAKEN = frozenset((*_PRIMITIVE, "record", "error", "enum", "array", "map", "union", "fixed"))
_SMALL = (pa.int8(), pa.int16())
_NUMBERS: Mapping[str, tuple[pa.DataType, tuple[pa.DataType, ...]]] = {
    "boolean": (pa.bool_(), (pa.bool_(),)),
    "int": (pa.int32(), (*_SMALL, pa.int32())),
    "long": (pa.int64(), (*_SMALL, pa.int32(), pa.int64())),
    "float": (pa.float32(), (*_SMALL, pa.float32())),
    "double": (pa.float64(), (*_SMALL, pa.int32(), pa.float32(), pa.float64())),
}
"""Each with its Arrow type and the column types whose values it can hold; the first that can is a column's own."""
_CONSTANTS = {**{name: kind for name, (kind, _) in _NUMBERS.items()}, "string": pa.string()}


def avro_schema(columns: pa.Schema, name: str) -> str:
    """The schema of a record with these columns. `name` may have a namespace before its last dot."""
    namespace, _, own = name.rpartition(".")
    return json.dumps(_record(columns, own, namespace), separators=(",", ":"))


def avro_type(column: pa.Field, name: str) -> str:
    """The schema of one column's values, without null: a null is a record without that value or key."""
    namespace, _, own = name.rpartition(".")
    return json.dumps(_type(column.type, own, namespace), separators=(",", ":"))


def _record(fields: Iterable[pa.Field], name: str, namespace: str) -> dict[str, Any]:
    full = f"{namespace}.{name}" if namespace else name
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        record["namespace"] = namespace
    record["fields"] = [_field(field, full) for field in fields]
    return record


def _field(field: pa.Field, parent: str) -> dict[str, Any]:
    if not FIELD_NAME.fullmatch(field.name):
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
    for made, (_, sources) in _NUMBERS.items():
        if kind in sources:
            return made
    raise UnfitError(f"{name}: there is no Avro type for {kind}")


_ONLY = "value"
"""The name of the single column where the schema is not a record."""


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


_Convert = Callable[[pa.Array], pa.Array]
_Plain = tuple[Any, _Convert | None, tuple[Rule, ...]]
"""The wire type of a plain value, how a column becomes that, and which values cannot."""


class _Planner:
    """Matches column types with Avro types, keeping every value exactly: a wider number, never a narrower one.

    A wire type has the same bytes as the Avro type, no logical type, and names of its own. `bytes_as_text`: Avro writes
    both alike, and the fast encoder knows text only.
    """

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
        plain = None if types.is_nested(kind) else self._plain(kind, avro)
        if plain is None:
            raise UnfitError(f"{path or 'the row'}: the column is {kind}, the schema has {_described(avro)}")
        if avro["type"] == "fixed":
            self.slow = f"{path} is fixed"
        wire, convert, rules = plain
        return Shape(path, True, convert, rules), wire

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

    def _plain(self, kind: pa.DataType, avro: Mapping[str, Any]) -> _Plain | None:
        name, logical = avro["type"], avro.get("logicalType")
        if types.is_decimal(kind):
            return self._decimal(kind, avro) if logical == "decimal" else None
        if types.is_timestamp(kind):
            return _moment(kind, logical) if name == "long" else None
        if types.is_date32(kind):
            return ("int", partial(cast_to, kind=pa.int32()), ()) if (name, logical) == ("int", "date") else None
        if is_text(kind):
            return self._text(kind, avro)
        if is_bytes(kind):
            return self._bytes(avro) if logical != "decimal" else None
        target, sources = _NUMBERS.get(name, (None, ()))
        if kind not in sources or (logical is not None and logical.startswith(("date", "time", "local-time"))):
            return None
        return name, partial(cast_to, kind=target) if kind != target else None, ()

    def _text(self, kind: pa.DataType, avro: Mapping[str, Any]) -> _Plain | None:
        convert = None if types.is_string(kind) else partial(cast_to, kind=pa.string())
        if avro["type"] == "string":
            rules = (Rule(_not_uuid, "is not a UUID"),) if avro.get("logicalType") == "uuid" else ()
            return "string", convert, rules
        if avro["type"] == "enum":
            symbols = list(avro["symbols"])
            return {"type": "enum", "name": self._unique(), "symbols": symbols}, convert, (one_of(symbols),)
        return None

    def _bytes(self, avro: Mapping[str, Any]) -> _Plain | None:
        if avro["type"] == "bytes":
            return (
                ("string", _as_text, ()) if self._bytes_as_text else ("bytes", partial(cast_to, kind=pa.binary()), ())
            )
        if avro["type"] == "fixed":
            size = int(avro["size"])
            rule = Rule(partial(_not_of_size, size=size), f"is not {size} bytes long")
            return self._fixed(size), partial(cast_to, kind=pa.binary()), (rule,)
        return None

    def _decimal(self, kind: pa.DataType, avro: Mapping[str, Any]) -> _Plain | None:
        precision, scale = int(avro["precision"]), int(avro.get("scale", 0))
        if scale < kind.scale or precision - scale < kind.precision - kind.scale or precision > 38:
            return None
        target = pa.decimal128(precision, scale)
        if avro["type"] == "fixed":
            size = int(avro["size"])
            return self._fixed(size), partial(_fixed_decimals, kind=target, size=size), ()
        convert = partial(_decimals, kind=target, as_text=self._bytes_as_text)
        return "string" if self._bytes_as_text else "bytes", convert, ()

    def _fixed(self, size: int) -> dict[str, Any]:
        return {"type": "fixed", "name": self._unique(), "size": size}

    def _unique(self) -> str:
        return f"T{next(self._numbers)}"


def _described(avro: Mapping[str, Any]) -> str:
    """An Avro type in few words."""
    logical = avro.get("logicalType")
    if logical == "decimal":
        return f"decimal({avro['precision']}, {avro.get('scale', 0)})"
    return f"{avro['type']} ({logical})" if logical else str(avro["type"])


_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UNITS_A_MICROSECOND = {"millis": 0.001, "micros": 1, "nanos": 1000}
_NANOS_LIMIT = 2**63 // 1000
_DECIMAL_BYTES = 16


def _moment(kind: pa.DataType, logical: str | None) -> _Plain | None:
    start, _, unit = (logical or "").rpartition("-")
    if start != ("timestamp" if kind.tz else "local-timestamp") or unit not in _UNITS_A_MICROSECOND:
        return None
    rules = {
        "millis": (Rule(_has_micros, "has microseconds, and the schema keeps milliseconds"),),
        "micros": (),
        "nanos": (Rule(_beyond_nanos, "is outside the range of nanoseconds in a long"),),
    }
    return "long", partial(_ticks, unit=unit), rules[unit]


def _micros(values: pa.Array) -> pa.Array:
    return values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())


def _ticks(values: pa.Array, unit: str) -> pa.Array:
    micros = _micros(values)
    if unit == "nanos":
        return pc.multiply(micros, 1000)
    return pc.divide(micros, 1000) if unit == "millis" else micros


def _has_micros(values: pa.Array) -> pa.Array:
    micros = _micros(values)
    return pc.not_equal(pc.multiply(pc.divide(micros, 1000), 1000), micros)


def _beyond_nanos(values: pa.Array) -> pa.Array:
    micros = _micros(values)
    return pc.or_(pc.greater(micros, _NANOS_LIMIT - 1), pc.less(micros, -_NANOS_LIMIT))


def _not_uuid(values: pa.Array) -> pa.Array:
    return pc.invert(pc.match_substring_regex(values, _UUID))


def _not_of_size(values: pa.Array, size: int) -> pa.Array:
    return pc.not_equal(pc.binary_length(values.cast(pa.binary())), size)


def _as_text(values: pa.Array) -> pa.Array:
    """The same bytes under the type for text, unchecked and uncopied: only for an encoder that copies them."""
    values = values.cast(pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers(), values.null_count, values.offset)


def _big_endian(values: pa.Array, kind: pa.DataType) -> np.ndarray:
    """The unscaled numbers, 16 bytes each, two's complement; anything for a null."""
    numbers = values.cast(kind)
    buffer = np.frombuffer(numbers.buffers()[1] or b"", np.uint8)
    start = numbers.offset * _DECIMAL_BYTES
    return buffer[start : start + len(numbers) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)[:, ::-1]


def _decimals(values: pa.Array, kind: pa.DataType, as_text: bool) -> pa.Array:
    """As few bytes as hold each number: a leading byte that only repeats the sign is left out."""
    numbers = _big_endian(values, kind)
    sign = np.where(numbers[:, :1] & 0x80, 0xFF, 0x00).astype(np.uint8)
    repeats = (numbers[:, :-1] == sign) & ((numbers[:, 1:] ^ sign) & 0x80 == 0)
    keep = np.ones(numbers.shape, dtype=bool)
    keep[:, :-1] = ~np.logical_and.accumulate(repeats, axis=1)
    return _laid_out(numbers[keep], keep.sum(axis=1), values, pa.string() if as_text else pa.binary())


def _fixed_decimals(values: pa.Array, kind: pa.DataType, size: int) -> pa.Array:
    numbers = _big_endian(values, kind)
    if size > _DECIMAL_BYTES:
        sign = np.where(numbers[:, :1] & 0x80, 0xFF, 0x00).astype(np.uint8)
        numbers = np.hstack([np.repeat(sign, size - _DECIMAL_BYTES, axis=1), numbers])
    numbers = numbers[:, numbers.shape[1] - size :]
    return _laid_out(numbers.ravel(), np.full(len(values), size), values, pa.binary())


def _laid_out(data: np.ndarray, lengths: np.ndarray, like: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of these lengths, one after the other in `data`; null where `like` is."""
    offsets = np.zeros(len(like) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    there = pa.array(~nulls(like)).buffers()[1]
    return pa.Array.from_buffers(kind, len(like), [there, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())])
