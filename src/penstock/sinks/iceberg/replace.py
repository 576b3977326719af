"""The rows of some offset ranges in a table: which records they are, and how they are replaced in one snapshot.

A file whose rows all lie in the ranges goes out. One that has others too goes out as well, and those are written
again. Both are found once for each file: a try that lost to another writer costs a look at the files that are new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
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
from penstock.sinks.merging import in_ranges, ranges_sql, refuse_without_coordinates

_REST_SLOT = 999_999_999
"""No slot of a batch has this number: the files of rows that are kept have names of their own."""

BeginStage = Callable[[SlotAttempt], Stage]


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file of the table with rows in the ranges, and the rows of it that stay, written again."""

    file: DataFile
    replaced: int
    rest: tuple[StagedFile, ...] = ()


class RangeReplacement:
    """Finds what to replace. `begin` opens a stage that writes data files of the table; to count, none is needed."""

    def __init__(self, ranges: Sequence[OffsetRange], begin: BeginStage | None = None) -> None:
        self._ranges = tuple(ranges)
        self._begin = begin
        self._known: dict[str, RewrittenFile | None] = {}

    def touched(self, table: Table) -> list[RewrittenFile]:
        """The files of the table as it is now that have rows in the ranges."""
        return [
            found
            for task in _tasks(table, self._ranges)
            if (found := self._look(table, task, rewriting=True)) is not None
        ]

    def count(self, table: Table) -> int:
        """Only look: how many rows would go out."""
        found = (self._look(table, task, rewriting=False) for task in _tasks(table, self._ranges))
        return sum(one.replaced for one in found if one is not None)

    def _look(self, table: Table, task: FileScanTask, *, rewriting: bool) -> RewrittenFile | None:
        path = task.file.file_path
        if path not in self._known:
            inside = [in_ranges(rows.column(0), self._ranges) for rows in _read(table, task, [COORDINATES])]
            replaced, rows = sum(mask.true_count for mask in inside), sum(map(len, inside))
            rest = self._rest(table, task) if rewriting and 0 < replaced < rows else ()
            self._known[path] = RewrittenFile(task.file, replaced, tuple(rest)) if replaced else None
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


def records_in(table: Table, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]]:
    """The records of these ranges that the table has rows of, for any number of ranges."""
    wanted = defaultdict(list)
    for one in sorted(ranges):
        wanted[one.topic, one.partition].append(one)
    hulls = [
        OffsetRange(*at, min(r.start for r in inside), max(r.end for r in inside)) for at, inside in wanted.items()
    ]
    found: set[tuple[str, int, int]] = set()
    for task in _tasks(table, hulls) if hulls else ():
        for rows in _read(table, task, [COORDINATES]):
            for hull in hulls:
                near = rows.filter(in_ranges(rows.column(0), [hull])).column(0)
                offsets = pc.unique(pc.struct_field(near, "offset")).to_numpy(zero_copy_only=False)
                inside = wanted[hull.topic, hull.partition]
                latest = np.searchsorted([r.start for r in inside], offsets, side="right") - 1
                ends = np.maximum.accumulate([r.end for r in inside])  # ranges may overlap
                held = offsets[offsets < ends[latest]]
                found |= {(hull.topic, hull.partition, int(offset)) for offset in held}
    return found


def check_replaceable(sink: str, table: Table | None, schema: pa.Schema, *, kept: bool) -> None:
    """Refuse a table of which no rows can be replaced by rows of `schema`."""
    refuse_without_coordinates(sink, schema, kept=kept)
    if table is not None:
        held = pa.schema([pa.field(field.name, pa.null()) for field in table.schema().fields])
        refuse_without_coordinates(sink, held, kept=True)


def _tasks(table: Table, ranges: Sequence[OffsetRange]) -> Iterator[FileScanTask]:
    """The files that may have rows of the ranges, by their statistics."""
    condition = ranges_sql(ranges, lambda part: f"{COORDINATES}.{part}")
    yield from table.scan(row_filter=condition).plan_files()


def _read(table: Table, task: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    schema: Schema = table.schema().select(*columns) if columns else table.schema()
    yield from ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_record_batches([task])
