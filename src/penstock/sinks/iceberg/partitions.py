"""Rows split by what a table is partitioned by, and the values as Iceberg keeps them in its manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import (
    BucketTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    parse_transform,
)
from pyiceberg.types import IcebergType, StringType

from penstock.config.sinks import PartitionText
from penstock.model import Refusal
from penstock.sinks.arrow_types import is_text
from penstock.sinks.failures import mismatch
from penstock.sinks.files import folder_of
from penstock.sinks.files.folder import encode, split_by_codes
from penstock.sinks.iceberg.types import with_ids
from penstock.sinks.merging import PARTITION_VALUE, refusals

Values = tuple[Any, ...]
"""Partition values as stored in manifests: dates as days, times as microseconds."""

_SUFFIXES = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
_HOUR = 3_600_000_000
_FIRST_FIELD_ID = 1000
_LONGEST_FOLDER = 255


def transform_of(entry: PartitionText) -> Transform[Any, Any]:
    """What pyiceberg calls this transform."""
    sized = f"[{entry.size}]" if entry.size is not None else ""
    return parse_transform(f"{entry.transform}{sized}")


def spec_of(schema: Schema, partition_by: Sequence[PartitionText]) -> PartitionSpec:
    """The partition spec of a new table. Fields are named as Spark names them."""
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(entry.column).field_id,
                field_id=_FIRST_FIELD_ID + place,
                transform=transform_of(entry),
                name=entry.column + _SUFFIXES.get(entry.transform, f"_{entry.transform}"),
            )
            for place, entry in enumerate(partition_by)
        )
    )


def spec_texts(spec: PartitionSpec, schema: Schema) -> list[str]:
    """What a table is partitioned by, as one would write it."""
    return [str(_entry(field, schema)) for field in spec.fields if not isinstance(field.transform, VoidTransform)]


def refuse_long_values(
    sink: str, rows: pa.RecordBatch, partition_by: Sequence[PartitionText]
) -> tuple[pa.RecordBatch, list[Refusal]]:
    """Refuse texts to partition by that no folder can be named after: Spark, writing the files, does not cut them."""
    refused: list[Refusal] = []
    for entry in partition_by:
        kind = rows.schema.field(entry.column).type if entry.column in rows.schema.names else None
        if entry.transform not in ("identity", "truncate") or not (kind is not None and is_text(kind)):
            continue
        change = transform_of(entry).transform(StringType())
        texts = pc.unique(rows.column(entry.column)).drop_null().to_pylist()
        long = [text for text in texts if len(quote_plus(f"{entry.column}_trunc={change(text)}")) > _LONGEST_FOLDER]
        if long:
            found = pc.is_in(rows.column(entry.column), pa.array(long, kind))
            message = f"sink {sink}: a value of {entry.column} is too long to partition the table by"
            refused += refusals(sink, rows.filter(found), PARTITION_VALUE, message)
            rows = rows.filter(pc.invert(found))
    return rows, refused


def _entry(field: PartitionField, schema: Schema) -> PartitionText:
    name, transform = str(schema.find_column_name(field.source_id)), field.transform
    if isinstance(transform, BucketTransform):
        return PartitionText(name, "bucket", transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        return PartitionText(name, "truncate", transform.width)
    return PartitionText(name, str(transform))


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    label: str
    transform: Transform[Any, Any]
    source: IcebergType


class RowSplitter:
    """Splits rows by the values of a partition spec."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._columns = [
            _Column(
                str(schema.find_column_name(field.source_id)),
                field.name,
                field.transform,
                schema.find_field(field.source_id).field_type,
            )
            for field in spec.fields
        ]

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """Yield each combination of values with its rows, in their order."""
        encoded = [
            encode(_coarse(rows.column(column.name), column.transform), column.transform.transform(column.source))
            for column in self._columns
        ]
        return split_by_codes(rows, encoded)

    def folder(self, values: Values) -> str:
        """The folder of some values, for people: readers take the values from the manifests."""
        texts = [
            None if value is None else column.transform.to_human_string(column.source, value)
            for column, value in zip(self._columns, values, strict=True)
        ]
        return folder_of([column.label for column in self._columns], tuple(texts))


def _coarse(column: pa.Array, transform: Transform[Any, Any]) -> pa.Array:
    """The column as the plain values that transforms take, with as few distinct ones as still give the same.

    The transforms work on one value at a time, and hardly two events have the same microsecond.
    """
    kind = column.type
    if types.is_date32(kind):
        return column.cast(pa.int32())
    if types.is_timestamp(kind):
        micros = column.cast(pa.int64())
        return _floored_to_hour(micros) if isinstance(transform, TimeTransform) else micros
    if isinstance(transform, TruncateTransform) and is_text(kind):
        return pc.utf8_slice_codeunits(column, 0, transform.width)
    return column


def _floored_to_hour(micros: pa.Array) -> pa.Array:
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, _HOUR), _HOUR))  # of the sign of its dividend
    below = pc.cast(pc.less(rest, 0), pa.int64())
    return pc.subtract(pc.subtract(micros, rest), pc.multiply(below, _HOUR))


# What a task has to know about a table, in a form that pickles small, and whether what it staged still fits.


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
    """Refuse a table in which files staged by `layout` would be read differently: readers use field ids."""
    now = Layout.of(table)
    staged, held = (with_ids(schema, found.schema.as_struct()) for found in (layout, now))
    if staged.equals(held, check_metadata=True) and (layout.spec.spec_id, layout.data) == (now.spec.spec_id, now.data):
        return
    raise mismatch(
        sink,
        "the table's columns or partitions were replaced since the start",
        {"at the start": f"{layout.schema.fields}", "now": f"{now.schema.fields}"},
        "restart: the batch is then staged for the current table",
    )
