"""The rows of some offset ranges replaced in a table: files out, files in, one commit with the token.

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

from penstock.contracts import Stage
from penstock.errors import MissingError, TransientError
from penstock.model import COORDINATES, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.delta.failures import table_changed
from penstock.sinks.delta.log_entry import put_entry, replacement_entry
from penstock.sinks.delta.names import quoted
from penstock.sinks.delta.schema import held_columns, unsupported
from penstock.sinks.delta.stage import StagedFile
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.replacing import in_ranges, ranges_sql, refuse_without_coordinates

TRIES = 200
_FORMAT = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
_REST_SLOT = 999_999_999
"""No slot of a batch has this number: the files of rows that are kept have names of their own."""

BeginStage = Callable[[SlotAttempt, pa.Schema], Stage]


@dataclass(frozen=True, slots=True)
class Touched:
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


class RangeReplacement:
    """Replaces once. `begin` opens a stage that writes data files of the table; to count, none is needed."""

    def __init__(self, table: TokenTable, ranges: Sequence[OffsetRange], begin: BeginStage | None = None) -> None:
        self._table = table
        self._ranges = tuple(ranges)
        self._begin = begin
        self._known: dict[str, Touched | None] = {}

    def commit(self, token: BatchToken, staged: Sequence[StagedFile]) -> None:
        """Put the staged files in and the rows of the ranges out."""
        written = self._table.written
        for _ in range(TRIES):
            if self._table.holds(token):
                return
            table = self._table.current()
            if self._table.bound or self._table.written != written:
                raise table_changed(self._table.sink)
            touched = dict(self._touched(table, rewriting=True))
            entry = replacement_entry(
                token,
                self._table.sink,
                self._table.app_id(token),
                ranges_condition(self._ranges),
                list(touched),
                [*staged, *(file for one in touched.values() for file in one.rest)],
                self._table.partition_by,
            )
            before = table.version()
            if put_entry(self._table.folder, before + 1, entry):
                self._table.settle(before)
                return
        raise TransientError(
            "SINK_COMMIT_CONFLICT",
            f"sink {self._table.sink}: replacing rows: other writers were first {TRIES} times",
            hint="other writers commit to this table at the same time",
        )

    def count(self, table: DeltaTable) -> int:
        """Only look: how many rows would go out."""
        return sum(one.replaced for _, one in self._touched(table, rewriting=False))

    def _touched(self, table: DeltaTable, *, rewriting: bool) -> Iterator[tuple[str, Touched]]:
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

    def _look(self, path: str, place: dict[str, object], held: pa.Schema, rewriting: bool) -> Touched | None:
        file = unquote(path).removeprefix("file://").removeprefix("file:")
        found = self._table.folder.dataset([file], format=_FORMAT)
        if COORDINATES not in found.schema.names:
            return None
        coordinates = found.to_table(columns=[COORDINATES], use_threads=False).column(COORDINATES)
        inside = in_ranges(coordinates.combine_chunks(), self._ranges)
        replaced = inside.true_count
        if not replaced:
            return None
        rewritten = rewriting and replaced < len(inside)
        return Touched(replaced, tuple(self._rest(file, place, held)) if rewritten else ())

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


def _with_fixed(rows: pa.RecordBatch, held: pa.Schema, fixed: dict[str, object]) -> pa.RecordBatch:
    """Rows of a file with the columns that the table is partitioned by."""
    arrays = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), rows.num_rows)
        if field.name in fixed
        else rows.column(field.name)
        for field in held
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=held)
