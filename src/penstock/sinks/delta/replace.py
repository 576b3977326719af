"""The rows of some offset ranges in a Delta table: found, counted, or replaced by one commit with the position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from penstock.contracts import SqlEngine, Stage
from penstock.errors import MissingError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, Position, SlotAttempt
from penstock.sinks.delta.failures import others_first, sink_failures
from penstock.sinks.delta.schema import table_columns, table_name, unsupported
from penstock.sinks.delta.stage import StagedDeltaFile
from penstock.sinks.delta.table import SinkTable
from penstock.sinks.replacing import PLACE, RangeReplacement, ranges_sql, refuse_without_coordinates
from penstock.sinks.spark_sql import quoted, require_engine

TRIES = 200
_FORMAT = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")

BeginStage = Callable[[SlotAttempt, pa.Schema], Stage]


def ranges_condition(ranges: Sequence[OffsetRange]) -> str:
    """The rows of the ranges, in Spark SQL."""
    return ranges_sql(ranges, lambda part: quoted(COORDINATES, part))


def replace_statement(table: str, written: pa.Schema, held: pa.Schema, ranges: Sequence[OffsetRange]) -> str:
    """The same by Spark, from the relation `staged`. Such a statement takes its values by position."""
    values = (quoted(name) if name in written.names else f"NULL AS {quoted(name)}" for name in held.names)
    return f"INSERT INTO {table} REPLACE WHERE ({ranges_condition(ranges)}) SELECT {', '.join(values)} FROM staged"


def only_by_spark(now: DeltaTable) -> list[str]:
    """Why only Spark can replace rows of the table: what it requires of writers that remove rows."""
    features, settings = now.protocol().writer_features or (), now.metadata().configuration
    return [
        *unsupported(now),
        *(["deletion vectors"] if "deletionVectors" in features else []),
        *(["a change data feed"] if settings.get("delta.enableChangeDataFeed") == "true" else []),
    ]


def check_replaceable(table: SinkTable, schema: pa.Schema, *, kept: bool) -> bool:
    """Refuse a table whose rows cannot be replaced by rows of `schema`; return whether only Spark can replace them."""
    refuse_without_coordinates(table.sink, schema.names, kept=kept)
    now = table.open()
    if now is None:
        return False
    refuse_without_coordinates(table.sink, table_columns(now).names, kept=True)
    if now.metadata().configuration.get("delta.appendOnly") == "true":
        raise MissingError(
            "REPLAY_NEEDS_INTO",
            f"sink {table.sink}: the table takes no deletes, so no rows of it can be replaced",
            context={"table features": "delta.appendOnly"},
            hint="unset delta.appendOnly, or write to another target: --into TARGET",
        )
    return bool(only_by_spark(now))


def records_held(
    table: SinkTable, ranges: Sequence[OffsetRange], sql: SqlEngine | None
) -> set[tuple[str, int, int]] | None:
    """The records in the ranges that the table holds a row of; none where its rows do not say where they came from."""
    with sink_failures(table.sink, "looking for records in the table"):
        now = table.open()
        if now is None or not ranges:
            return set()
        if COORDINATES not in table_columns(now).names:
            return None
        if not _read_by_spark(now):
            return DeltaReplacement(table, ranges).records(now)
        engine = require_engine(sql, table.sink, "looking for records")
        parts = ", ".join(quoted(COORDINATES, part) for part in PLACE)
        rows = engine.run(
            f"SELECT DISTINCT {parts} FROM {table_name(table.folder)} WHERE {ranges_condition(ranges)}",
            settings={"spark.sql.variable.substitute": "false"},
        )
        return {(row["topic"], row["partition"], row["offset"]) for row in rows}


def _read_by_spark(now: DeltaTable) -> bool:
    """Whether the rows of the table are not those of its files: columns have other names there, or rows are deleted."""
    if now.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        return True
    deleting = "deletionVectors" in (now.protocol().reader_features or ())
    return deleting and pa.table(now.deletion_vectors()).num_rows > 0


class DeltaReplacement(RangeReplacement[DeltaTable, dict[str, Any]]):
    """Replaces once. `begin` opens a stage that writes data files of the table; reading needs none."""

    def __init__(self, table: SinkTable, ranges: Sequence[OffsetRange], begin: BeginStage | None = None) -> None:
        super().__init__(ranges)
        self._table = table
        self._stage = begin

    def land(self, position: Position, staged: Sequence[StagedDeltaFile], onto: Position | None) -> None:
        """Add the staged files and remove the rows of the ranges, while the position is `onto`.

        Live appends that land meanwhile are never disturbed.
        """
        for _ in range(TRIES):
            table = self._table.table_at(onto)
            self._table.require_up_to_date(staged)
            touched = self.touched(table)
            removed = [one.file["path"] for one in touched]
            added = [*staged, *(file for one in touched for file in one.rest)]
            if self._table.replace_files(position, ranges_condition(self._ranges), removed, added):
                return
        raise others_first(self._table.sink)

    def _possible(self, table: DeltaTable, ranges: Sequence[OffsetRange]) -> Iterator[tuple[str, dict[str, Any]]]:
        files = pa.table(table.get_add_actions(flatten=True))
        low, high = f"min.{COORDINATES}.offset", f"max.{COORDINATES}.offset"
        if {low, high} <= set(files.column_names):
            inside = pa.repeat(pa.scalar(False), files.num_rows)
            for one in ranges:
                overlaps = pc.and_(pc.less(files.column(low), one.end), pc.greater_equal(files.column(high), one.start))
                inside = pc.or_(inside, pc.fill_null(overlaps, True))
            files = files.filter(inside)
        # Not the statistics: of a time beyond year 9999 Python has no value.
        needed = [name for name in files.column_names if name == "path" or name.startswith("partition.")]
        for file in files.select(needed).to_pylist():
            yield file["path"], file

    def _coordinates(self, table: DeltaTable, file: dict[str, Any]) -> Iterator[pa.StructArray]:
        # By the schema that is given here: other writers leave other kinds of text in the files. A file from before
        # the table had coordinates gives nulls.
        found = self._table.folder.dataset([_local(file)], pa.schema([COORDINATES_FIELD]), _FORMAT)
        yield found.to_table(use_threads=False).column(COORDINATES).combine_chunks()

    def _rows(self, table: DeltaTable, file: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        held, partitions = table_columns(table), self._table.partition_by
        schema = pa.schema([field for field in held if field.name not in partitions])
        for rows in self._table.folder.dataset([_local(file)], schema, _FORMAT).to_batches(use_threads=False):
            arrays = [
                pa.repeat(pa.scalar(file[f"partition.{field.name}"], field.type), rows.num_rows)
                if field.name in partitions
                else rows.column(field.name)
                for field in held
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=held)

    def _begin(self, table: DeltaTable, writer: SlotAttempt) -> Stage:
        assert self._stage is not None
        return self._stage(writer, table_columns(table))


def _local(file: dict[str, Any]) -> str:
    """Where a file of the log is, in the table's folder."""
    return unquote(file["path"]).removeprefix("file://").removeprefix("file:")
