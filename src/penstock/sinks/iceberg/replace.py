"""The rows of some offset ranges replaced in a table: data files out, data files in, one snapshot with the token.

A file whose rows all lie in the ranges goes out. One that has others too goes out as well, and those are written
again. Both are found once for each file: a try that lost to another writer costs a look at the files that are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from penstock.contracts import Stage
from penstock.model import COORDINATES, OffsetRange, SlotAttempt
from penstock.sinks.iceberg.stage import StagedFile
from penstock.sinks.replacing import in_ranges, ranges_sql, refuse_without_coordinates

TRIES = 100
_REST_SLOT = 999_999_999
"""No slot of a batch has this number: the files of rows that are kept have names of their own."""

BeginStage = Callable[[SlotAttempt], Stage]


@dataclass(frozen=True, slots=True)
class Touched:
    """A file of the table with rows in the ranges, and the rows of it that stay, written again."""

    file: DataFile
    replaced: int
    rest: tuple[StagedFile, ...] = ()


class RangeReplacement:
    """Finds what to replace. `begin` opens a stage that writes data files of the table; to count, none is needed."""

    def __init__(self, ranges: Sequence[OffsetRange], begin: BeginStage | None = None) -> None:
        self._ranges = tuple(ranges)
        self._begin = begin
        self._known: dict[str, Touched | None] = {}

    def touched(self, table: Table) -> list[Touched]:
        """The files of the table as it is now that have rows in the ranges."""
        return [found for task in self._tasks(table) if (found := self._look(table, task, rewriting=True)) is not None]

    def count(self, table: Table) -> int:
        """Only look: how many rows would go out."""
        found = (self._look(table, task, rewriting=False) for task in self._tasks(table))
        return sum(one.replaced for one in found if one is not None)

    def _tasks(self, table: Table) -> Iterator[FileScanTask]:
        """The files that may have such rows, by their statistics."""
        condition = ranges_sql(self._ranges, lambda part: f"{COORDINATES}.{part}")
        yield from table.scan(row_filter=condition).plan_files()

    def _look(self, table: Table, task: FileScanTask, *, rewriting: bool) -> Touched | None:
        path = task.file.file_path
        if path not in self._known:
            inside = [in_ranges(rows.column(0), self._ranges) for rows in _read(table, task, [COORDINATES])]
            replaced, rows = sum(mask.true_count for mask in inside), sum(map(len, inside))
            rest = self._rest(table, task) if rewriting and 0 < replaced < rows else ()
            self._known[path] = Touched(task.file, replaced, tuple(rest)) if replaced else None
        return self._known[path]

    def _rest(self, table: Table, task: FileScanTask) -> list[StagedFile]:
        """The rows of a file that stay, written again in the table's columns as they are now."""
        assert self._begin is not None
        stage = self._begin(SlotAttempt(_REST_SLOT, f"rest{len(self._known)}"))
        try:
            for rows in _read(table, task):
                stage.write(rows.filter(pc.invert(in_ranges(rows.column(COORDINATES), self._ranges))))
            return [item for item in stage.finish().items if isinstance(item, StagedFile)]
        except BaseException:
            stage.abort()
            raise


def check_replaceable(sink: str, table: Table | None, schema: pa.Schema, *, kept: bool) -> None:
    """Refuse a table of which no rows can be replaced by rows of `schema`."""
    refuse_without_coordinates(sink, schema, kept=kept)
    if table is not None:
        held = pa.schema([pa.field(field.name, pa.null()) for field in table.schema().fields])
        refuse_without_coordinates(sink, held, kept=True)


def _read(table: Table, task: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    schema: Schema = table.schema().select(*columns) if columns else table.schema()
    yield from ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_record_batches([task])
