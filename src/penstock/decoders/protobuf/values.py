"""What single values become, in words that the fast and the careful reader share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.descriptor import FieldDescriptor

from penstock.decoders.refusal import OUT_OF_RANGE, RefusedError

_F = FieldDescriptor

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, which a Timestamp may be in."""
LAST_NANO = 999_999_999

_EXACT = 2.0**53

_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_UINT32, _UINT64 = (0, 2**32 - 1), (0, 2**64 - 1)
RANGES: Mapping[int, tuple[int, int]] = {
    _F.TYPE_BOOL: (0, 1),
    _F.TYPE_ENUM: _INT32,
    _F.TYPE_INT32: _INT32,
    _F.TYPE_SINT32: _INT32,
    _F.TYPE_SFIXED32: _INT32,
    _F.TYPE_UINT32: _UINT32,
    _F.TYPE_FIXED32: _UINT32,
    _F.TYPE_INT64: _INT64,
    _F.TYPE_SINT64: _INT64,
    _F.TYPE_SFIXED64: _INT64,
    _F.TYPE_UINT64: _UINT64,
    _F.TYPE_FIXED64: _UINT64,
}
"""The whole numbers that each type holds."""

TYPE_NAMES: Mapping[int, str] = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(_F).items() if name.startswith("TYPE_")
}

_CLASSES: Mapping[str, type[Any]] = {
    "google.protobuf.Struct": struct_pb2.Struct,
    "google.protobuf.Value": struct_pb2.Value,
    "google.protobuf.ListValue": struct_pb2.ListValue,
}


def json_text(full_name: str, encoded: bytes) -> str:
    """A Struct, Value or ListValue as JSON, keys sorted. Raises `RefusedError` for a number that JSON does not have."""
    found = _CLASSES[full_name].FromString(encoded)
    plain = _plain(found) if isinstance(found, struct_pb2.Value) else _plain_parts(found)
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _plain(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case None | "null_value":
            return None
        case "number_value":
            number = value.number_value
            if not math.isfinite(number):
                raise RefusedError(OUT_OF_RANGE, "expected a number of JSON, found one that is not finite")
            return int(number) if number.is_integer() and abs(number) < _EXACT else number
        case "struct_value" | "list_value" as kind:
            return _plain_parts(getattr(value, kind))
        case kind:
            return getattr(value, kind)


def _plain_parts(parts: struct_pb2.Struct | struct_pb2.ListValue) -> Any:
    if isinstance(parts, struct_pb2.ListValue):
        return [_plain(item) for item in parts.values]
    return {name: _plain(item) for name, item in parts.fields.items()}


def timestamp_us(seconds: int, nanos: int) -> int:
    """The microseconds since 1970 of a Timestamp. Raises `RefusedError` for what is none."""
    if not FIRST_SECOND <= seconds <= LAST_SECOND:
        raise RefusedError(OUT_OF_RANGE, "expected a Timestamp, found seconds outside the years 1 to 9999")
    if not 0 <= nanos <= LAST_NANO:
        raise RefusedError(OUT_OF_RANGE, f"expected a Timestamp, found nanos outside 0 to {LAST_NANO}")
    return seconds * 1_000_000 + nanos // 1000
