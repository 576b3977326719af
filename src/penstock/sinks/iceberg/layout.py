"""What a task has to know of a table, in a form that pickles small, and whether what it staged still fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties

from penstock.sinks.failures import mismatch
from penstock.sinks.iceberg.types import with_ids


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a table's files are, and how they are written."""

    location: str
    data: str
    """The folder of its data files."""
    schema: Schema
    spec: PartitionSpec
    metrics: Mapping[str, str]
    """The table's settings of which statistics to keep."""

    @classmethod
    def of(cls, table: Table) -> Layout:
        """The layout of a table as it is now."""
        properties = table.metadata.properties
        location = table.location().rstrip("/")
        data = properties.get(TableProperties.WRITE_DATA_PATH, f"{location}/data").rstrip("/")
        metrics = {name: value for name, value in properties.items() if name.startswith("write.metadata.metrics.")}
        return cls(location, data, table.schema(), table.spec(), metrics)


def check_staged(sink: str, table: Table, schema: pa.Schema, layout: Layout) -> None:
    """Refuse a table for which files staged by `layout` would be read as something else: they go by field ids."""
    now = Layout.of(table)
    staged, held = (with_ids(schema, found.schema.as_struct()) for found in (layout, now))
    if staged.equals(held, check_metadata=True) and (layout.spec.spec_id, layout.data) == (now.spec.spec_id, now.data):
        return
    raise mismatch(
        sink,
        "the table's columns or partitions were replaced since the start",
        {"at the start": f"{layout.schema.fields}", "now": f"{now.schema.fields}"},
        "start again: the batch is then staged for the table as it is now",
    )
