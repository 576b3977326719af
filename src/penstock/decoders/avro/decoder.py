"""The Avro format: every record by its own writer's schema, read as the reader's.

Records are grouped by their writer's schema and read block by block into Arrow columns, which are then made the
reader's by column operations (`resolution`), so schemas may mix at the cost of one. A record that cannot be read is
refused alone, with the reason. What the columns are is in `types`.

With single-object encoding the fingerprint before a value is CRC-64-AVRO of the schema's canonical form. There is no
registry then: the schemas that may come are known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.decoders.avro.format import avro_format
from penstock.decoders.avro.schema import NAMED, PRIMITIVES, UnsupportedSchemaError, full_name, parse_avro
from penstock.decoders.avro.types import columns_of
from penstock.decoders.batch import DEFAULT_MAX_BYTES, Group, RecordDecoder, Screened, Tombstones, decode_batch
from penstock.decoders.framing import CONFLUENT, SINGLE_OBJECT, by_schema, unframe
from penstock.decoders.refusal import SCHEMA_UNSUPPORTED, WRONG_FINGERPRINT, Reason
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
            hint="give the pipeline a reader schema that has only columns, or change the registered one",
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


def inline(text: str, references: list[str]) -> str:
    """`text` with the types of `references`, which may refer to those before them. Raises `UnsupportedSchemaError`."""
    try:
        types: dict[str, Any] = {}
        for reference in references:
            found = _absolute(json.loads(reference), "")
            for part in found if isinstance(found, list) else [found]:
                if isinstance(part, dict) and part.get("type") in NAMED:
                    types[part["name"]] = part
        return json.dumps(_put_in(_absolute(json.loads(text), ""), types, set()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise UnsupportedSchemaError(f"the schema or one it refers to is not valid: {str(exc)[:200]}") from None


def _absolute(schema: Any, namespace: str) -> Any:
    """The schema with every name in full."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else full_name(schema, namespace)
    if isinstance(schema, list):
        return [_absolute(branch, namespace) for branch in schema]
    kind = schema["type"]
    if kind in NAMED if isinstance(kind, str) else False:
        name = full_name(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        found = {key: value for key, value in schema.items() if key != "namespace"} | {"name": name}
        if "aliases" in schema:
            found["aliases"] = [full_name(alias, inner) for alias in schema["aliases"] or ()]
        if "fields" in schema:
            found["fields"] = [field | {"type": _absolute(field["type"], inner)} for field in schema["fields"]]
        return found
    found = dict(schema)
    for key in ("items", "values"):
        if key in found:
            found[key] = _absolute(found[key], namespace)
    if kind not in ("array", "map") if isinstance(kind, str) else True:
        found["type"] = _absolute(kind, namespace)
    return found


def _put_in(schema: Any, types: dict[str, Any], defined: set[str]) -> Any:
    """The schema with each type of `types` where it is first named."""
    if isinstance(schema, str):
        if schema in types and schema not in defined:
            return _put_in(types[schema], types, defined)
        return schema
    if isinstance(schema, list):
        return [_put_in(branch, types, defined) for branch in schema]
    if "name" in schema:
        defined.add(schema["name"])
    found = dict(schema)
    if "fields" in found:
        found["fields"] = [field | {"type": _put_in(field["type"], types, defined)} for field in found["fields"]]
    for key in ("items", "values"):
        if key in found:
            found[key] = _put_in(found[key], types, defined)
    if found["type"] not in (*NAMED, "array", "map") if isinstance(found["type"], str) else True:
        found["type"] = _put_in(found["type"], types, defined)
    return found
