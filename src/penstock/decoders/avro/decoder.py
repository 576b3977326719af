"""The Avro format: every record by its own writer's schema, read as the reader's.

Records are grouped by their writer's schema and read block by block into Arrow columns (`program`), which are then made
the reader's by column operations (`resolution`), so schemas may mix at the cost of one. A record that cannot be read is
refused alone, with the reason. What the columns are is in `types`.

With single-object encoding a value follows two bytes that mark it and the fingerprint of its schema: CRC-64-AVRO of the
canonical form, in 8 bytes, little endian. There is no registry then: the schemas that may come are known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.decoders.avro.program import AvroProgram, avro_program
from penstock.decoders.avro.references import avro_reader
from penstock.decoders.avro.schema import UnsupportedSchemaError, parse_avro
from penstock.decoders.avro.types import columns_of
from penstock.decoders.framing import unframe, without_first, writer_schema
from penstock.decoders.isolation import Pieces, isolate
from penstock.decoders.refusal import SCHEMA_UNSUPPORTED, SHORT_MESSAGE, WRONG_FINGERPRINT, WRONG_MAGIC, Reason
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
