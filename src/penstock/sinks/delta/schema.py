"""Whether a table can take the rows: columns, types, partitioning, and features that bind a writer.

delta-rs commits the files it is given and checks nothing about them, so everything is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as types
from deltalake import DeltaTable, Field, Schema, TableFeatures

from penstock.errors import MissingError
from penstock.sinks.evolution import check_columns
from penstock.sinks.failures import mismatch
from penstock.sinks.files.folder import check_partition_columns

_Json = Mapping[str, Any]

# Features that ask nothing of a writer who appends whole files, or only what `unsupported` looks for.
_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)

# Those that ask something only of a writer who adds or removes files.
_ABOUT_FILES = _HARMLESS | {
    "allowColumnDefaults",
    "clustering",
    "domainMetadata",
    "identityColumns",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
}


def check_schema(sink: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Refuse rows that no Delta table can hold as they are."""
    check_columns(sink, schema, "Delta", "Delta", _has_type)
    check_partition_columns(sink, schema, partition_by, "a table")


def check_partitions(sink: str, table: DeltaTable, partition_by: Sequence[str]) -> None:
    """Refuse a table that is partitioned otherwise."""
    theirs = table.metadata().partition_columns
    if list(theirs) != list(partition_by):
        facts = {"pipeline": ", ".join(partition_by) or "none", "table": ", ".join(theirs) or "none"}
        raise mismatch(sink, "the table is partitioned otherwise", facts, "set partition_by as in the table")


def held_columns(table: DeltaTable) -> pa.Schema:
    """The columns that the table has."""
    return pa.schema(table.schema().to_arrow())


def delta_type(kind: pa.DataType) -> str:
    """A plain type as the table's schema names it."""
    try:
        return str(json.loads(Schema.from_arrow(pa.schema([pa.field("_", kind)])).to_json())["fields"][0]["type"])
    except Exception:  # Delta does not have it
        return str(kind)


def lacking_fields(table: DeltaTable, taken: pa.Schema) -> list[Field]:
    """The fields that the table lacks to hold the columns `taken`, nullable, in the shape that delta-rs merges."""
    mine, held = json.loads(Schema.from_arrow(taken).to_json()), json.loads(table.schema().to_json())
    return list(Schema.from_json(json.dumps(_lacking(mine, held))).fields)


def refuse_unsupported(sink: str, found: Sequence[str], hint: str) -> MissingError:
    """The error for a table that asks of its writers what only Spark gives."""
    return MissingError(
        "SINK_TABLE_UNSUPPORTED",
        f"sink {sink}: the table asks of its writers what an append of files cannot give",
        context={"table features": ", ".join(found)},
        hint=hint,
    )


def complete_protocol(table: DeltaTable) -> None:
    """Name the features that the table uses and delta-rs left out of its protocol.

    When a column without a time zone raises the protocol, delta-rs lists that feature alone; Spark then refuses
    a table with NOT NULL columns or `delta.appendOnly`.
    """
    listed = table.protocol().writer_features
    if listed is None:
        return
    lacking = []
    if "invariants" not in listed and '"nullable":false' in table.schema().to_json().replace(" ", ""):
        lacking.append(TableFeatures.Invariants)
    if "appendOnly" not in listed and table.metadata().configuration.get("delta.appendOnly") == "true":
        lacking.append(TableFeatures.AppendOnly)
    if lacking:
        table.alter.add_feature(lacking, allow_protocol_versions_increase=True)
        table.update_incremental()


def identity_of(table: DeltaTable) -> str:
    """What a check of the table depends on: while it stays, the check holds."""
    metadata, features = table.metadata(), table.protocol().writer_features
    settings = sorted(metadata.configuration.items())
    return json.dumps([str(metadata.id), table.schema().to_json(), metadata.partition_columns, settings, features])


def columns_of(table: DeltaTable, schema: pa.Schema | None) -> pa.Schema:
    """The table's columns that rows of `schema` fill, with the table's types: inside these it may have more fields."""
    held = pa.schema(table.schema().to_arrow())
    return held if schema is None else pa.schema([held.field(name) for name in schema.names])


def unsupported(table: DeltaTable) -> list[str]:
    """What the table asks of its writers that appending files does not give, and Spark's own writer does."""
    settings = table.metadata().configuration
    found = [name for name in table.protocol().writer_features or () if name not in _HARMLESS]
    if table.protocol().min_writer_version == 6:
        found.append("identityColumns")
    found += [f"constraint {name.split('.')[-1]}" for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        found.append("columnMapping")
    for name, metadata in _metadata(json.loads(table.schema().to_json())):
        bound = [key for key in metadata if key == "delta.invariants" or key.startswith("delta.generation")]
        found += [f"{key} of column {name}" for key in bound]
    return found


def takes_bare_entries(table: DeltaTable) -> bool:
    """Whether an entry without files, written by hand, is a valid version of the table."""
    return _ABOUT_FILES.issuperset(table.protocol().writer_features or ())


def _has_type(kind: pa.DataType) -> bool:
    if types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, "UTC")
    return bool(
        types.is_signed_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_date32(kind)
        or types.is_decimal128(kind)
    )


def _lacking(mine: Any, held: Any) -> dict[str, Any]:
    """The part of our struct that the table's lacks, in the shape that `add_columns` merges."""
    its = {field["name"]: field for field in held["fields"]}
    fields = []
    for field in mine["fields"]:
        known = its.get(field["name"])
        if known is None:
            fields.append({**field, "nullable": True})
        elif kind := _lacking_within(field["type"], known["type"]):
            fields.append({**known, "type": kind})
    return {"type": "struct", "fields": fields}


def _lacking_within(mine: Any, held: Any) -> dict[str, Any] | None:
    if isinstance(mine, str):
        return None
    if mine["type"] == "struct":
        inner = _lacking(mine, held)
        return inner if inner["fields"] else None
    name = "elementType" if mine["type"] == "array" else "valueType"
    lacking = _lacking_within(mine[name], held[name])
    return {**held, name: lacking} if lacking else None


def _metadata(schema: _Json) -> Iterator[tuple[str, _Json]]:
    for field in schema["fields"]:
        yield field["name"], field["metadata"]
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _metadata(field["type"])
