"""The Avro format: every record by its own writer's schema, read as the reader's.

Records are grouped by their writer's schema and read block by block into Arrow columns, which are then made the
reader's by column operations (`resolution`), so schemas may mix at the cost of one. A record that cannot be read is
refused alone, with the reason. What the columns are is in `types`.

With single-object encoding the fingerprint before a value is CRC-64-AVRO of the schema's canonical form. There is no
registry then: the schemas that may come are known beforehand.

The native reader stops at the end of a value and ignores the bytes after it. So 16 secret bytes are appended to every
value, and two fields to the schema. If these fields do not decode to the secret, the value was longer than its schema
says; if it was shorter, the reader runs out of bytes.

Of the native reader (pyruhvro 0.4) this is relied on, and tested: it checks every length before it reads, it does
not look into strings, and it keeps the bits of floating-point numbers. It panics for types that `wire` never writes,
and cuts ints to 32 bits in silence, so it is never shown one.

Why a value cannot be read is found out byte by byte against its writer's schema. That is slow, and asked only about
values that the block readers refuse or must not see; it takes no memory for what it reads, and stops at the first
fault and at a limit.
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
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.decoders.avro.resolution import IncompatibleError, resolve
from penstock.decoders.avro.schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    UnsupportedSchemaError,
    inline,
    parse_avro,
)
from penstock.decoders.avro.types import columns_of
from penstock.decoders.avro.wire import NotNativeError, Wire, takes_bytes, wire_of
from penstock.decoders.batch import (
    DEFAULT_MAX_BYTES,
    BlockError,
    Format,
    Group,
    RecordDecoder,
    Screened,
    Tombstones,
    decode_batch,
)
from penstock.decoders.framing import CONFLUENT, SINGLE_OBJECT, by_schema, unframe
from penstock.decoders.refusal import (
    INVALID_UTF8,
    MALFORMED_AVRO,
    SCHEMA_INCOMPATIBLE,
    SCHEMA_UNSUPPORTED,
    TOO_MANY_ITEMS,
    TRAILING_DATA,
    TRUNCATED,
    WRONG_FINGERPRINT,
    Reason,
    RefusedError,
)
from penstock.errors import DefinitionError
from penstock.model import COORDINATES_FIELD, Split
from penstock.registry import RegisteredSchema, RegistrySettings


@lru_cache(maxsize=1024)
def avro_fingerprint(schema: str) -> bytes:
    """The fingerprint of a schema's text, as a message has it."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))


AvroFraming = Literal["confluent", "none", "single_object"]
"""The header of each value: a schema id, none, or a schema's fingerprint."""


@dataclass(frozen=True)
class AvroDecoder(RecordDecoder):
    """`reader` is a self-contained schema; no record becomes one column, `value`.

    Without a registry ids are ignored, and values that name no schema have the first of `writers`, or the
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

    @cached_property
    def schema(self) -> pa.Schema:
        """The reader's columns, and the coordinates."""
        return pa.schema([*avro_columns(self.reader), COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        return decode_batch(raw, self.schema, self.tombstones, self.max_bytes, self._groups)

    @property
    def knows_refusals(self) -> bool:
        """Always: the writer's schema is resolved as a whole."""
        return True

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, where that is so."""
        try:
            found = avro_format(avro_reader(schema), self.reader)
        except DefinitionError as error:
            return Reason(SCHEMA_UNSUPPORTED, error.summary)
        return found if isinstance(found, Reason) else None

    def conditions(self) -> list[str]:
        """The schemas met so far that take the slow reader."""
        return list(self._slow)

    @cached_property
    def _slow(self) -> dict[str, None]:
        return {}

    def _groups(self, screened: Screened) -> Iterator[Group]:
        for name, writer, values, rows in self._written(screened):
            found = writer if isinstance(writer, Reason) else avro_format(writer, self.reader)
            if isinstance(found, Reason):
                if name and found is not writer:
                    found = Reason(found.code, f"{name}: {found.message}")
                screened.reasons.update(dict.fromkeys(rows.to_pylist(), found))
                continue
            if found.slow:
                schema = name or "the writer's schema"
                self._slow[f"{schema} is decoded by the slow reader: {found.slow}"] = None
            yield found, values, rows

    def _written(self, screened: Screened) -> Iterator[tuple[str, str | Reason, pa.BinaryArray, pa.UInt64Array]]:
        """The values of each writer's schema: its name, its text or why there is none, the values, their rows."""
        given = self.writers[0] if self.writers else self.reader
        values, rows, reasons = screened.values, screened.rows, screened.reasons
        if self.framing == "none":
            yield "", given, values, rows
        elif self.framing == "single_object":
            known = {avro_fingerprint(text): text for text in (self.reader, *self.writers)}
            for number, bodies, theirs in unframe(values, rows, SINGLE_OBJECT, reasons).by_id():
                found = number.to_bytes(8, "little")
                unknown = Reason(WRONG_FINGERPRINT, f"no schema with the fingerprint {found.hex()} is given")
                yield f"fingerprint {found.hex()}", known.get(found, unknown), bodies, theirs
        else:
            framed = unframe(values, rows, CONFLUENT, reasons)
            for schema, bodies, theirs in by_schema(framed, self.registry, self.subject, self.frozen, reasons):
                name, writer = ("", given) if schema is None else (f"schema id {schema.id}", _text_of(schema))
                yield name, writer, bodies, theirs


def avro_columns(reader: str) -> pa.Schema:
    """The columns of a reader schema. Raises `DefinitionError` where it has none, or is no schema."""
    try:
        return columns_of(parse_avro(reader))
    except UnsupportedSchemaError as error:
        raise DefinitionError(
            "AVRO_SCHEMA",
            f"reading the Avro schema of the columns: {error}",
            hint="set a reader schema that has only columns, or change the registered one",
        ) from None


def _text_of(schema: RegisteredSchema) -> str | Reason:
    if schema.kind != "AVRO":
        return Reason(SCHEMA_UNSUPPORTED, f"schema id {schema.id} is a schema of the kind {schema.kind}")
    try:
        return avro_reader(schema)
    except DefinitionError as error:
        return Reason(SCHEMA_UNSUPPORTED, error.summary)


# A registered schema with its references inlined.


@lru_cache(maxsize=1024)
def avro_reader(schema: RegisteredSchema) -> str:
    """The schema's text; what it refers to is put in where it is first named. Raises `DefinitionError` AVRO_SCHEMA."""
    if not schema.references:
        return schema.text
    try:
        return inline(schema.text, [reference.text for reference in schema.references])
    except UnsupportedSchemaError as error:
        raise DefinitionError("AVRO_SCHEMA", f"schema id {schema.id}: {error}") from None


MAX_BLOCK_MEMORY = 512 * 1024 * 1024
"""What the columns of a block may take. A value that needs more by itself has too many items."""

# First zeros: a value that is cut short reads them as numbers, lengths and branches that exist, and only then misses
# its end. Then random doubles, with an exponent in the middle of its range: neither is a NaN, which equals nothing.
_END = bytes(8) + b"".join(os.urandom(7) + b"\x40" for _ in range(2))
_ENDS = {f"end{at}": part for at, part in enumerate(memoryview(_END).cast("d"))}


class AvroFormat(Format):
    """Reads one writer's values into one reader's columns. Raises `UnsupportedSchemaError` and `IncompatibleError`."""

    def __init__(self, writer: str, reader: str) -> None:
        self._writer, wanted = parse_avro(writer), parse_avro(reader)
        self.schema = columns_of(wanted)
        self.slow: str | None = None
        """Why the native reader is not used, if so."""
        self._whole = isinstance(wanted, Record)
        self._resolver = resolve(self._writer, wanted)
        self._empty = not takes_bytes(self._writer)
        wire = Wire("null", pa.null(), 0, 0)
        if not self._empty:
            try:
                wire = wire_of(self._writer, native=True)
            except NotNativeError as error:
                self.slow = str(error)
                wire = wire_of(self._writer, native=False)
        self._wire = wire
        # A value takes so much for itself, and for each of its bytes. Both may have half.
        self._row_width, self._byte_width = wire.width + 64, wire.ratio + 3
        self.block_rows = max(1, min(Format.block_rows, MAX_BLOCK_MEMORY // 2 // self._row_width))
        self.block_bytes = min(Format.block_bytes, MAX_BLOCK_MEMORY // 2 // self._byte_width)
        fields = [] if self._empty else [{"name": "value", "type": wire.schema}]
        ends = [{"name": name, "type": "double"} for name in _ENDS]
        self._schema = {"type": "record", "name": "n0", "fields": [*fields, *ends]}
        self._text = json.dumps(self._schema)
        self._parsed = fastavro.parse_schema(self._schema) if self.slow else self._schema

    def read_block(self, values: pa.BinaryArray) -> tuple[list[pa.Array], list[int]]:
        """The reader's columns. Raises `BlockError` where any value is bad."""
        if len(values) == 1:
            self._check_memory(values[0].as_py())
        # Behind the end as many bytes again: a value that is a little short then shows, instead of failing the block.
        ends = pa.scalar(_END + bytes(len(_END)), pa.binary())
        marked = pc.binary_join_element_wise(values, ends, pa.scalar(b"", pa.binary()))
        table = self._read_slowly(marked.to_pylist()) if self.slow else self._read_native(marked.to_pylist())
        ended = reduce(pc.and_, (pc.equal(table[name], pa.scalar(part, pa.float64())) for name, part in _ENDS.items()))
        if not pc.all(ended, min_count=0).as_py():
            bad = pc.indices_nonzero(pc.invert(ended)).to_pylist()
            raise BlockError(TRAILING_DATA, "more bytes after the value", bad, len(values))
        column = self._resolver(pa.nulls(len(values)) if self._empty else table["value"], None)
        return column.flatten() if self._whole else [column], []

    def read_single(self, value: bytes) -> None:
        """Only checks the value. Raises `RefusedError`."""
        walk = _Walk(value, MAX_BLOCK_MEMORY)
        walk.node(self._writer)
        left = len(value) - walk.at
        if left:
            raise RefusedError(TRAILING_DATA, f"{left} more bytes after the value, which ends at byte {walk.at}")

    def _check_memory(self, value: bytes) -> None:
        if self._row_width + len(value) * self._byte_width > MAX_BLOCK_MEMORY:
            try:
                self.read_single(value)
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
def avro_format(writer: str, reader: str) -> AvroFormat | Reason:
    """The format for a pair of schemas, or why every value of this writer is refused."""
    try:
        return AvroFormat(writer, reader)
    except UnsupportedSchemaError as error:
        return Reason(SCHEMA_UNSUPPORTED, f"the writer's schema: {error}")
    except IncompatibleError as error:
        return Reason(SCHEMA_INCOMPATIBLE, str(error))


_SIZES = {"float": 4, "double": 8}
_INT = 2**31


class _Walk:
    """One value, walked by its writer's schema. It may take up to `limit` bytes of memory as columns."""

    def __init__(self, value: bytes, limit: int) -> None:
        self._value = value
        self._left = limit
        self._limit = limit
        self.at = 0

    def node(self, node: Node) -> None:
        match node:
            case Primitive(kind="null"):
                pass
            case Primitive(kind="boolean"):
                self._boolean()
            case Primitive(kind="int"):
                if not -_INT <= self._long() < _INT:
                    raise self._malformed("an int of more than 32 bits")
            case Primitive(kind="long"):
                self._long()
            case Primitive(kind="float" | "double"):
                self._skip(_SIZES[node.kind])
            case Primitive():
                self._text(utf8=node.kind == "string")
            case Fixed():
                self._skip(node.size)
            case Enum():
                self._index("enum", len(node.symbols))
            case Union():
                self.node(node.branches[self._index("union", len(node.branches))])
            case Record():
                for field in node.fields:
                    try:
                        self.node(field.type)
                    except RefusedError as refused:
                        raise refused.inside(field.name) from None
            case Array() | Map():
                self._items(node)

    def _items(self, node: Array | Map) -> None:
        item = node.items if isinstance(node, Array) else node.values
        wire = wire_of(item, native=False) if takes_bytes(item) else None
        least, width = (wire.least, wire.width) if wire else (0, 0)
        if isinstance(node, Map):
            least, width = least + 1, width + 20
        read = 0
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            if count * max(least, 1) > len(self._value):
                raise RefusedError(TOO_MANY_ITEMS, f"a block of {count} items in {len(self._value)} bytes")
            self._left -= count * width
            if self._left < 0:
                raise RefusedError(TOO_MANY_ITEMS, f"more items than fit {self._limit} bytes of memory")
            for _ in range(count):
                try:
                    if isinstance(node, Map):
                        self._text(utf8=True)
                    self.node(item)
                except RefusedError as refused:
                    raise refused.inside(f"[{read}]") from None
                read += 1

    def _long(self) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self._value):
                raise self._truncated(1)
            byte = self._value[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= 2**64 - 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift >= 64:
                raise self._malformed("a number of more than 10 bytes")

    def _boolean(self) -> None:
        at = self.at
        self._skip(1)
        if self._value[at] > 1:
            raise self._malformed("a boolean that is neither 0 nor 1")

    def _index(self, kind: str, count: int) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise self._malformed(f"index {index}, and the {kind} has {count}")
        return index

    def _text(self, utf8: bool) -> None:
        size = self._long()
        if size < 0:
            raise self._malformed(f"a length of {size}")
        at = self.at
        self._skip(size)
        if utf8:
            try:
                self._value[at : self.at].decode()
            except UnicodeDecodeError as exc:
                byte = self._value[at + exc.start]
                raise RefusedError(INVALID_UTF8, f"byte 0x{byte:02x} at position {at + exc.start}") from None

    def _skip(self, size: int) -> None:
        if size > len(self._value) - self.at:
            raise self._truncated(size)
        self.at += size

    def _truncated(self, size: int) -> RefusedError:
        left = len(self._value) - self.at
        return RefusedError(TRUNCATED, f"{size} bytes more are wanted at byte {self.at}, and {left} are left")

    def _malformed(self, problem: str) -> RefusedError:
        return RefusedError(MALFORMED_AVRO, f"{problem}, before byte {self.at}")
