"""The careful reader: one message at a time through Google's own library, and the reason where it is bad.

What it says is what the fast reader must say too: tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Read

from penstock.decoders.protobuf.types import Field, Message, Shape, Value
from penstock.decoders.protobuf.values import RANGES, TYPE_NAMES, json_text, timestamp_us
from penstock.decoders.protobuf.wire import check_wire
from penstock.decoders.refusal import INVALID_UTF8, MALFORMED_PROTOBUF, MISSING_FIELD, OUT_OF_RANGE, RefusedError

_NOT_UTF8 = "the bytes of the string are not UTF-8"


class SingleReader:
    """Reads messages one by one into the columns of the schema."""

    def __init__(self, message: Message, read_as: type[Read]) -> None:
        self._message = message
        self._read_as = read_as

    def read(self, encoded: bytes) -> tuple[Any, ...]:
        """The values of the columns. Raises `RefusedError`."""
        try:
            found = self._read_as.FromString(encoded)
        except DecodeError as exc:
            check_wire(encoded, self._message.descriptor)
            raise RefusedError(MALFORMED_PROTOBUF, str(exc).rpartition(": ")[2]) from None
        return tuple(_fields(self._message, found))


def _fields(message: Message, found: Read) -> Iterator[Any]:
    for field in message.fields:
        try:
            yield _field(field, found)
        except RefusedError as refusal:
            raise refusal.inside(field.name) from None
        except UnicodeDecodeError:
            raise RefusedError(INVALID_UTF8, _NOT_UTF8, f"{field.name}[key]") from None


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
                raise RefusedError(INVALID_UTF8, _NOT_UTF8)
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
    first, last = RANGES[value.reads]
    if not first <= given <= last:
        wanted, had = TYPE_NAMES[value.reads], TYPE_NAMES[value.field.type]
        raise RefusedError(OUT_OF_RANGE, f"expected {wanted}, found a number of the writer's {had} that does not fit")


def _plain(kind: pa.DataType, given: Any) -> Any:
    return Decimal(given) if pt.is_decimal(kind) else given
