"""Whether a table can take the rows: columns, types, partitioning, and features that bind a writer.

delta-rs commits the files it is given and checks nothing about them, so everything is checked here. It neither changes
a type nor writes to a table whose types were changed (the feature `typeWidening`): Spark SQL changes it, and from then
on every commit goes through Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as types
from deltalake import DeltaTable, Field, Schema, TableFeatures

from penstock.config.arrow_types import arrow_to_ddl
from penstock.errors import MissingError
from penstock.sinks.evolution import Fit, check_columns, union
from penstock.sinks.files import TableFolder
from penstock.sinks.files.folder import check_partition_columns
from penstock.sinks.spark_sql import quoted

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


def table_columns(table: DeltaTable) -> pa.Schema:
    """The columns that the table has."""
    return pa.schema(table.schema().to_arrow())


def delta_type(kind: pa.DataType) -> str:
    """A plain type as the table's schema names it."""
    try:
        return str(json.loads(Schema.from_arrow(pa.schema([pa.field("_", kind)])).to_json())["fields"][0]["type"])
    except Exception:  # Delta does not have it
        return str(kind)


def changed_fields(table: DeltaTable, fit: Fit) -> list[Field]:
    """The columns that the table gets or that get fields, whole: delta-rs merges them into those it has."""
    changed = {addition.path[0] for addition in fit.added}
    columns = union(list(table_columns(table)), list(fit.taken))
    return list(Schema.from_arrow(pa.schema([each for each in columns if each.name in changed])).fields)


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
    held = table_columns(table)
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


def allows_bare_entries(table: DeltaTable) -> bool:
    """Whether an entry without files, written by hand, is a valid version of the table."""
    return _ABOUT_FILES.issuperset(table.protocol().writer_features or ())


def alter_statements(table: str, fit: Fit) -> Iterator[str]:
    """The statements that change the table, in one commit each."""
    if fit.added:
        added = (f"{quoted(*each.path)} {spark_type(each.type)}" for each in fit.added)
        yield f"ALTER TABLE {table} ADD COLUMNS ({', '.join(added)})"
    if fit.widened:
        yield f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        widened = (f"{quoted(*each.path)} TYPE {spark_type(each.type)}" for each in fit.widened)
        yield f"ALTER TABLE {table} ALTER COLUMN {', '.join(widened)}"


def spark_type(kind: pa.DataType) -> str:
    """A type in a Spark SQL statement. Whatever is inside of it may be null."""
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(_members(list(kind)))}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    return arrow_to_ddl(kind)


def _members(fields: Sequence[pa.Field]) -> Iterator[str]:
    return (f"{quoted(each.name)}: {spark_type(each.type)}" for each in fields)


def uri_of(folder: TableFolder, path: str = "") -> str:
    """A path in the form that Spark takes, wherever its own default file system is."""
    if folder.local is None:
        return f"{folder.uri}/{path}".rstrip("/")
    return f"file:{Path(folder.local, path).absolute()}"


def table_name(folder: TableFolder) -> str:
    """The table of a folder in a statement."""
    return quoted("delta", uri_of(folder))


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


def _metadata(schema: _Json) -> Iterator[tuple[str, _Json]]:
    for field in schema["fields"]:
        yield field["name"], field["metadata"]
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _metadata(field["type"])
