"""Whether a table can take the rows: columns, types, partitioning.

Files are committed as they were staged, so everything about them is checked here, by names and by field ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from penstock.config.sinks import PartitionText
from penstock.errors import MissingError
from penstock.sinks.evolution import Evolve, Fitting
from penstock.sinks.failures import mismatch
from penstock.sinks.iceberg.partitions import spec_texts, transform_of
from penstock.sinks.iceberg.types import iceberg_type, to_iceberg, unwritable


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


def fitting(sink: str, evolve: Evolve) -> Fitting:
    """How rows are held against a table's columns."""
    return Fitting(sink, evolve, can_widen=_can_widen, describe=_iceberg_type)


def held_columns(schema: Schema) -> pa.Schema:
    """The columns of a table."""
    return schema_to_pyarrow(schema, include_field_ids=False)


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


def identity_of(table: Table) -> str:
    """What a check of the table depends on: while it stays, the check holds."""
    metadata = table.metadata
    return f"{metadata.table_uuid} {metadata.current_schema_id} {metadata.default_spec_id} {metadata.location}"


def _can_widen(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Iceberg's rules of schema evolution have this: the scale of a decimal stays."""
    return not types.is_decimal(held) or held.scale == wanted.scale


def _iceberg_type(kind: pa.DataType) -> str:
    if next(unwritable("", kind), None) is not None:
        return str(kind)
    return _describe(iceberg_type(kind))


def _describe(kind: IcebergType) -> str:
    names = {StructType: "struct", ListType: "array", MapType: "map"}
    return names.get(type(kind), str(kind))
