"""On the driver: the schema that values or keys are written by, and its id in the registry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import DefinitionError, MissingError
from penstock.registry import RegisteredSchema, RegistryClient, SchemaKind, client_of
from penstock.sinks.kafka.encode.avro_rows import AvroRows
from penstock.sinks.kafka.encode.avro_schema import avro_schema, avro_type
from penstock.sinks.kafka.encode.encoding import MAGIC, Encoder, Encoding, Encodings, Format, Role, Rows, own_columns
from penstock.sinks.kafka.encode.json_rows import JsonRows, json_schema
from penstock.sinks.kafka.encode.protobuf_files import compiled, describe, message_before, root_of
from penstock.sinks.kafka.encode.protobuf_rows import ProtobufRows, protobuf_schema
from penstock.sinks.kafka.encode.shapes import UnfitError

_KINDS: Mapping[Format, SchemaKind] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}
_TOLD_CHARS = 800


def open_encoder(of: Encodings, role: Role, encoding: Encoding, schema: pa.Schema, *, register: bool) -> Encoder | None:
    """The encoder for rows of `schema`; none where their schema has no id yet and is not to be registered now."""
    columns = _columns(of, role, encoding, schema)
    rows, schema_id = Opening(of, role, encoding, columns, client_of(encoding.registry)).established(register)
    if schema_id is None:
        return None
    index = rows.index if isinstance(rows, ProtobufRows) else b""
    return Encoder(role, columns, encoding.columns is None, MAGIC + schema_id.to_bytes(4, "big") + index, rows)


def _columns(of: Encodings, role: Role, encoding: Encoding, schema: pa.Schema) -> pa.Schema:
    own = own_columns(schema, keep_coordinates=of.keep_coordinates)
    names = own.names if encoding.columns is None else encoding.columns
    absent = [name for name in names if name not in own.names]
    if absent or not names:
        raise MissingError(
            "SINK_SCHEMA_MISMATCH",
            f"sink {of.sink}: {role}: " + (f'no column "{absent[0]}" in the rows' if absent else "no columns"),
            context={"columns": ", ".join(own.names) or "none"},
        )
    return pa.schema([own.field(name) for name in names])


@dataclass(frozen=True)
class Opening:
    """One schema on its way into the registry."""

    of: Encodings
    role: Role
    encoding: Encoding
    columns: pa.Schema
    client: RegistryClient

    def established(self, register: bool) -> tuple[Rows, int | None]:
        """How rows are written, and the id of their schema; none where it is not there and not to be registered now."""
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
        """With the field numbers of the latest version; that version itself where it says the same in other words.

        As text, not as a descriptor: Apicurio cannot compare descriptors, and answers 500 where it is to.
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
            context={"columns": _columns_told(self.columns), **({"schema": self._told(text)} if text else {})},
        )

    def _sides(self, text: str | None, latest: RegisteredSchema | None) -> dict[str, str]:
        there = "none" if latest is None else f"version {latest.version}: {self._told(latest.text, _texts(latest))}"
        ours = self._told(text) if text is not None else _columns_told(self.columns)
        return {"subject": self.subject, "of the rows": ours, "latest in the registry": there}

    def _told(self, text: str, references: Mapping[str, str] | None = None) -> str:
        """A schema in one line, for people."""
        if self.kind == "PROTOBUF":
            with suppress(UnfitError):
                text = describe(compiled(text, references or {}))
        line = " ".join(text.split())
        return line if len(line) <= _TOLD_CHARS else f"{line[:_TOLD_CHARS]} ..."


def _texts(schema: RegisteredSchema) -> dict[str, str]:
    return {reference.name: reference.text for reference in schema.references}


def _columns_told(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)


def _identifier(name: str) -> str:
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{made}" if made[:1].isdigit() else made
