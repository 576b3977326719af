"""Encodes values and keys by a schema of a registry: which schema, its id, and the framed bytes of each row.

On the driver the schema is made from the columns, given, or taken from the registry, looked up there and registered
unless `register: false`. Tasks get a small encoder with the id in it, and need no registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefinitionError, MissingError, TerminalError
from penstock.model import COMPUTED, COORDINATES, Refusal
from penstock.registry import RegisteredSchema, RegistryClient, RegistrySettings, SchemaKind, client_of
from penstock.sinks.kafka.encode.avro import AvroRows, avro_schema, avro_type
from penstock.sinks.kafka.encode.json_rows import JsonRows, json_schema
from penstock.sinks.kafka.encode.protobuf_rows import (
    ProtobufRows,
    compiled,
    describe,
    message_before,
    protobuf_schema,
    root_of,
)
from penstock.sinks.kafka.encode.shapes import Misfit, UnfitError
from penstock.sinks.merging import refusals

MAGIC = b"\0"
Rows = AvroRows | ProtobufRows | JsonRows
"""Rows to bytes in one format, without the framing. A null is a record without that value or key."""
Format = Literal["avro", "protobuf", "json"]
Role = Literal["value", "key"]


@dataclass(frozen=True)
class Encoding:
    """How the pipeline file wants values or keys encoded."""

    format: Format
    registry: RegistrySettings
    subject: str | None = None
    """Left out: the topic's name and the role, `orders-value`."""
    register: bool = True
    """Register a schema that is not there. If not, it must be there; with no `schema`, the subject's latest is used."""
    schema: str | None = None
    """The text of the schema. Left out: it is made from the columns."""
    message: str | None = None
    """The name of the message or record, with its package. Left out: made from the names of pipeline and sink."""
    columns: tuple[str, ...] | None = None
    """The columns that are written; left out, all of the row. A single one in Avro is its type, not a record."""


@dataclass(frozen=True)
class Encoder:
    """Writes some columns of the rows in the registry's framing. Made by `Encodings.open`."""

    role: Role
    columns: pa.Schema
    whole: bool
    """The columns are all of the row: a further one must not be lost silently."""
    prefix: bytes
    rows: Rows

    def misfits(self, rows: pa.RecordBatch) -> Iterator[Misfit]:
        """The rows that cannot be written."""
        return self.rows.misfits(self._chosen(rows))

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The framed bytes of each row."""
        bodies = self.rows.encode(self._chosen(rows))
        return pc.binary_join_element_wise(pa.scalar(self.prefix), bodies, pa.scalar(b"")).cast(pa.binary())

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns for which the schema was made; a missing one is null."""
        names, wanted = rows.schema.names, self.columns.names
        own = own_columns(rows.schema, keep_coordinates=False).names if self.whole else []
        if strange := [name for name in own if name not in wanted]:
            raise TerminalError(
                "SINK_SCHEMA_MISMATCH",
                f"encoding the {self.role}: rows have a column that its schema was not made for",
                context={"columns": ", ".join(strange), "schema": ", ".join(wanted)},
                hint="restart the run: the schema is then made for these columns",
            )
        columns = [
            rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
            for field in self.columns
        ]
        return pa.RecordBatch.from_arrays(columns, wanted)


@dataclass(frozen=True)
class Encoders:
    """The encoders of a sink's tasks; None where values or keys have no schema of a registry."""

    value: Encoder | None = None
    key: Encoder | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """What people should know."""
        there = [encoder for encoder in (self.value, self.key) if encoder is not None and encoder.rows.slow]
        return tuple(f"the {encoder.role} is encoded row by row, slowly: {encoder.rows.slow}" for encoder in there)

    def screen(self, sink: str, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """The rows that can be written, and a refusal for each other one: of several reasons the first counts."""
        refused: list[Refusal] = []
        for encoder in (self.value, self.key):
            while encoder is not None and (misfit := next(encoder.misfits(rows), None)) is not None:
                bad = pa.array(misfit.rows)
                message = f"sink {sink}: the {encoder.role}: {misfit.message}"
                refused += refusals(sink, rows.filter(bad), misfit.code, message)
                rows = rows.filter(pc.invert(bad))
        return rows, refused


@dataclass(frozen=True)
class Encodings:
    """What a sink encodes by schemas of a registry."""

    pipeline: str
    sink: str
    topic: str | None
    keep_coordinates: bool = False
    value: Encoding | None = None
    key: Encoding | None = None

    def check(self, schema: pa.Schema) -> None:
        """Raise where rows of `schema` cannot be written. An incompatible schema is found only by registering it."""
        self.open(schema, register=False)

    def open(self, schema: pa.Schema, *, register: bool = True) -> Encoders:
        """The encoders for rows of `schema`. With `register`, missing schemas are registered, if the file allows that.

        Without it, an encoder whose schema has no id yet is left out.
        """
        value = self._encoder("value", self.value, schema, register)
        return Encoders(value, self._encoder("key", self.key, schema, register))

    def _encoder(self, role: Role, encoding: Encoding | None, schema: pa.Schema, register: bool) -> Encoder | None:
        if encoding is None:
            return None
        columns = self._columns(role, encoding, schema)
        rows, schema_id = _Opening(self, role, encoding, columns, client_of(encoding.registry)).established(register)
        if schema_id is None:
            return None
        index = rows.index if isinstance(rows, ProtobufRows) else b""
        return Encoder(role, columns, encoding.columns is None, MAGIC + schema_id.to_bytes(4, "big") + index, rows)

    def _columns(self, role: Role, encoding: Encoding, schema: pa.Schema) -> pa.Schema:
        own = own_columns(schema, keep_coordinates=self.keep_coordinates)
        names = own.names if encoding.columns is None else encoding.columns
        absent = [name for name in names if name not in own.names]
        if absent or not names:
            raise MissingError(
                "SINK_SCHEMA_MISMATCH",
                f"sink {self.sink}: {role}: " + (f'no column "{absent[0]}" in the rows' if absent else "no columns"),
                context={"columns": ", ".join(own.names) or "none"},
            )
        return pa.schema([own.field(name) for name in names])


def own_columns(schema: pa.Schema, *, keep_coordinates: bool) -> pa.Schema:
    """The columns of the rows that are data: not computed for the sink, and the coordinates only if kept."""
    kept = [f for f in schema if not f.name.startswith(COMPUTED) and (keep_coordinates or f.name != COORDINATES)]
    return pa.schema(kept)


# On the driver: the schema that values or keys are written by, and its id in the registry.

_KINDS: Mapping[Format, SchemaKind] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}
_SHOWN_CHARS = 800


@dataclass(frozen=True)
class _Opening:
    """One schema on its way into the registry."""

    of: Encodings
    role: Role
    encoding: Encoding
    columns: pa.Schema
    client: RegistryClient

    def established(self, register: bool) -> tuple[Rows, int | None]:
        """How rows are written, and the id of their schema; None where it is not registered, and not to be now."""
        encoding = self.encoding
        latest = self._latest()
        if encoding.schema is None and not encoding.register:
            if latest is None:
                raise self._absent(None, latest)
            return self._rows(latest.text, latest), latest.id
        text = encoding.schema or self._made(latest)
        rows = self._rows(text, latest)
        schema_id = self.client.registered(self.subject, self.kind, text)
        if schema_id is None and not encoding.register:
            raise self._absent(text, latest)
        if schema_id is None and register:
            schema_id = self._registered(text, latest)
        return rows, schema_id

    @property
    def subject(self) -> str:
        """The subject in the registry."""
        if self.encoding.subject is not None:
            return self.encoding.subject
        if self.of.topic is None:
            raise DefinitionError(
                "SINK_SUBJECT_MISSING",
                f"sink {self.of.sink}: {self.role}: each row has its own topic, so no subject follows from it",
                hint=f"name one: {self.role}: {{format: {self.encoding.format}, subject: ...}}",
            )
        return f"{self.of.topic}-{self.role}"

    @property
    def kind(self) -> SchemaKind:
        """The format as the registry calls it."""
        return _KINDS[self.encoding.format]

    @property
    def name(self) -> str:
        """The name of the message or record."""
        if self.encoding.message is not None:
            return self.encoding.message
        words = re.split(r"[^A-Za-z0-9]+", self.of.sink)
        own = "".join(word[:1].upper() + word[1:] for word in words) + ("Key" if self.role == "key" else "")
        return f"{_identifier(self.of.pipeline)}.{_identifier(own)}"

    def _made(self, latest: RegisteredSchema | None) -> str:
        try:
            match self.encoding.format:
                case "avro" if self.role == "key" and len(self.columns) == 1:
                    return avro_type(self.columns.field(0), self.name)
                case "avro":
                    return avro_schema(self.columns, self.name)
                case "protobuf":
                    return self._made_protobuf(latest)
                case "json":
                    return json_schema(self.columns, self.name)
        except UnfitError as error:
            raise self._unfit(error, None) from None

    def _made_protobuf(self, latest: RegisteredSchema | None) -> str:
        """With the field numbers of the latest version; that version itself where both are equivalent.

        As text, not as a descriptor: Apicurio cannot compare descriptors, and answers 500.
        """
        if latest is None or latest.kind != "PROTOBUF":
            return protobuf_schema(self.columns, self.name)
        before = compiled(latest.text, _texts(latest))
        text = protobuf_schema(self.columns, self.name, message_before(before, self.name))
        return latest.text if root_of(compiled(text, {})) == root_of(before) else text

    def _rows(self, text: str, latest: RegisteredSchema | None) -> Rows:
        """How rows are written by a schema: the latest with its references, or one that has none."""
        references = _texts(latest) if latest is not None and text == latest.text else {}
        try:
            match self.encoding.format:
                case "avro":
                    return AvroRows.of(self.columns, text, tuple(references.values()))
                case "protobuf":
                    named = self.encoding.message or (None if self._given else self.name)
                    return ProtobufRows.of(self.columns, text, references, named)
                case "json":
                    return JsonRows.of(self.columns, text)
        except UnfitError as error:
            raise self._unfit(error, text) from None

    @property
    def _given(self) -> bool:
        return self.encoding.schema is not None or not self.encoding.register

    def _latest(self) -> RegisteredSchema | None:
        try:
            return self.client.latest(self.subject)
        except MissingError as error:
            if error.code in ("REGISTRY_SUBJECT_MISSING", "REGISTRY_VERSION_MISSING"):
                return None
            raise

    def _registered(self, text: str, latest: RegisteredSchema | None) -> int:
        try:
            return self.client.register(self.subject, self.kind, text)
        except MissingError as error:
            if error.code != "REGISTRY_REFUSED":
                raise
            summary = f"sink {self.of.sink}: {self.role}: {error.summary}"
            context = {**error.context, **self._sides(text, latest)}
            raise MissingError(error.code, summary, context=context, hint=error.hint) from None

    def _absent(self, text: str | None, latest: RegisteredSchema | None) -> MissingError:
        return MissingError(
            "SINK_SCHEMA_NOT_REGISTERED",
            f"sink {self.of.sink}: {self.role}: its schema is not in the registry, and `register: false` keeps it out",
            context=self._sides(text, latest),
            hint="register it, name another subject, or let the sink do it: register: true",
        )

    def _unfit(self, error: UnfitError, text: str | None) -> MissingError:
        return MissingError(
            "SINK_SCHEMA_MISMATCH",
            f"sink {self.of.sink}: {self.role}: {error}",
            context={"columns": _columns_shown(self.columns), **({"schema": self._shown(text)} if text else {})},
        )

    def _sides(self, text: str | None, latest: RegisteredSchema | None) -> dict[str, str]:
        there = "none" if latest is None else f"version {latest.version}: {self._shown(latest.text, _texts(latest))}"
        ours = self._shown(text) if text is not None else _columns_shown(self.columns)
        return {"subject": self.subject, "of the rows": ours, "latest in the registry": there}

    def _shown(self, text: str, references: Mapping[str, str] | None = None) -> str:
        """A schema in one line, for messages."""
        if self.kind == "PROTOBUF":
            with suppress(UnfitError):
                text = describe(compiled(text, references or {}))
        line = " ".join(text.split())
        return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]} ..."


def _texts(schema: RegisteredSchema) -> dict[str, str]:
    return {reference.name: reference.text for reference in schema.references}


def _columns_shown(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)


def _identifier(name: str) -> str:
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{made}" if made[:1].isdigit() else made
