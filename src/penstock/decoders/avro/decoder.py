"""The Avro format: every record by its own writer's schema, read as the reader's.

Records are grouped by their writer's schema and read block by block into Arrow columns, which are then made the
reader's by column operations (`resolution`), so schemas may mix at the cost of one. A record that cannot be read is
refused alone, with the reason. What the columns are is in `types`.

With single-object encoding a value follows two bytes that mark it and the fingerprint of its schema: CRC-64-AVRO of the
canonical form, in 8 bytes, little endian. There is no registry then: the schemas that may come are known beforehand.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, Literal

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.decoders.avro.nodes import Record
from penstock.decoders.avro.promotion import IncompatibleError
from penstock.decoders.avro.reason import AvroReason
from penstock.decoders.avro.references import avro_reader
from penstock.decoders.avro.resolution import resolve
from penstock.decoders.avro.schema import UnsupportedSchemaError, parse_avro
from penstock.decoders.avro.types import columns_of
from penstock.decoders.avro.wire import NotNativeError, Wire, takes_bytes, wire_of
from penstock.decoders.framing import unframe, without_first, writer_schema
from penstock.decoders.refusal import (
    MALFORMED_AVRO,
    SCHEMA_INCOMPATIBLE,
    SCHEMA_UNSUPPORTED,
    SHORT_MESSAGE,
    TOO_MANY_ITEMS,
    TRAILING_DATA,
    WRONG_FINGERPRINT,
    WRONG_MAGIC,
    BlockError,
    Pieces,
    Reason,
    RefusedError,
    isolate,
)
from penstock.decoders.screen import DEFAULT_MAX_BYTES, ScreenedValues, Tombstones, hold_back
from penstock.errors import DefinitionError
from penstock.model import COORDINATES_FIELD, Split
from penstock.registry import RegisteredSchema, RegistrySettings

MARKER = b"\xc3\x01"
HEADER_BYTES = 10


@lru_cache(maxsize=1024)
def avro_fingerprint(schema: str) -> bytes:
    """The fingerprint of a schema's text, as it stands in a message."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))


def unframe_single(
    values: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]
) -> Iterator[tuple[bytes, pa.BinaryArray, pa.UInt64Array]]:
    """The values of each fingerprint without their headers. What has none gets its reason."""
    if not len(values):
        return
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    for at in np.flatnonzero(sizes < HEADER_BYTES).tolist():
        reasons[rows[at].as_py()] = Reason(
            SHORT_MESSAGE, f"{sizes[at]} bytes, and the header of a single object alone takes {HEADER_BYTES}"
        )
    whole = np.flatnonzero(sizes >= HEADER_BYTES)
    headers = data[offsets[whole, None] + np.arange(HEADER_BYTES)]
    marked = (headers[:, : len(MARKER)] == np.frombuffer(MARKER, np.uint8)).all(axis=1)
    for at in whole[~marked].tolist():
        reasons[rows[at].as_py()] = Reason(WRONG_MAGIC, f"a single object begins with 0x{MARKER.hex()}")
    whole = whole[marked]
    prints = np.ascontiguousarray(headers[marked, len(MARKER) :]).view("<u8").ravel()
    for found in np.unique(prints):
        mine = pa.array(whole[prints == found])
        yield found.tobytes(), without_first(values.take(mine), HEADER_BYTES), rows.take(mine)


AvroFraming = Literal["confluent", "none", "single_object"]
"""What stands before each value: a schema id, nothing, or a schema's fingerprint."""

_told: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class AvroDecoder:
    """Implements `contracts.Decoder`. `reader` is a self-contained schema; no record becomes one column, `value`.

    Without a registry, ids are not looked at, and values that name no schema have the first of `writers`, or the
    reader's. A single object may have the reader's schema or any of `writers`. With a `subject`, ids must be its own.
    `frozen`: an id that this process has not seen waits (`TransientError`) instead of being asked for.
    """

    reader: str
    registry: RegistrySettings | None = None
    subject: str | None = None
    framing: AvroFraming = "confluent"
    writers: tuple[str, ...] = ()
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES
    frozen: bool = False

    def __post_init__(self) -> None:
        avro_columns(self.reader)

    def __reduce__(self) -> tuple[object, ...]:
        options = (self.framing, self.writers, self.tombstones, self.max_bytes, self.frozen)
        return AvroDecoder, (self.reader, self.registry, self.subject, *options)

    @cached_property
    def schema(self) -> pa.Schema:
        """The reader's columns, and the coordinates."""
        return pa.schema([*avro_columns(self.reader), COORDINATES_FIELD])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        held = hold_back(raw.column("value"), self.tombstones, self.max_bytes)
        pieces = Pieces(pa.schema(list(self.schema)[:-1]))
        for name, writer, values, rows in self._groups(held):
            program = writer if isinstance(writer, Reason) else self._program(name, writer)
            if isinstance(program, Reason):
                held.reasons.update(dict.fromkeys(rows.to_pylist(), program))
                continue
            if program.slow:
                self._tell(name or "the writer's schema", program.slow)
            isolate(values, rows, program.read, program.check, pieces, held.reasons)
        pieces.add_nulls(held.passed_tombstones)
        return pieces.split(raw, self.schema, held.reasons)

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, where that is so."""
        try:
            program = avro_program(avro_reader(schema), self.reader)
        except DefinitionError as error:
            return Reason(SCHEMA_UNSUPPORTED, error.summary)
        return program if isinstance(program, Reason) else None

    def notices(self) -> list[str]:
        """What a person should know, said once a process: the schemas that take the slow reader."""
        found, self._notices[:] = list(self._notices), []
        return found

    def _groups(self, held: ScreenedValues) -> Iterator[tuple[str, str | Reason, pa.BinaryArray, pa.UInt64Array]]:
        """The values of each writer's schema: its name, its text or why there is none, the values, their rows."""
        given = self.writers[0] if self.writers else self.reader
        if not len(held.values):
            return
        if self.framing == "none":
            yield "", given, held.values, held.rows
        elif self.framing == "single_object":
            known = {avro_fingerprint(text): text for text in (self.reader, *self.writers)}
            for found, values, rows in unframe_single(held.values, held.rows, held.reasons):
                unknown = Reason(WRONG_FINGERPRINT, f"no schema with the fingerprint {found.hex()} is given")
                yield f"fingerprint {found.hex()}", known.get(found, unknown), values, rows
        elif self.registry is None:
            framed = unframe(held.values, held.rows, held.reasons)
            yield "", given, framed.bodies, framed.rows
        else:
            for schema_id, values, rows in unframe(held.values, held.rows, held.reasons).by_id():
                yield f"schema id {schema_id}", self._registered(self.registry, schema_id), values, rows

    def _registered(self, registry: RegistrySettings, schema_id: int) -> str | Reason:
        found = writer_schema(registry, schema_id, self.subject, self.frozen)
        if isinstance(found, Reason):
            return found
        if found.kind != "AVRO":
            return Reason(SCHEMA_UNSUPPORTED, f"schema id {schema_id} is a schema of the kind {found.kind}")
        try:
            return avro_reader(found)
        except DefinitionError as error:
            return Reason(SCHEMA_UNSUPPORTED, error.summary)

    def _program(self, name: str, writer: str) -> AvroProgram | Reason:
        found = avro_program(writer, self.reader)
        return Reason(found.code, f"{name}: {found.message}") if isinstance(found, Reason) and name else found

    def _tell(self, name: str, why: str) -> None:
        if (name, why) not in _told:
            _told.add((name, why))
            self._notices.append(f"{name} is decoded by the slow reader: {why}")

    @cached_property
    def _notices(self) -> list[str]:
        return []


def avro_columns(reader: str) -> pa.Schema:
    """The columns of a reader schema. Raises `DefinitionError` where it has none, or is no schema."""
    try:
        return columns_of(parse_avro(reader))
    except UnsupportedSchemaError as error:
        raise DefinitionError(
            "AVRO_SCHEMA",
            f"reading the Avro schema of the columns: {error}",
            hint="give the pipeline a reader schema that has only columns, or change the registered one",
        ) from None


# One writer's schema read as one reader's: blocks of values in, the reader's columns out. Compiled once, kept by text.
#
# The native reader stops at the end of a value and ignores the bytes after it. So 16 secret bytes are appended to every
# value, and two fields to the schema. If these fields do not decode to the secret, the value was longer than its schema
# says; if it was shorter, the reader runs out of bytes.
#
# Of the native reader (pyruhvro 0.4) this is relied on, and tested: it checks every length before it reads, it does
# not look into strings, and it keeps the bits of floating-point numbers. It panics for types that `avro_wire` never
# writes, and cuts ints to 32 bits in silence, so it is never shown one.

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
