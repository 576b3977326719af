"""Whether a table can take the rows: columns, types, partitioning.

Files are committed as they were staged, so everything about them is checked here, by names and by field ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from penstock.config.partitioning import PartitionText
from penstock.errors import MissingError
from penstock.sinks.failures import mismatch
from penstock.sinks.iceberg.partitions import spec_texts, transform_of
from penstock.sinks.iceberg.types import to_iceberg, unwritable


def check_schema(sink: str, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> None:
    """Refuse rows that no Iceberg table can hold as they are."""
    wrong = [f"{name}: {kind}" for field in schema for name, kind in unwritable(field.name, field.type)]
    if wrong:
        raise mismatch(sink, "columns of types that Iceberg does not have", {"columns": ", ".join(wrong)})
    folded = [name.lower() for name in schema.names]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise mismatch(sink, "columns that differ in case only, which Spark takes for one", {"columns": twice})
    iceberg = to_iceberg(schema)
    for entry in partition_by:
        if entry.column not in schema.names:
            facts = {"partition_by": ", ".join(map(str, partition_by)), "columns": ", ".join(schema.names)}
            raise mismatch(sink, f'no column "{entry.column}" to partition by', facts)
        kind = iceberg.find_field(entry.column).field_type
        if not kind.is_primitive or not transform_of(entry).can_transform(kind):
            facts = {"partition_by": str(entry), "column": f"{entry.column} {_describe(kind)}"}
            raise mismatch(sink, "a table cannot be partitioned by a column of this type", facts)


def check_table(sink: str, table: Table, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> list[str]:
    """Refuse a table that cannot take the rows. Returns the names of the fields it lacks."""
    check_partitions(sink, table.schema(), table.spec(), partition_by)
    mine, held = to_iceberg(schema).as_struct(), table.schema().as_struct()
    nullable = {field.name: field.nullable for field in schema}
    differing = list(_differences("", mine, held, nullable))
    if differing:
        raise mismatch(
            sink,
            "the table has other types",
            {name: f"pipeline {ours}, table {its}" for name, ours, its in differing},
            "cast the column in the pipeline, or write to another table",
        )
    return list(_lacking("", mine, held))


def check_format(sink: str, table: Table) -> None:
    """Refuse a table of a format that pyiceberg reads and does not write."""
    if table.metadata.format_version > 2:
        raise MissingError(
            "SINK_TABLE_UNSUPPORTED",
            f"sink {sink}: the table's format version is newer than what can be committed to",
            context={"table": table.metadata.format_version, "newest": 2},
            hint="write to a table of format version 2",
        )


def check_partitions(sink: str, schema: Schema, spec: PartitionSpec, partition_by: Sequence[PartitionText]) -> None:
    """Refuse a table that is partitioned otherwise."""
    theirs, ours = spec_texts(spec, schema), [str(entry) for entry in partition_by]
    if theirs != ours:
        facts = {"pipeline": ", ".join(ours) or "none", "table": ", ".join(theirs) or "none"}
        raise mismatch(sink, "the table is partitioned otherwise", facts, "set partition_by as in the table")


def refuse_missing(sink: str, table: Table, schema: pa.Schema, missing: Sequence[str]) -> MissingError:
    """The error for columns that the table lacks and may not be given."""
    return mismatch(
        sink,
        f"the table lacks {', '.join(missing)}",
        {
            "pipeline": ", ".join(schema.names),
            "table": ", ".join(field.name for field in table.schema().fields),
        },
        "set evolve: add_columns on this sink, or drop the columns in the pipeline",
    )


def identity_of(table: Table) -> str:
    """What a check of the table depends on: while it stays, the check holds."""
    metadata = table.metadata
    return f"{metadata.table_uuid} {metadata.current_schema_id} {metadata.default_spec_id} {metadata.location}"


def _differences(
    path: str, mine: IcebergType, held: IcebergType, nullable: Mapping[str, bool]
) -> Iterator[tuple[str, str, str]]:
    """Where the rows cannot go into the table as they are: name, our type, the table's."""
    if isinstance(mine, StructType) and isinstance(held, StructType):
        yield from _field_differences(path, mine, held, nullable)
    elif isinstance(mine, ListType) and isinstance(held, ListType):
        if held.element_required:
            yield f"{path}[]", "may be null", "NOT NULL"
        yield from _differences(f"{path}[]", mine.element_type, held.element_type, {})
    elif isinstance(mine, MapType) and isinstance(held, MapType):
        if held.value_required:
            yield f"{path} value", "may be null", "NOT NULL"
        yield from _differences(f"{path} key", mine.key_type, held.key_type, {})
        yield from _differences(f"{path} value", mine.value_type, held.value_type, {})
    elif mine != held:
        yield path, _describe(mine), _describe(held)


def _field_differences(
    path: str, mine: StructType, held: StructType, nullable: Mapping[str, bool]
) -> Iterator[tuple[str, str, str]]:
    ours = {field.name.lower(): field for field in mine.fields}
    for its in held.fields:
        name = f"{path}.{its.name}".lstrip(".")
        field = ours.get(its.name.lower())
        if field is None:
            if its.required:
                yield name, "not written", "NOT NULL"
        elif field.name != its.name:
            yield name, f"named {field.name}", f"named {its.name}"
        elif its.required and nullable.get(its.name, True):
            yield name, "may be null", "NOT NULL"
        else:
            yield from _differences(name, field.field_type, its.field_type, {})


def _lacking(path: str, mine: IcebergType, held: IcebergType) -> Iterator[str]:
    if isinstance(mine, StructType) and isinstance(held, StructType):
        its = {field.name: field for field in held.fields}
        for field in mine.fields:
            name = f"{path}.{field.name}".lstrip(".")
            known: NestedField | None = its.get(field.name)
            if known is None:
                yield name
            else:
                yield from _lacking(name, field.field_type, known.field_type)
    elif isinstance(mine, ListType) and isinstance(held, ListType):
        yield from _lacking(f"{path}.element", mine.element_type, held.element_type)
    elif isinstance(mine, MapType) and isinstance(held, MapType):
        yield from _lacking(f"{path}.value", mine.value_type, held.value_type)


def _describe(kind: IcebergType) -> str:
    names = {StructType: "struct", ListType: "array", MapType: "map"}
    return names.get(type(kind), str(kind))
