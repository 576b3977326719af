"""Schemas from files instead of a registry, and tables as rows of a case file, so that a trial needs no service.

Each schema file counts as registered under its subject; its id is its index in the list, from 1. A record with another
id cannot be read: that is reported without using the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from penstock import config as cfg
from penstock.assembly.build import Pipeline, build
from penstock.assembly.schemas import read_schema_file, registered, registry_settings
from penstock.assembly.tables import Tables
from penstock.config.arrow_types import parse_columns
from penstock.config.cases import TableCase
from penstock.decoders import JsonDecoder
from penstock.errors import DefinitionError, MissingError
from penstock.model import COORDINATES, RAW_SCHEMA
from penstock.registry import RegisteredSchema, RegistrySettings, SchemaKind, client_of

RowsByTable = Mapping[str, TableCase | tuple[dict[str, Any], ...]]


def given_tables(config: cfg.PipelineConfig, given: RowsByTable) -> dict[str, pa.Table]:
    """Each table with the types that the case file gives, or the pipeline file, or else those that the rows show."""
    found = {}
    for name, table in given.items():
        rows = table.rows if isinstance(table, TableCase) else table
        columns = table.columns if isinstance(table, TableCase) else getattr(config.tables.get(name), "columns", None)
        found[name] = _typed(name, rows, parse_columns(columns)) if columns is not None else _as_seen(name, rows)
    return found


def _typed(name: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows as JSON would be decoded: dates, times and decimals are written as text."""
    records = [
        {"value": json.dumps(row).encode(), "topic": name, "partition": 0, "offset": n} for n, row in enumerate(rows)
    ]
    split = JsonDecoder(schema, extra_fields="quarantine").decode(
        pa.RecordBatch.from_pylist(records, schema=RAW_SCHEMA)
    )
    if split.bad.num_rows:
        first = split.bad.slice(0, 1).to_pylist()[0]
        raise DefinitionError("CASE_TABLE_INVALID", f"table {name}, row {first['offset'] + 1}: {first['message']}")
    return pa.Table.from_batches([split.good]).drop_columns([COORDINATES])


def _as_seen(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    try:
        table = pa.Table.from_pylist([dict(row) for row in rows])
    except pa.ArrowInvalid as error:
        raise DefinitionError(
            "CASE_TABLE_INVALID",
            f"table {name}: the rows have different types for the same column",
            context={"cause": str(error).splitlines()[0]},
            hint=f'give the types: {name}: {{schema: "id BIGINT, ...", rows: [...]}}',
        ) from None
    fields = [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


_KINDS: Mapping[str, SchemaKind] = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}


@dataclass(frozen=True)
class Given:
    """What the registries of a pipeline would answer. Small, and goes along with the reader into a task."""

    registries: tuple[RegistrySettings, ...] = ()
    schemas: tuple[RegisteredSchema, ...] = ()

    def remember(self) -> None:
        """Add the schemas to the caches of the clients of this process."""
        for registry in self.registries:
            client = client_of(registry)
            for schema in self.schemas:
                client.remember(schema)


def build_offline(
    config: cfg.PipelineConfig, files: Mapping[str, str], tables: Mapping[str, pa.Table] | None = None
) -> tuple[Pipeline, Given]:
    """A pipeline with registries replaced by schema files, by subject, and tables replaced by rows."""
    given = Given(
        tuple(dict.fromkeys(_registries(config))), tuple(_schema(n, *one) for n, one in enumerate(files.items(), 1))
    )
    by_subject = {schema.subject: schema for schema in given.schemas}
    wanted = registered(config)
    missing = sorted({one.subject for one in wanted.values()} - by_subject.keys())
    if missing:
        raise MissingError(
            "CASE_SCHEMA_MISSING",
            f"reading registry schemas: the case file has none for {', '.join(missing)}",
            context={"given": ", ".join(files) or "none"},
            hint=f"tests do not use a registry; add to the case file:\nschemas:\n  {missing[0]}: FILE.avsc",
        )
    stand_ins = {name: MemoryTable(name, rows) for name, rows in (tables or {}).items()}
    schemas = {place: by_subject[one.subject] for place, one in wanted.items()}
    return build(config, schemas, Tables(config.tables, stand_ins)), given


@dataclass(frozen=True)
class MemoryTable:
    """Implements `LookupTable` over rows in memory."""

    name: str
    rows: pa.Table

    @property
    def target(self) -> str:
        """It is in the case file."""
        return "rows of the case"

    def schema(self) -> pa.Schema:
        """The columns."""
        return self.rows.schema

    def version(self) -> str:
        """It never changes."""
        return "given"

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """The rows, however large: the pipeline is tried as one whose table fits."""
        return self.rows.select(list(columns))

    def estimated_bytes(self) -> int | None:
        """Not to be asked for its size."""
        return None


def _schema(number: int, subject: str, file: str) -> RegisteredSchema:
    kind = _KINDS.get(PurePath(file).suffix)
    if kind is None:
        raise MissingError(
            "CASE_SCHEMA_UNKNOWN",
            f"reading the schema of {subject}: its kind is not clear from the file name",
            context={"file": PurePath(file).name, "known": ", ".join(_KINDS)},
        )
    return RegisteredSchema(number, kind, read_schema_file(file).decode(errors="replace"), (), subject, 1)


def _registries(config: cfg.PipelineConfig) -> Iterator[RegistrySettings]:
    for flow in cfg.flows(config):
        for value, _, _ in flow.decoders:
            for decode in (value, getattr(value, "key", None)):
                registry = getattr(decode, "registry", None)
                if registry is not None:
                    yield registry_settings(registry)
