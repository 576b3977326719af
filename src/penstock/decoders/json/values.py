"""One JSON value to one column value, strictly: the rules, and the words for what breaks them.

Values come from the parser of `json_reason` as `str`, `bool`, `None`, `list`, a tuple of pairs for an
object, and `bytes` for a number as it was written.

- Nothing is converted between kinds: a number is no string, a string no number, `1.0` no integer.
- DECIMAL is exact: from a number or a string of at most 1,000 characters, never rounded. BINARY is base64 with its
  padding.
- DATE is `YYYY-MM-DD`. TIMESTAMP is ISO 8601 with `T` or a space; without an offset it is UTC, a date alone is
  midnight, and digits after the microsecond are cut as Spark cuts them. TIMESTAMP_NTZ takes no offset.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.config.arrow_types import SQL_NAMES
from penstock.decoders.refusal import (
    DUPLICATE_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    UNKNOWN_FIELD,
    WRONG_TYPE,
    RefusedError,
)

Read = Callable[[Any], Any]
Pairs = tuple[tuple[str, Any], ...]

_KINDS = {
    str: "a string",
    bool: "a boolean",
    bytes: "a number",
    list: "an array",
    tuple: "an object",
    type(None): "null",
}
_MOST_DIGITS = 1000
"""A DECIMAL has at most 38 digits: a longer number is padded. Converting one costs 80 bytes of memory a digit."""
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)


def type_name(kind: pa.DataType) -> str:
    """The type as a schema string writes it, nested types by their outermost word."""
    if pt.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pt.is_list(kind):
        return "ARRAY"
    if pt.is_map(kind):
        return "MAP"
    return "STRUCT" if pt.is_struct(kind) else SQL_NAMES[kind]


def is_supported(kind: pa.DataType) -> bool:
    """Whether JSON can fill a column of this type."""
    if pt.is_list(kind):
        return is_supported(kind.value_type)
    if pt.is_map(kind):
        return bool(pt.is_string(kind.key_type)) and is_supported(kind.item_type)
    if pt.is_struct(kind):
        return all(is_supported(field.type) for field in kind)
    return kind in SQL_NAMES or bool(pt.is_decimal128(kind))


def reader_of(kind: pa.DataType, quarantine_unknown: bool = False) -> Read:
    """A function from a JSON value to the Python value of the column. It raises `RefusedError`."""
    name = type_name(kind)
    if pt.is_list(kind):
        return _list_reader(kind.value_field, quarantine_unknown)
    if pt.is_map(kind):
        return _map_reader(kind.item_field, quarantine_unknown)
    if pt.is_struct(kind):
        return _struct_reader(list(kind), quarantine_unknown)
    if pt.is_integer(kind):
        return _integer_reader(name, kind.bit_width)
    if pt.is_floating(kind):
        return _float_reader(name, kind)
    if pt.is_decimal128(kind):
        return _decimal_reader(name, kind.precision, kind.scale)
    if pt.is_timestamp(kind):
        return _timestamp_reader(name, zoned=kind.tz is not None)
    if pt.is_date32(kind):
        return _read_date
    if pt.is_binary(kind):
        return _read_base64
    wanted = bool if pt.is_boolean(kind) else str
    return lambda value: value if type(value) is wanted else _expect(wanted, value, name)


def object_reader(fields: list[pa.Field], quarantine_unknown: bool) -> Callable[[Pairs], list[Any]]:
    """A function from an object's pairs to the values of `fields`, in their order."""
    known = {field.name for field in fields}
    steps = [_step(field, quarantine_unknown) for field in fields]

    def read_object(pairs: Pairs) -> list[Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            refuse_duplicates(pairs, known)
        if quarantine_unknown and not found.keys() <= known:
            name = next(name for name, _ in pairs if name not in known)
            raise RefusedError(UNKNOWN_FIELD, "the schema has no such field", name[:100])
        values = []
        for name, required, read in steps:
            value = found.get(name)
            if value is not None:
                try:
                    value = read(value)
                except RefusedError as refusal:
                    raise refusal.inside(name) from None
            elif required:
                state = "null" if name in found else "no such field"
                raise RefusedError(MISSING_FIELD, f"expected {required} NOT NULL, found {state}", name)
            values.append(value)
        return values

    return read_object


def refuse_duplicates(pairs: Pairs, among: set[str] | None = None) -> None:
    """Refuse an object that gives one of the names twice; any name where `among` is None."""
    seen = set()
    for name, _ in pairs:
        if name in seen and (among is None or name in among):
            raise RefusedError(DUPLICATE_FIELD, "the field is given twice", name[:100])
        seen.add(name)


def _step(field: pa.Field, quarantine_unknown: bool) -> tuple[str, str | None, Read]:
    """A field's name, its type's name where it is NOT NULL, and its reader."""
    required = None if field.nullable else type_name(field.type)
    return field.name, required, reader_of(field.type, quarantine_unknown)


def _expect(wanted: type, value: Any, name: str) -> Any:
    found = type(value)
    if found is wanted:
        return value
    raise RefusedError(WRONG_TYPE, f"expected {name}, found {_KINDS[found]}")


def _integer_reader(name: str, bits: int) -> Read:
    bound = 1 << (bits - 1)

    def read_integer(value: Any) -> int:
        number = _expect(bytes, value, name)
        if not number.lstrip(b"-").isdigit():
            raise RefusedError(WRONG_TYPE, f"expected {name}, found a number with a fraction or an exponent")
        # The longest BIGINT has 20 characters, and JSON forbids leading zeros.
        if len(number) > 20 or not -bound <= int(number) < bound:
            raise RefusedError(OUT_OF_RANGE, f"the number does not fit {name}")
        return int(number)

    return read_integer


def _float_reader(name: str, kind: pa.DataType) -> Read:
    narrow = pt.is_float32(kind)

    def read_float(value: Any) -> float:
        number = float(_expect(bytes, value, name))
        if narrow:
            # From the text, since going through a double would round twice.
            number = pa.scalar(value.decode()).cast(kind).as_py()
        if isinf(number):
            raise RefusedError(OUT_OF_RANGE, f"the number does not fit {name}")
        return number

    return read_float


def _decimal_reader(name: str, precision: int, scale: int) -> Read:
    def read_decimal(value: Any) -> Decimal:
        text = value if type(value) is str else _expect(bytes, value, name).decode()
        if len(text) > _MOST_DIGITS:
            found = "string" if type(value) is str else "number"
            raise RefusedError(OUT_OF_RANGE, f"the {found} has {len(text)} characters, and the limit is {_MOST_DIGITS}")
        if not _DECIMAL.fullmatch(text):
            raise RefusedError(WRONG_TYPE, f"expected {name}, found a string that is not a number")
        try:
            sign, digits, exponent = Decimal(text).as_tuple()
        except InvalidOperation:
            raise RefusedError(OUT_OF_RANGE, f"the number does not fit {name}") from None
        # Trailing zeros do not count towards the scale, nor leading ones towards the precision.
        significant = "".join(map(str, digits)).rstrip("0")
        exponent = int(exponent) + len(digits) - len(significant)
        significant = significant.lstrip("0")
        if not significant:
            return Decimal(0)
        if -exponent > scale:
            raise RefusedError(OUT_OF_RANGE, f"the number has more decimals than {name}")
        if len(significant) + exponent > precision - scale:
            raise RefusedError(OUT_OF_RANGE, f"the number does not fit {name}")
        return Decimal((sign, tuple(map(int, significant)), exponent))

    return read_decimal


def _timestamp_reader(name: str, zoned: bool) -> Read:
    grammar = _TIME if zoned else _LOCAL_TIME
    shape = "an ISO 8601 time" if zoned else "an ISO 8601 time without an offset"

    def read_timestamp(value: Any) -> datetime:
        if not grammar.fullmatch(_expect(str, value, name)):
            raise RefusedError(WRONG_TYPE, f"expected {name}, found a string that is not {shape}")
        try:
            time = datetime.fromisoformat(value)
            if not zoned:
                return time
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            raise RefusedError(OUT_OF_RANGE, f"the string is no possible {name}") from None

    return read_timestamp


def _read_date(value: Any) -> date:
    if not _DATE.fullmatch(_expect(str, value, "DATE")):
        raise RefusedError(WRONG_TYPE, "expected DATE, found a string that is not YYYY-MM-DD")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise RefusedError(OUT_OF_RANGE, "the string is no possible DATE") from None


def _read_base64(value: Any) -> bytes:
    try:
        return binascii.a2b_base64(_expect(str, value, "BINARY"), strict_mode=True)
    except ValueError:
        raise RefusedError(WRONG_TYPE, "expected BINARY, found a string that is not base64") from None


def _struct_reader(fields: list[pa.Field], quarantine_unknown: bool) -> Read:
    names = [field.name for field in fields]
    read_values = object_reader(fields, quarantine_unknown)
    return lambda value: dict(zip(names, read_values(_expect(tuple, value, "STRUCT")), strict=True))


def _list_reader(item: pa.Field, quarantine_unknown: bool) -> Read:
    read_item = _item_reader(item, quarantine_unknown)

    def read_list(value: Any) -> list[Any]:
        return [read_item(part, f"[{index}]") for index, part in enumerate(_expect(list, value, "ARRAY"))]

    return read_list


def _map_reader(item: pa.Field, quarantine_unknown: bool) -> Read:
    read_item = _item_reader(item, quarantine_unknown)

    def read_map(value: Any) -> list[tuple[str, Any]]:
        pairs = _expect(tuple, value, "MAP")
        if len(dict(pairs)) != len(pairs):
            raise RefusedError(DUPLICATE_FIELD, "a key of the map is given twice")
        # A map's keys are data, so a message names none of them.
        return [(key, read_item(part, "[key]")) for key, part in pairs]

    return read_map


def _item_reader(item: pa.Field, quarantine_unknown: bool) -> Callable[[Any, str], Any]:
    _, required, read = _step(item, quarantine_unknown)

    def read_item(value: Any, step: str) -> Any:
        if value is None:
            if required:
                raise RefusedError(MISSING_FIELD, f"expected {required} NOT NULL, found null", step)
            return None
        try:
            return read(value)
        except RefusedError as refusal:
            raise refusal.inside(step) from None

    return read_item
