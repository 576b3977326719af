"""The table as the pipeline file wants it: made where there is none, changed as `evolve` allows, or refused.

Rows' columns enter; a table that takes them leaves, with how they go into it. Files are committed as they were staged,
so everything about them is checked here: columns, types and partitioning, by names and by field ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from penstock.config.sinks import PartitionText, parse_partition
from penstock.errors import DefinitionError, MissingError
from penstock.model import MergeRules
from penstock.sinks.evolution import (
    Evolve,
    Fit,
    Fitting,
    check_columns,
    check_partitions,
    unwritable,
    written_columns,
)
from penstock.sinks.failures import mismatch
from penstock.sinks.iceberg.partitions import Layout, spec_texts, transform_of
from penstock.sinks.iceberg.table import CatalogTable, local_path
from penstock.sinks.iceberg.types import has_type, iceberg_type, to_iceberg
from penstock.sinks.merging import check_rules


def check_schema(sink: str, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> None:
    """Refuse rows that no Iceberg table can hold as they are."""
    check_columns(sink, schema, "Iceberg", "Spark", has_type)
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


def identity_of(table: Table) -> str:
    """What a check of the table depends on: while it stays, the check holds."""
    metadata = table.metadata
    return f"{metadata.table_uuid} {metadata.current_schema_id} {metadata.default_spec_id} {metadata.location}"


def _can_widen(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Iceberg's rules of schema evolution have this: the scale of a decimal stays."""
    return not types.is_decimal(held) or held.scale == wanted.scale


def _iceberg_type(kind: pa.DataType) -> str:
    if next(unwritable("", kind, has_type), None) is not None:
        return str(kind)
    return _describe(iceberg_type(kind))


def _describe(kind: IcebergType) -> str:
    names = {StructType: "struct", ListType: "array", MapType: "map"}
    return names.get(type(kind), str(kind))


@dataclass(frozen=True)
class TableDefinition:
    """What one sink asks of its table. Goes to tasks with the sink."""

    sink: str
    warehouse: str
    partition_by: tuple[PartitionText, ...] = ()
    rules: MergeRules | None = None
    evolve: Evolve = "fail"
    keep_coordinates: bool = True

    def ready(self, catalog_table: CatalogTable, schema: pa.Schema) -> tuple[Table, Fit]:
        """The table, created or changed where necessary, and how the rows fit it."""
        table = catalog_table.load() or catalog_table.create(self._writable(schema), self.partition_by)
        fit = self.fit(table, schema)
        return self._change(catalog_table, table, schema, fit) if fit.changes_target else (table, fit)

    def check(self, catalog_table: CatalogTable, schema: pa.Schema) -> Fit | None:
        """How the rows fit the table as it is now; none where there is no table yet."""
        table = catalog_table.load()
        if table is not None:
            return self.fit(table, schema)
        self._writable(schema)
        return None

    def fit(self, table: Table, schema: pa.Schema, evolve: Evolve | None = None) -> Fit:
        """How the rows fit the table. Raises where they do not."""
        self._writable(schema, table)
        check_format(self.sink, table)
        check_partitions(self.sink, list(map(str, self.partition_by)), spec_texts(table.spec(), table.schema()))
        rules = fitting(self.sink, evolve or self.evolve)
        return rules.fit(self.written(schema), held_columns(table.schema()))

    def written(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the rows that are the table's too."""
        return written_columns(schema, keep_coordinates=self.keep_coordinates)

    def staged(self, schema: pa.Schema, layout: Layout) -> pa.Schema:
        """What of these rows is written, in the types that the table had when it was last prepared."""
        return fitting(self.sink, self.evolve).staged(self.written(schema), held_columns(layout.schema))

    def _change(self, catalog_table: CatalogTable, table: Table, schema: pa.Schema, fit: Fit) -> tuple[Table, Fit]:
        """Make the changes to the table. Another run that makes the same ones at the same time may be first."""
        try:
            changed = catalog_table.change(table, fit)
        except Exception:
            changed = catalog_table.load() or table
            if self.fit(changed, schema).changes_target:
                raise
        return changed, self.fit(changed, schema, "ignore" if self.evolve == "ignore" else "fail")

    def _writable(self, schema: pa.Schema, table: Table | None = None) -> pa.Schema:
        """The columns to write; refused where no Iceberg table in this warehouse could hold them."""
        if local_path(self.warehouse) is not None and set("#?%;") & set(self.warehouse):
            # Iceberg keeps places of files as URIs, and its readers disagree about what these stand for.
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.sink}: a warehouse's path cannot have #, ?, % or ; in it",
                context={"warehouse": self.warehouse},
            )
        written = self.written(schema)
        if table is not None and self.evolve == "ignore":
            known = {each.name.lower() for each in table.schema().fields}
            written = pa.schema([each for each in written if each.name.lower() in known])
        check_schema(self.sink, written, self.partition_by)
        if self.rules is not None:
            check_rules(self.sink, written, self.rules)
        return written


def parse_partitions(sink: str, partition_by: Sequence[str]) -> tuple[PartitionText, ...]:
    """`partition_by` as the file has it, read."""
    try:
        return tuple(map(parse_partition, partition_by))
    except ValueError as error:
        raise DefinitionError("SINK_PARTITION_TEXT", f"sink {sink}: reading partition_by: {error}") from error


def parse_identifier(sink: str, table: str) -> tuple[str, ...]:
    """The namespace, in its parts, and the name."""
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)+", table):
        raise DefinitionError(
            "SINK_TABLE_NAME",
            f"sink {sink}: a table is named by its namespace and its name",
            context={"table": table},
            hint="write it as namespace.table, with letters, digits, _ and - only",
        )
    return tuple(table.split("."))
