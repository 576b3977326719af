"""The JSON format: one strict object a record, bare or after the header of a schema registry.

The columns are given, and a schema id does not change them: it is only checked to be one of the subject's.

Many messages are read at once by Arrow's own JSON reader, and its columns brought to the schema's types.

Arrow reads a stream of objects and knows no messages, so alignment has to be proved. Every message given to it
begins with `{` and ends with `}`, holds no NUL, and a line feed follows each. If the stream parses, every message ends
outside all objects: inside a string the line feed would be refused, and inside an object or array no `{` may follow a
`}`. So each message is one whole object at least; and when there are as many rows as messages, each is exactly one.

Arrow's reader knows no dates, base64 or NOT NULL, and lets infinities and too large decimals through. So times, dates
and binary are read as text and converted here, column by column; rows with a value that will not convert are named as
suspects, and the reference reader judges those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from penstock.decoders.batch import (
    DEFAULT_MAX_BYTES,
    BlockError,
    Format,
    Group,
    RecordDecoder,
    Screened,
    Tombstones,
    as_texts,
    decode_batch,
)
from penstock.decoders.framing import CONFLUENT, by_schema, unframe
from penstock.decoders.json.reason import BLANKS, MAX_DEPTH, ExtraFields, JsonReference
from penstock.decoders.json.values import is_supported, reader_of
from penstock.decoders.refusal import MALFORMED_JSON, RefusedError
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD, Split
from penstock.registry import RegistrySettings

_EXTRA_TYPE = pa.map_(pa.string(), pa.string())

JsonFraming = Literal["confluent", "none"]


@dataclass(frozen=True)
class JsonDecoder(RecordDecoder):
    """Strict JSON objects to columns. NOT NULL holds at every level; with tombstones passed on, below the top.

    `extra_fields` is about fields that the schema does not name: at the top level for `keep`, which puts them
    into a map column (NULL where there are none), at every level for `quarantine`. With the framing `confluent` and no
    registry the ids are ignored. Bad records keep their header.
    """

    columns: pa.Schema
    extra_fields: ExtraFields = "ignore"
    extra_column: str = "_extra"
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES
    framing: JsonFraming = "none"
    registry: RegistrySettings | None = None
    subject: str | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        names = [*self.columns.names, COORDINATES, *([self.extra_column] if self.extra_fields == "keep" else [])]
        for field in self.columns:
            if not is_supported(field.type):
                raise DefinitionError(
                    "DECODE_TYPE", f"column {field.name}: JSON cannot fill a column of type {field.type}"
                )
            if names.count(field.name) > 1:
                raise DefinitionError("DECODE_COLUMN", f"column {field.name}: the name is taken")

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, the extra fields where they are kept, and the coordinates."""
        fields = list(self.columns)
        if self.extra_fields == "keep":
            fields.append(pa.field(self.extra_column, _EXTRA_TYPE))
        if self.tombstones == "pass":
            fields = [field.with_nullable(True) for field in fields]
        return pa.schema([*fields, COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        return decode_batch(raw, self.schema, self.tombstones, self.max_bytes, self._groups)

    def _groups(self, screened: Screened) -> Iterator[Group]:
        if self.framing == "none":
            bodies = [(screened.values, screened.rows)]
        else:
            framed = unframe(screened.values, screened.rows, CONFLUENT, screened.reasons)
            found = by_schema(framed, self.registry, self.subject, self.frozen, screened.reasons)
            bodies = [(values, rows) for _, values, rows in found]
        for values, rows in bodies:
            texts, rows = as_texts(values, rows, screened.reasons)
            trimmed, readable = find_readable(texts)
            if pc.all(readable, min_count=0).as_py():
                yield self._format, trimmed, rows
            else:
                odd = pc.invert(readable)
                yield self._format, trimmed.filter(readable), rows.filter(readable)
                yield self._single_format, texts.filter(odd), rows.filter(odd)

    @cached_property
    def _format(self) -> JsonFormat:
        return JsonFormat(self.columns, self.extra_fields, pa.schema(list(self.schema)[:-1]))

    @cached_property
    def _single_format(self) -> JsonFormat:
        return JsonFormat(self.columns, self.extra_fields, pa.schema(list(self.schema)[:-1]), one_by_one=True)


_PART_ROWS = 256


def is_fast(kind: pa.DataType) -> bool:
    """Whether the fast reader can take a column of this type: all but maps."""
    if pt.is_list(kind):
        return is_fast(kind.value_type)
    if pt.is_struct(kind):
        return all(is_fast(field.type) for field in kind)
    return not pt.is_map(kind)


def read_type(kind: pa.DataType) -> pa.DataType:
    """The type to ask the fast reader for: everything nullable, and what needs rules of ours as text."""
    if pt.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, read_type(field.type)) for field in kind])
    if pt.is_timestamp(kind) or pt.is_date32(kind) or pt.is_binary(kind):
        return pa.string()
    if pt.is_decimal128(kind):
        # Arrow checks a number's digits against the precision, then scales it, and that may silently overflow.
        # Here it cannot: 76 - scale digits, scaled, still fit 256 bits.
        return pa.decimal256(76 - kind.scale, kind.scale)
    return kind


class Finisher:
    """Finishes the columns of one block and gathers the rows that need a second look."""

    def __init__(self) -> None:
        self._suspects: list[pa.Array] = []

    @property
    def suspects(self) -> list[int]:
        """Rows of the block that the reference reader has to judge, in order, each once."""
        return sorted({row for rows in self._suspects for row in rows.to_pylist()})

    def finish(self, array: pa.Array, field: pa.Field, rows: pa.Array | None = None) -> pa.Array:
        """`array` as the field's type. `rows` says which row each element is in; None: its own."""
        if not field.nullable and array.null_count:
            self.suspect(array.is_null(), rows)
        kind = field.type
        if pt.is_struct(kind):
            return self._finish_struct(array, kind, rows)
        if pt.is_list(kind):
            return self._finish_list(array, kind, rows)
        if pt.is_floating(kind):
            finite = pc.is_finite(array)
            if pc.all(finite, min_count=0).as_py() is False:
                self.suspect(pc.invert(finite), rows)
            return array
        if pt.is_decimal128(kind):
            outside = self._suspect_out_of_bounds(array, kind, rows)
            return pc.if_else(outside, None, array).cast(kind)
        if pt.is_timestamp(kind) or pt.is_date32(kind):
            return self._convert(array, kind, rows)
        if pt.is_binary(kind):
            return self._read_each(array, kind, rows)
        return array

    def suspect(self, mask: pa.BooleanArray, rows: pa.Array | None = None) -> None:
        """Have the reference reader judge the rows that are true in `mask`."""
        at = pc.indices_nonzero(mask)
        self._suspects.append(at if rows is None else rows.take(at))

    def _finish_struct(self, array: pa.StructArray, kind: pa.StructType, rows: pa.Array | None) -> pa.Array:
        missing = array.is_null() if array.null_count else None
        children = []
        for index, field in enumerate(kind):
            child = array.field(index)
            if missing is not None and not field.nullable:
                # A null struct has no fields, so none of them is missing.
                self.suspect(pc.and_not(child.is_null(), missing), rows)
                field = field.with_nullable(True)
            children.append(self.finish(child, field, rows))
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)

    def _finish_list(self, array: pa.ListArray, kind: pa.ListType, rows: pa.Array | None) -> pa.Array:
        parents = pc.list_parent_indices(array)
        items = self.finish(array.flatten(), kind.value_field, parents if rows is None else rows.take(parents))
        missing = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=missing)

    def _convert(self, text: pa.StringArray, kind: pa.DataType, rows: pa.Array | None) -> pa.Array:
        """All values at once where Arrow can, else in parts, and the failing parts one by one."""
        try:
            values = _cast(text, kind)
        except pa.ArrowInvalid:
            if len(text) <= _PART_ROWS:
                return self._read_each(text, kind, rows)
            rows = pa.array(range(len(text)), pa.int64()) if rows is None else rows
            starts = range(0, len(text), _PART_ROWS)
            return pa.concat_arrays(
                [self._convert(text.slice(at, _PART_ROWS), kind, rows.slice(at, _PART_ROWS)) for at in starts]
            )
        self._suspect_out_of_bounds(values, kind, rows)
        return values

    def _suspect_out_of_bounds(self, values: pa.Array, kind: pa.DataType, rows: pa.Array | None) -> pa.BooleanArray:
        low, high = (pa.scalar(bound, values.type) for bound in _bounds(kind))
        outside = pc.or_(pc.less(values, low), pc.greater(values, high))
        if pc.any(outside).as_py():
            self.suspect(outside, rows)
        return outside

    def _read_each(self, text: pa.StringArray, kind: pa.DataType, rows: pa.Array | None) -> pa.Array:
        read = reader_of(kind)
        values: list[Any] = []
        failed: list[bool] = []
        for value in text.to_pylist():
            try:
                values.append(None if value is None else read(value))
                failed.append(False)
            except RefusedError:
                values.append(None)
                failed.append(True)
        if any(failed):
            self.suspect(pa.array(failed), rows)
        return pa.array(values, kind)


def _cast(text: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """The text as dates or times. Raises where Arrow cannot read one of them."""
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        if not pt.is_timestamp(kind):
            raise
    # Arrow takes no digits after the microsecond, and where the type has a zone no time without one.
    text = pc.replace_substring_regex(text, r"(\.\d{6})\d{1,3}(Z|[+-]|$)", r"\1\2")
    if kind.tz is not None:
        zoned = pc.match_substring_regex(text, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
        text = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    return text.cast(kind)


def _bounds(kind: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value that a column of the type may hold. Arrow goes beyond both."""
    if pt.is_decimal128(kind):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        return most.copy_negate(), most
    if pt.is_date32(kind):
        return date.min, date.max
    zone = None if kind.tz is None else UTC
    return datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)


_ROW = re.compile(r" in row (\d+)$")
_NOT_FINITE = r"[:,\[][ \t\r\n]*-?(NaN|Inf)"
"""Where a value begins with one of Arrow's words for numbers that are not finite; or a text looks like it."""


class JsonFormat(Format):
    """Blocks of messages through Arrow's reader, single ones through the reference reader.

    `schema` has the `columns`, with less of them NOT NULL where tombstones are passed on, and the extra fields where
    they are kept.
    """

    block_rows = 8192

    def __init__(
        self, columns: pa.Schema, extra_fields: ExtraFields, schema: pa.Schema, one_by_one: bool = False
    ) -> None:
        self.schema = schema
        self.is_fast = not one_by_one and all(is_fast(field.type) for field in columns)
        self._fields = list(columns)
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(f.name, read_type(f.type)) for f in columns]),
            unexpected_field_behavior="ignore" if extra_fields == "ignore" else "error",
        )
        self._reference = JsonReference(columns, extra_fields)

    def read_single(self, value: str) -> list[Any]:
        """The values of the columns. Raises `RefusedError`."""
        return self._reference.read(value)

    def read_block(self, values: pa.StringArray) -> tuple[list[pa.Array], list[int]]:
        """The columns, and the messages for which they may be wrong. Raises `BlockError`.

        `find_readable` says which messages a block may hold.
        """
        lines = pc.binary_join_element_wise(values, "", "\n")
        text = lines.buffers()[2]
        # Some Arrow versions take a NUL for the end of the stream.
        data = text.to_pybytes()
        if b"\0" in data:
            raise BlockError(MALFORMED_JSON, "a NUL in the message")
        options = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), options, self._options)
        except pa.ArrowInvalid as exc:
            found = _ROW.search(str(exc))
            # Arrow counts objects, so a message with two of them moves the number; it may even lie outside.
            row = int(found.group(1)) if found else len(values)
            known = row < len(values)
            raise BlockError(MALFORMED_JSON, "", [row] if known else (), row + 1 if known else 0) from None
        if table.num_rows != len(values):
            raise BlockError(MALFORMED_JSON, "")
        finisher = Finisher()
        columns = [finisher.finish(table.column(f.name).combine_chunks(), f) for f in self._fields]
        # Arrow takes these words for numbers, and in fields outside the schema it does not show them.
        if b"NaN" in data or b"Inf" in data:
            finisher.suspect(pc.match_substring_regex(values, _NOT_FINITE))
        columns += [pa.nulls(len(values), kind) for kind in self.schema.types[len(columns) :]]
        return columns, finisher.suspects


def find_readable(texts: pa.StringArray) -> tuple[pa.StringArray, pa.BooleanArray]:
    """The texts without blanks around them, and which of them a block may hold."""
    readable = _is_braced(texts)
    if not pc.all(readable, min_count=0).as_py():
        texts = pc.ascii_trim(texts, BLANKS)
        readable = _is_braced(texts)
    # A valid message has two brackets for each level, so a short one cannot be too deep.
    long = pc.greater(pc.binary_length(texts), 2 * MAX_DEPTH)
    if pc.any(long, min_count=0).as_py():
        suspects = texts.filter(long)
        openings = pc.add(pc.count_substring(suspects, "{"), pc.count_substring(suspects, "["))
        shallow = pc.replace_with_mask(pc.invert(long), long, pc.less_equal(openings, MAX_DEPTH))
        readable = pc.and_(readable, shallow)
    return texts, readable


def _is_braced(texts: pa.StringArray) -> pa.BooleanArray:
    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
