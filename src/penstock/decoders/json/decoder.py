"""The JSON format: blocks through the fast reader, and only what it will not take through the reference.

A window runs over the messages. A block that the fast reader refuses is cut down to where it fails, a few
messages there are read one by one, which also says what is wrong with the bad ones, and the window opens
again. Where bad records are dense, ever longer stretches are read one by one, so the cost stays linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.json.block import JsonBlockReader, RejectedBlockError, find_readable
from penstock.decoders.json.reason import ExtraFields, JsonReference
from penstock.decoders.json.values import is_supported
from penstock.decoders.refusal import Pieces, Reason, RefusedError
from penstock.decoders.screen import DEFAULT_MAX_BYTES, Tombstones, screen
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD, Split

_EXTRA_TYPE = pa.map_(pa.string(), pa.string())

_BLOCK_ROWS = 8192
_BLOCK_BYTES = 32 * 1024 * 1024
# Under this many rows a call of the fast reader costs more than reading them one by one.
_FEW_ROWS = 32
_LONGEST_STRETCH = 1024


@dataclass(frozen=True)
class JsonDecoder:
    """Strict JSON objects to columns. NOT NULL holds at every level; with tombstones passed on, below the top.

    `extra_fields` is about fields that the schema does not name: at the top level for `keep`, which puts them
    into a map column (NULL where there are none), at every level for `quarantine`.
    """

    columns: pa.Schema
    extra_fields: ExtraFields = "ignore"
    extra_column: str = "_extra"
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        names = [*self.columns.names, COORDINATES, *([self.extra_column] if self.extra_fields == "keep" else [])]
        for field in self.columns:
            if not is_supported(field.type):
                raise DefinitionError(
                    "DECODE_TYPE", f"column {field.name}: JSON cannot fill a column of type {field.type}"
                )
            if names.count(field.name) > 1:
                raise DefinitionError("DECODE_COLUMN", f"column {field.name}: the name is taken")

    def __reduce__(self) -> tuple[object, ...]:
        # Without the cached readers: they are made again in the task.
        options = (self.extra_fields, self.extra_column, self.tombstones, self.max_bytes)
        return JsonDecoder, (self.columns, *options)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, the extra fields where they are kept, and the coordinates."""
        return pa.schema([*self._decoded, COORDINATES_FIELD])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        screened = screen(raw.column("value"), self.tombstones, self.max_bytes)
        texts, readable = find_readable(screened.texts)
        pieces = Pieces(self._decoded)
        work = _Work(self._decoded, self._block_reader, self._reference, pieces, screened.reasons)
        if not self._block_reader.usable:
            work.read_singly(texts, screened.rows)
        elif pc.all(readable, min_count=0).as_py():
            work.read_blocks(texts, screened.rows)
        else:
            work.read_blocks(texts.filter(readable), screened.rows.filter(readable))
            odd = pc.invert(readable)
            work.read_singly(screened.texts.filter(odd), screened.rows.filter(odd))
        pieces.add_nulls(screened.passed_tombstones)
        return pieces.split(raw, self.schema, screened.reasons)

    @cached_property
    def _decoded(self) -> pa.Schema:
        fields = list(self.columns)
        if self.extra_fields == "keep":
            fields.append(pa.field(self.extra_column, _EXTRA_TYPE))
        if self.tombstones == "pass":
            fields = [field.with_nullable(True) for field in fields]
        return pa.schema(fields)

    @cached_property
    def _block_reader(self) -> JsonBlockReader:
        return JsonBlockReader(self.columns, self.extra_fields)

    @cached_property
    def _reference(self) -> JsonReference:
        return JsonReference(self.columns, self.extra_fields)


class _Work:
    """One batch on its way: what is read goes to the pieces, what is refused to the reasons."""

    def __init__(
        self,
        schema: pa.Schema,
        block_reader: JsonBlockReader,
        reference: JsonReference,
        pieces: Pieces,
        reasons: dict[int, Reason],
    ) -> None:
        self._schema = schema
        self._block_reader = block_reader
        self._reference = reference
        self._pieces = pieces
        self._reasons = reasons

    def read_blocks(self, texts: pa.StringArray, rows: pa.UInt64Array) -> None:
        """Decode texts that `find_readable` allows, by block where the fast reader takes them."""
        at, size, stretch, known_bad = 0, _BLOCK_ROWS, _FEW_ROWS, -1
        while at < len(texts):
            if at == known_bad:
                self.read_singly(texts.slice(at, 1), rows.slice(at, 1))
                at += 1
                continue
            block = texts.slice(at, size)
            if block.nbytes > _BLOCK_BYTES and len(block) > 1:
                size = len(block) // 2
                continue
            try:
                self._read_block(block, rows.slice(at, len(block)))
            except RejectedBlockError as rejected:
                # Arrow counts objects, so a message with two of them moves the number; it may even lie outside.
                row = rejected.row if rejected.row is not None and rejected.row < len(block) else None
                if row is not None and row > _FEW_ROWS:
                    size = row
                    known_bad = at + size
                    continue
                size = max(_FEW_ROWS, len(block) // 4)
                if row is None and len(block) > _FEW_ROWS:
                    continue
                self.read_singly(texts.slice(at, stretch), rows.slice(at, stretch))
                at += stretch
                stretch = min(2 * stretch, _LONGEST_STRETCH)
            else:
                at += len(block)
                size = min(2 * size, _BLOCK_ROWS)
                stretch = _FEW_ROWS

    def read_singly(self, texts: pa.StringArray, rows: pa.UInt64Array) -> None:
        """Decode texts one by one; refuse those that are bad."""
        values: list[list[Any]] = []
        good: list[int] = []
        for row, text in zip(rows.to_pylist(), texts.to_pylist(), strict=True):
            try:
                values.append(self._reference.read(text))
                good.append(row)
            except RefusedError as refused:
                self._reasons[row] = refused.reason
        if good:
            columns = zip(*values, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
            self._pieces.add(arrays, pa.array(good, pa.uint64()))

    def _read_block(self, texts: pa.StringArray, rows: pa.UInt64Array) -> None:
        columns, suspects = self._block_reader.read(texts)
        columns += [pa.nulls(len(texts), f.type) for f in list(self._schema)[len(columns) :]]
        if not suspects:
            self._pieces.add(columns, rows)
            return
        doubtful = pa.array(suspects, pa.int64())
        sure = pc.invert(pc.is_in(pa.array(range(len(texts)), pa.int64()), doubtful))
        self._pieces.add([column.filter(sure) for column in columns], rows.filter(sure))
        self.read_singly(texts.take(doubtful), rows.take(doubtful))
