"""The reference reader: one JSON message in plain Python, to its values or to the reason why not.

What it accepts is what the JSON format means here; the fast reader of `block` may accept less, never
more, and gives equal values. Fields outside the schema are parsed and not judged: in them a name may come twice.
NaN and Infinity, which some writers put for a number, are not JSON anywhere.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder, dumps
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.decoders.json.values import Pairs, object_reader, refuse_duplicates
from penstock.decoders.refusal import (
    EMPTY_MESSAGE,
    MALFORMED_JSON,
    NOT_AN_OBJECT,
    TOO_DEEP,
    TRAILING_DATA,
    RefusedError,
)

ExtraFields = Literal["ignore", "keep", "quarantine"]
"""What becomes of fields that the schema does not name: skipped, kept in a map column, or a bad record."""

MAX_DEPTH = 4000
# Python's parser recurses, and what called it must fit under the interpreter's limit of 1,000 too.
_PARSER_DEPTH = 400
BLANKS = " \t\r\n"
_NOT_BLANK = re.compile(f"[^{BLANKS}]")

# Possessive, and an open string runs to the end: a message takes time in proportion to its length, whatever it holds.
_STRING = r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_NOT_FINITE = re.compile(rf"{_STRING}|(-?Infinity|NaN)", re.DOTALL)
_LEVELS = np.zeros(256, np.int8)
_LEVELS[list(b"{[")], _LEVELS[list(b"}]")] = 1, -1
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _NotFiniteError(Exception):
    """The message has NaN or Infinity."""


def _refuse_not_finite(word: str) -> None:
    raise _NotFiniteError(word)


# Numbers stay as they were written, as bytes: exact, and distinct from strings by their type.
_PARSER = JSONDecoder(
    object_pairs_hook=tuple, parse_float=str.encode, parse_int=str.encode, parse_constant=_refuse_not_finite
)


class JsonReference:
    """Reads messages one by one."""

    def __init__(self, columns: pa.Schema, extra_fields: ExtraFields) -> None:
        self._read_object = object_reader(list(columns), extra_fields == "quarantine")
        self._known = set(columns.names)
        self._keep = extra_fields == "keep"

    def read(self, text: str) -> list[Any]:
        """The values of the columns, and the map of extra fields where those are kept. Raises `RefusedError`."""
        pairs = parse_object(text)
        values = self._read_object(pairs)
        if self._keep:
            extras = tuple((name, value) for name, value in pairs if name not in self._known)
            refuse_duplicates(extras)
            try:
                values.append([(name, _extra_text(value)) for name, value in extras] or None)
            except RecursionError:
                raise RefusedError(TOO_DEEP, "an extra field is nested too deep to be kept") from None
        return values


def parse_object(text: str) -> Pairs:
    """The pairs of the one object that the message consists of. Raises `RefusedError`."""
    start = 0 if text.startswith("{") else len(text) - len(text.lstrip(BLANKS))
    if start == len(text):
        raise RefusedError(EMPTY_MESSAGE, "the message is empty" if not text else "the message is only blanks")
    depth = nesting_depth(text)
    if depth > MAX_DEPTH:
        raise RefusedError(TOO_DEEP, f"nested {depth} levels deep, and the limit is {MAX_DEPTH}")
    try:
        value, end = _PARSER.raw_decode(text, start) if depth <= _PARSER_DEPTH else _parse_deep(text, start)
    except _NotFiniteError as exc:
        at = next(found.start(1) for found in _NOT_FINITE.finditer(text) if found.group(1))
        raise RefusedError(MALFORMED_JSON, f"{exc} at character {at}, which JSON does not have") from None
    except JSONDecodeError as exc:
        near = text[max(0, exc.pos - 10) : exc.pos + 20]
        raise RefusedError(MALFORMED_JSON, f"{exc.msg} at character {exc.pos}, near {near!r:.38}") from None
    if type(value) is not tuple:
        raise RefusedError(NOT_AN_OBJECT, "the message is JSON, but not an object")
    if end < len(text) and text[end:].strip(BLANKS):
        raise RefusedError(TRAILING_DATA, f"more text after the object, from character {end}")
    if "\\u" in text and _SURROGATE.search(text):
        _refuse_lone_surrogates(value)
    return value


def nesting_depth(text: str) -> int:
    """How deep arrays and objects nest at most; exact for valid JSON with many brackets."""
    openings = text.count("{") + text.count("[")
    if openings <= 100:
        return openings
    steps = _LEVELS[np.frombuffer(_STRINGS.sub("", text).encode(), np.uint8)]
    return int(steps[steps != 0].cumsum(dtype=np.int64).max(initial=0))


def _parse_deep(text: str, at: int) -> tuple[Any, int]:
    """What Python's parser gives and raises, with a stack of its own: that parser recurses."""
    closers = [""]
    parts: list[list[Any]] = [[]]
    """Of the message, and of each array and object that is open; the names and values of an object by turns."""
    while True:
        if closers[-1] == "}" and len(parts[-1]) % 2 == 0:
            name, at = _parse_name(text, at)
            parts[-1].append(name)
        if text.startswith(("{", "["), at):
            closers.append("}" if text[at] == "{" else "]")
            parts.append([])
            at = _after_blanks(text, at + 1)
            if not text.startswith(closers[-1], at):
                continue
        else:
            value, at = _PARSER.raw_decode(text, at)
            parts[-1].append(value)
        while closers[-1]:
            at = _after_blanks(text, at)
            if text.startswith(closers[-1], at):
                items = parts.pop()
                is_object = closers.pop() == "}"
                parts[-1].append(tuple(zip(items[::2], items[1::2], strict=True)) if is_object else items)
                at += 1
            elif text.startswith(",", at):
                at = _after_blanks(text, at + 1)
                break
            else:
                raise JSONDecodeError("Expecting ',' delimiter", text, at)
        else:
            return parts[0][0], at


def _parse_name(text: str, at: int) -> tuple[str, int]:
    """The name at the beginning of a pair, and where its value begins."""
    if not text.startswith('"', at):
        raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    name, at = _PARSER.raw_decode(text, at)
    at = _after_blanks(text, at)
    if not text.startswith(":", at):
        raise JSONDecodeError("Expecting ':' delimiter", text, at)
    return name, _after_blanks(text, at + 1)


def _after_blanks(text: str, at: int) -> int:
    found = _NOT_BLANK.search(text, at)
    return found.start() if found else len(text)


def _refuse_lone_surrogates(value: Any) -> None:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if type(part) is str:
            try:
                part.encode()
            except UnicodeEncodeError:
                raise RefusedError(MALFORMED_JSON, "an escaped surrogate stands alone in a string") from None
        elif isinstance(part, tuple | list):
            waiting.extend(part)


def _extra_text(value: Any) -> str | None:
    """A string as its text, null as null, anything else as compact JSON with its numbers as written."""
    return value if value is None or type(value) is str else _compact(value)


def _compact(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tuple):
        return "{" + ",".join(f"{_compact(name)}:{_compact(part)}" for name, part in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    return dumps(value, ensure_ascii=False)
