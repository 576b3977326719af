"""The rows of some offset ranges in a table: found, counted, or replaced by one commit with the position.

A file whose rows all lie in the ranges goes out. One that has others too goes out as well, and those are written
again. Both are found once for each file, however often other writers come in between: a try that lost costs a look at
the files that are new since, and live appends are never disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from penstock.contracts import SqlEngine, Stage
from penstock.errors import MissingError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, Position, SlotAttempt
from penstock.sinks.delta.failures import engine_errors, others_first, sink_failures
from penstock.sinks.delta.fitted import table_name
from penstock.sinks.delta.schema import held_columns, unsupported
from penstock.sinks.delta.stage import StagedFile
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.merging import in_ranges, ranges_sql, refuse_without_coordinates
from penstock.sinks.spark_sql import quoted

TRIES = 200
_FORMAT = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
_REST_SLOT = 999_999_999
"""No slot of a batch has this number: the files of rows that are kept have names of their own."""

_PLACE = ("topic", "partition", "offset")

BeginStage = Callable[[SlotAttempt, pa.Schema], Stage]


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file of the table with rows in the ranges, and the rows of it that stay, written again."""

    replaced: int
    rest: tuple[StagedFile, ...] = ()


def ranges_condition(ranges: Sequence[OffsetRange]) -> str:
    """The rows of the ranges, in Spark SQL."""
    return ranges_sql(ranges, lambda part: quoted(COORDINATES, part))


def replace_statement(table: str, written: pa.Schema, held: pa.Schema, ranges: Sequence[OffsetRange]) -> str:
    """The same by Spark, from the relation `staged`: it takes the values of such a statement by their places."""
    values = (quoted(name) if name in written.names else f"NULL AS {quoted(name)}" for name in held.names)
    return f"INSERT INTO {table} REPLACE WHERE ({ranges_condition(ranges)}) SELECT {', '.join(values)} FROM staged"


def only_by_spark(now: DeltaTable) -> list[str]:
    """Why only Spark can replace rows of the table: what it asks of whoever takes rows out of it."""
    features, settings = now.protocol().writer_features or (), now.metadata().configuration
    return [
        *unsupported(now),
        *(["deletion vectors"] if "deletionVectors" in features else []),
        *(["a change data feed"] if settings.get("delta.enableChangeDataFeed") == "true" else []),
    ]


def check_replaceable(table: TokenTable, schema: pa.Schema, *, kept: bool) -> bool:
    """Refuse a table of which no rows can be replaced by rows of `schema`; whether only Spark can replace them."""
    refuse_without_coordinates(table.sink, schema, kept=kept)
    now = table.look()
    if now is None:
        return False
    refuse_without_coordinates(table.sink, held_columns(now), kept=True)
    if now.metadata().configuration.get("delta.appendOnly") == "true":
        raise MissingError(
            "REPLAY_NEEDS_INTO",
            f"sink {table.sink}: the table takes no deletes, so no rows of it can be replaced",
            context={"table features": "delta.appendOnly"},
            hint="unset delta.appendOnly, or write to another target: --into TARGET",
        )
    return bool(only_by_spark(now))


def records_held(
    table: TokenTable, ranges: Sequence[OffsetRange], sql: SqlEngine | None
) -> set[tuple[str, int, int]] | None:
    """The records in the ranges that the table holds a row of; none where its rows do not say where they came from."""
    with sink_failures(table.sink, "looking for records in the table"):
        now = table.look()
        if now is None or not ranges:
            return set()
        if COORDINATES not in held_columns(now).names:
            return None
        if not _read_by_spark(now):
            return RangeReplacement(table, ranges).records(now)
        if sql is None:
            raise TerminalError(
                "SINK_NEEDS_SPARK", f"sink {table.sink}: looking for records: the sink was given no SQL engine"
            )
        parts = ", ".join(quoted(COORDINATES, part) for part in _PLACE)
        with engine_errors():
            rows = sql.run(
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


class RangeReplacement:
    """Replaces once. `begin` opens a stage that writes data files of the table; to count, none is needed."""

    def __init__(self, table: TokenTable, ranges: Sequence[OffsetRange], begin: BeginStage | None = None) -> None:
        self._table = table
        self._ranges = tuple(ranges)
        self._begin = begin
        self._known: dict[str, RewrittenFile | None] = {}

    def land(self, position: Position, staged: Sequence[StagedFile], onto: Position | None) -> None:
        """Put the staged files in and the rows of the ranges out, while the table stands at `onto`."""
        for _ in range(TRIES):
            table = self._table.standing_table(onto)
            self._table.refuse_outdated(staged)
            touched = dict(self._touched(table, rewriting=True))
            added = [*staged, *(file for one in touched.values() for file in one.rest)]
            if self._table.replace_files(position, ranges_condition(self._ranges), list(touched), added):
                return
        raise others_first(self._table.sink)

    def count(self, table: DeltaTable) -> int:
        """Only look: how many rows would go out."""
        return sum(one.replaced for _, one in self._touched(table, rewriting=False))

    def records(self, table: DeltaTable) -> set[tuple[str, int, int]]:
        """Only look: the topic, partition and offset of every row in the ranges."""
        files = pa.table(table.get_add_actions(flatten=True))
        found: set[tuple[str, int, int]] = set()
        for path in files.filter(self._possible(files)).column("path").to_pylist():
            coordinates = self._coordinates(_file(path))
            inside = coordinates.filter(in_ranges(coordinates, self._ranges))
            found.update(zip(*(pc.struct_field(inside, part).to_pylist() for part in _PLACE), strict=True))
        return found

    def _touched(self, table: DeltaTable, *, rewriting: bool) -> Iterator[tuple[str, RewrittenFile]]:
        """The files with rows in the ranges, by their paths in the log."""
        files = pa.table(table.get_add_actions(flatten=True))
        held = held_columns(table)
        for place in files.filter(self._possible(files)).to_pylist():
            path = place["path"]
            if path not in self._known:
                self._known[path] = self._look(path, place, held, rewriting)
            touched = self._known[path]
            if touched is not None:
                yield path, touched

    def _possible(self, files: pa.Table) -> pa.Array:
        """Which files may have such rows, by their statistics."""
        low, high = f"min.{COORDINATES}.offset", f"max.{COORDINATES}.offset"
        if not {low, high} <= set(files.column_names):
            return pa.repeat(pa.scalar(True), files.num_rows)
        inside = pa.repeat(pa.scalar(False), files.num_rows)
        for one in self._ranges:
            overlaps = pc.and_(pc.less(files.column(low), one.end), pc.greater_equal(files.column(high), one.start))
            inside = pc.or_(inside, pc.fill_null(overlaps, True))
        return inside

    def _look(self, path: str, place: dict[str, object], held: pa.Schema, rewriting: bool) -> RewrittenFile | None:
        file = _file(path)
        inside = in_ranges(self._coordinates(file), self._ranges)
        replaced = inside.true_count
        if not replaced:
            return None
        rewritten = rewriting and replaced < len(inside)
        return RewrittenFile(replaced, tuple(self._rest(file, place, held)) if rewritten else ())

    def _coordinates(self, file: str) -> pa.StructArray:
        """Where the rows of a file came from; null in one from before the table had coordinates.

        By the schema that is given here: other writers leave other kinds of text in the files.
        """
        found = self._table.folder.dataset([file], pa.schema([COORDINATES_FIELD]), _FORMAT)
        return found.to_table(use_threads=False).column(COORDINATES).combine_chunks()

    def _rest(self, file: str, place: dict[str, object], held: pa.Schema) -> list[StagedFile]:
        """The rows of a file that stay, written again in the table's columns as they are now."""
        fixed = {name: place[f"partition.{name}"] for name in self._table.partition_by}
        schema = pa.schema([field for field in held if field.name not in fixed])
        assert self._begin is not None
        stage = self._begin(SlotAttempt(_REST_SLOT, f"rest{len(self._known)}"), held)
        try:
            for rows in self._table.folder.dataset([file], schema, _FORMAT).to_batches(use_threads=False):
                kept = rows.filter(pc.invert(in_ranges(rows.column(COORDINATES), self._ranges)))
                stage.write(_with_fixed(kept, held, fixed))
            return [item for item in stage.finish().items if isinstance(item, StagedFile)]
        except BaseException:
            stage.abort()
            raise


def _file(path: str) -> str:
    """The file that a path in the log names."""
    return unquote(path).removeprefix("file://").removeprefix("file:")


def _with_fixed(rows: pa.RecordBatch, held: pa.Schema, fixed: dict[str, object]) -> pa.RecordBatch:
    """Rows of a file with the columns that the table is partitioned by."""
    arrays = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), rows.num_rows)
        if field.name in fixed
        else rows.column(field.name)
        for field in held
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=held)
