"""The careful reader: one message at a time through Google's own library, and the reason where it is bad.

What it says is what the fast reader must say too: tests compare the two. Here too are the limits of single values,
which both share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Read

from penstock.decoders.protobuf.types import TYPE_NAMES, Field, Message, Shape, Value, range_of
from penstock.decoders.protobuf.wire import MAX_CELLS, NOT_UTF8, check_wire
from penstock.decoders.refusal import INVALID_UTF8, MALFORMED_PROTOBUF, MISSING_FIELD, OUT_OF_RANGE, RefusedError


def read_message(message: Message, read_as: type[Read], encoded: bytes) -> tuple[Any, ...]:
    """The values of the columns. Raises `RefusedError`."""
    if len(encoded) * message.most_cells > MAX_CELLS:
        check_wire(encoded, message.descriptor)
    try:
        found = read_as.FromString(encoded)
    except DecodeError as exc:
        check_wire(encoded, message.descriptor)
        raise RefusedError(MALFORMED_PROTOBUF, str(exc).rpartition(": ")[2]) from None
    return tuple(_fields(message, found))


def _fields(message: Message, found: Read) -> Iterator[Any]:
    for field in message.fields:
        try:
            yield _field(field, found)
        except RefusedError as refusal:
            raise refusal.inside(field.name) from None
        except UnicodeDecodeError:
            raise RefusedError(INVALID_UTF8, NOT_UTF8, f"{field.name}[key]") from None


def _field(field: Field, found: Read) -> Any:
    if field.presence and not found.HasField(field.name):
        if field.required:
            raise RefusedError(MISSING_FIELD, "the field is required, and it is not there")
        return field.default
    given = getattr(found, field.name)
    if field.key:
        return [(_value(field.key, key), _item(field, item, "[key]")) for key, item in given.items()]
    if field.repeated:
        return [_item(field, item, f"[{at}]") for at, item in enumerate(given)]
    return _value(field.value, given)


def _item(field: Field, item: Any, step: str) -> Any:
    try:
        return _value(field.value, item)
    except RefusedError as refusal:
        raise refusal.inside(step) from None


def _value(value: Value, given: Any) -> Any:
    match value.shape:
        case Shape.SCALAR:
            if value.reads:
                _check_range(value, given)
            if isinstance(given, bytes) and pt.is_string(value.type):
                # The library gives a proto2 string that is not UTF-8 as its bytes; only for the key of a map it raises.
                raise RefusedError(INVALID_UTF8, NOT_UTF8)
            return _plain(value.type, given)
        case Shape.ENUM:
            return value.names.get(given) or str(given)
        case Shape.EMPTY:
            return True
        case Shape.JSON:
            return json_text(given.DESCRIPTOR.full_name, given.SerializeToString())
        case Shape.TIMESTAMP:
            return timestamp_us(given.seconds, given.nanos)
    assert value.message is not None
    parts = list(_fields(value.message, given))
    if value.shape is Shape.WRAPPER:
        return parts[0]
    return dict(zip((field.name for field in value.message.fields), parts, strict=True))


def _check_range(value: Value, given: int) -> None:
    first, last = range_of(value.reads)
    if not first <= given <= last:
        wanted, had = TYPE_NAMES[value.reads], TYPE_NAMES[value.field.type]
        raise RefusedError(OUT_OF_RANGE, f"expected {wanted}, found a number of the writer's {had} that does not fit")


def _plain(kind: pa.DataType, given: Any) -> Any:
    return Decimal(given) if pt.is_decimal(kind) else given


FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, which a Timestamp may be in."""
LAST_NANO = 999_999_999

_EXACT = 2.0**53

_CLASSES: Mapping[str, type[Any]] = {
    "google.protobuf.Struct": struct_pb2.Struct,
    "google.protobuf.Value": struct_pb2.Value,
    "google.protobuf.ListValue": struct_pb2.ListValue,
}


def json_text(full_name: str, encoded: bytes) -> str:
    """A Struct, Value or ListValue as JSON, keys sorted. Raises `RefusedError` for a number that JSON does not have."""
    found = _CLASSES[full_name].FromString(encoded)
    plain = _json_value(found) if isinstance(found, struct_pb2.Value) else _json_parts(found)
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _json_value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case None | "null_value":
            return None
        case "number_value":
            number = value.number_value
            if not math.isfinite(number):
                raise RefusedError(OUT_OF_RANGE, "expected a number of JSON, found one that is not finite")
            return int(number) if number.is_integer() and abs(number) < _EXACT else number
        case "struct_value" | "list_value" as kind:
            return _json_parts(getattr(value, kind))
        case kind:
            return getattr(value, kind)


def _json_parts(parts: struct_pb2.Struct | struct_pb2.ListValue) -> Any:
    if isinstance(parts, struct_pb2.ListValue):
        return [_json_value(item) for item in parts.values]
    return {name: _json_value(item) for name, item in parts.fields.items()}


def timestamp_us(seconds: int, nanos: int) -> int:
    """The microseconds since 1970 of a Timestamp. Raises `RefusedError` for an invalid one."""
    if not FIRST_SECOND <= seconds <= LAST_SECOND:
        raise RefusedError(OUT_OF_RANGE, "expected a Timestamp, found seconds outside the years 1 to 9999")
    if not 0 <= nanos <= LAST_NANO:
        raise RefusedError(OUT_OF_RANGE, f"expected a Timestamp, found nanos outside 0 to {LAST_NANO}")
    return seconds * 1_000_000 + nanos // 1000
