"""One writer's schema read as one reader's: blocks of values in, the reader's columns out. Compiled once, kept by text.

The native reader stops where a value ends and says nothing about bytes after it. So every value gets 16 bytes behind it
that nobody outside this process can know, and the schema two more fields: where they do not come out again, the value
was longer than its schema says; where it was shorter, the reader runs out of bytes.

Of the native reader (pyruhvro 0.4) this is relied on, and tested: it checks every length before it reads, it does not
look into strings, and it keeps the bits of floating-point numbers. It panics for types that `avro_wire` never writes,
and cuts ints to 32 bits in silence, so it is never shown one.
"""

from __future__ import annotations

import io
import json
import os
from functools import lru_cache, reduce
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro

from penstock.decoders.avro.nodes import Record
from penstock.decoders.avro.promotion import IncompatibleError
from penstock.decoders.avro.reason import AvroReason
from penstock.decoders.avro.resolution import resolve
from penstock.decoders.avro.schema import UnsupportedSchemaError, parse_avro
from penstock.decoders.avro.wire import NotNativeError, Wire, takes_bytes, wire_of
from penstock.decoders.isolation import BlockError
from penstock.decoders.refusal import (
    MALFORMED_AVRO,
    SCHEMA_INCOMPATIBLE,
    SCHEMA_UNSUPPORTED,
    TOO_MANY_ITEMS,
    TRAILING_DATA,
    Reason,
    RefusedError,
)

MAX_BLOCK_MEMORY = 512 * 1024 * 1024
"""What the columns of a block may take. A value that needs more by itself has too many items."""

# First zeros: a value that is cut short reads them as numbers, lengths and branches that exist, and only then misses
# its end. Then random doubles, with an exponent in the middle of its range: neither is a NaN, which equals nothing.
_END = bytes(8) + b"".join(os.urandom(7) + b"\x40" for _ in range(2))
_ENDS = {f"end{at}": part for at, part in enumerate(memoryview(_END).cast("d"))}


class AvroProgram:
    """Reads blocks of one writer's values into one reader's columns."""

    def __init__(self, writer: str, reader: str) -> None:
        written, wanted = parse_avro(writer), parse_avro(reader)
        self.slow: str | None = None
        """Why the native reader is not used, where it is not."""
        self._whole = isinstance(wanted, Record)
        self._resolver = resolve(written, wanted)
        self._empty = not takes_bytes(written)
        wire = Wire("null", pa.null(), 0, 0)
        if not self._empty:
            try:
                wire = wire_of(written, native=True)
            except NotNativeError as error:
                self.slow = str(error)
                wire = wire_of(written, native=False)
        self._wire = wire
        self._reason = AvroReason(written, MAX_BLOCK_MEMORY)
        fields = [] if self._empty else [{"name": "value", "type": wire.schema}]
        ends = [{"name": name, "type": "double"} for name in _ENDS]
        self._schema = {"type": "record", "name": "n0", "fields": [*fields, *ends]}
        self._text = json.dumps(self._schema)
        self._parsed = fastavro.parse_schema(self._schema) if self.slow else self._schema

    def read(self, values: pa.BinaryArray) -> list[pa.Array]:
        """The reader's columns. Raises `BlockError` where any value is bad, or where they are too many at once."""
        self._check_memory(values)
        # Behind the end as many bytes again: a value that is a little short then shows, instead of failing the block.
        ends = pa.scalar(_END + bytes(len(_END)), pa.binary())
        marked = pc.binary_join_element_wise(values, ends, pa.scalar(b"", pa.binary()))
        table = self._read_slowly(marked.to_pylist()) if self.slow else self._read_native(marked.to_pylist())
        ended = reduce(pc.and_, (pc.equal(table[name], pa.scalar(part, pa.float64())) for name, part in _ENDS.items()))
        if not pc.all(ended, min_count=0).as_py():
            bad = pc.indices_nonzero(pc.invert(ended)).to_pylist()
            raise BlockError(TRAILING_DATA, "more bytes after the value", bad)
        column = self._resolver(pa.nulls(len(values)) if self._empty else table["value"], None)
        return column.flatten() if self._whole else [column]

    def check(self, value: bytes) -> None:
        """Raises `RefusedError` with what is wrong with a value's bytes."""
        self._reason.check(value)

    def _check_memory(self, values: pa.BinaryArray) -> None:
        size = pc.sum(pc.binary_length(values)).as_py() or 0
        if len(values) * (self._wire.width + 64) + size * (self._wire.ratio + 3) <= MAX_BLOCK_MEMORY:
            return
        if len(values) > 1:
            raise BlockError(TOO_MANY_ITEMS, "too many at once")
        try:
            self.check(values[0].as_py())
        except RefusedError as refused:
            raise BlockError(*refused.reason) from None

    def _read_native(self, values: list[bytes]) -> pa.RecordBatch:
        try:
            return pyruhvro.deserialize_array(values, self._text)
        except ValueError as exc:
            raise BlockError(MALFORMED_AVRO, str(exc)) from None

    def _read_slowly(self, values: list[bytes]) -> dict[str, pa.Array]:
        read = fastavro.schemaless_reader
        try:
            rows: list[Any] = [read(io.BytesIO(value), self._parsed, None) for value in values]
        except (EOFError, ValueError, IndexError, OverflowError, MemoryError, TypeError) as exc:
            raise BlockError(MALFORMED_AVRO, f"{type(exc).__name__} in a value") from None
        kinds = {"value": self._wire.arrow, **dict.fromkeys(_ENDS, pa.float64())}
        return {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}


@lru_cache(maxsize=512)
def avro_program(writer: str, reader: str) -> AvroProgram | Reason:
    """The program for a pair of schemas, or why every value of this writer is refused."""
    try:
        return AvroProgram(writer, reader)
    except UnsupportedSchemaError as error:
        return Reason(SCHEMA_UNSUPPORTED, f"the writer's schema: {error}")
    except IncompatibleError as error:
        return Reason(SCHEMA_INCOMPATIBLE, str(error))
