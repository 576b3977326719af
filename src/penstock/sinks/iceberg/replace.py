"""The rows of some offset ranges in a table: which records they are, and how they are replaced in one snapshot.

A file whose rows all lie in the ranges goes out. One that has others too goes out as well, and those are written
again. Both are found once for each file: a try that lost to another writer costs a look at the files that are new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from penstock.contracts import SqlEngine, Stage
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules, OffsetRange, SlotAttempt
from penstock.sinks.iceberg.bounds import Bounds, conditions
from penstock.sinks.iceberg.stage import StagedFile
from penstock.sinks.iceberg.staged_rows import StagedRows
from penstock.sinks.iceberg.types import as_held, quoted
from penstock.sinks.merging import (
    counts_sql,
    in_ranges,
    later_sql,
    one_row_a_key,
    ranges_sql,
    refuse_without_coordinates,
)

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


# A batch written by Spark SQL to a branch of its own, which nobody reads until main is moved there.

STAGED = "staged"
_DELETED = f"coalesce({quoted(DELETES)}, false)"
_POSITION = tuple(f"{quoted(COORDINATES)}.{quoted(part)}" for part in ("offset", "timestamp", "topic", "partition"))


def relation_schema(columns: pa.Schema) -> pa.Schema:
    """What staged files are read as: the table's columns, the coordinates and the mark of a delete."""
    fields = [field for field in columns if field.name != COORDINATES]
    return pa.schema([*fields, COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])


def insert(target: str, written: Sequence[str], held: Sequence[str], *, rows: bool = True) -> str:
    """Append the staged rows, or none of them; a column that they lack is null."""
    values = ", ".join(quoted(name) if name in written else f"NULL AS {quoted(name)}" for name in held)
    names = ", ".join(map(quoted, held))
    return f"INSERT INTO {target} ({names}) SELECT {values} FROM {STAGED}{'' if rows else ' WHERE false'}"


def delete(target: str, ranges: Sequence[OffsetRange]) -> str:
    """Take the rows of some ranges out."""
    return f"DELETE FROM {target} WHERE {ranges_sql(ranges, lambda part: quoted(COORDINATES, part))}"


def merge(
    target: str,
    rules: MergeRules,
    written: Sequence[str],
    held: Sequence[str],
    bounds: Sequence[Mapping[str, Bounds]],
) -> str:
    """Merge the staged rows, one a key, reading of the target only what they can touch."""
    # To a sink that only inserts a delete means nothing; it must not stand for a row that is to be inserted.
    relation = f"(SELECT * FROM {STAGED} WHERE NOT {_DELETED}) AS live" if rules.insert_only else STAGED
    source = one_row_a_key(relation, rules, quote=quoted, position=_POSITION)
    keys = [f"t.{quoted(key)} = s.{quoted(key)}" for key in rules.keys]
    pruned = conditions(bounds, rules.keys, rules.prune_by, "t")
    deleted = f"coalesce(s.{quoted(DELETES)}, false)"
    values = ", ".join(f"s.{quoted(name)}" if name in written else "NULL" for name in held)
    clauses = [f"MERGE INTO {target} AS t USING ({source}) AS s ON {' AND '.join([*keys, *pruned])}"]
    if not rules.insert_only:
        newer = _newer(rules, positioned=COORDINATES in written)
        sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in written if name not in rules.keys)
        clauses.append(f"WHEN MATCHED AND {deleted}{newer} THEN DELETE")
        if sets:
            clauses.append(f"WHEN MATCHED AND NOT {deleted}{newer} THEN UPDATE SET {sets}")
    clauses.append(f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({', '.join(map(quoted, held))}) VALUES ({values})")
    return "\n".join(clauses)


def _newer(rules: MergeRules, *, positioned: bool) -> str:
    later = later_sql(lambda part: quoted("t", COORDINATES, part), lambda part: quoted("s", COORDINATES, part))
    newer = (quoted("s", rules.when_newer), quoted("t", rules.when_newer)) if rules.when_newer is not None else None
    counts = counts_sql(newer, later if rules.by_position and positioned else None)
    return f" AND ({counts})" if counts else ""


_PROPERTY = "spark.sql.iceberg.snapshot-property."


class BranchWriter:
    """Writes to branches of one table. `name` is the table's for Spark, quoted, with its catalog."""

    def __init__(self, engine: SqlEngine, name: str, settings: Mapping[str, str]) -> None:
        self._engine = engine
        self._name = name
        self._settings = dict(settings)

    def write(
        self,
        branch: str,
        seen: Table,
        files: Sequence[str],
        rows: Sequence[StagedRows],
        columns: Sequence[str],
        rules: MergeRules | None,
        summary: Mapping[str, str],
        replaces: Sequence[OffsetRange] = (),
    ) -> None:
        """Make the branch where `seen` has main, and write the rows to it, with the summary in their snapshot.

        The rows of the ranges that it `replaces` go out first.
        """
        current = seen.current_snapshot()
        base = f" AS OF VERSION {current.snapshot_id}" if current else ""
        self._engine.run(f"ALTER TABLE {self._name} CREATE BRANCH {quoted(branch)}{base}", settings=self._settings)
        target = f"{self._name}.{quoted(f'branch_{branch}')}"
        held = [field.name for field in seen.schema().fields]
        if rules is not None and rows:
            statement = merge(target, rules, columns, held, [item.bounds for item in rows])
        else:
            statement = insert(target, columns, held, rows=bool(rows))
        if replaces and current is not None:
            self._engine.run(delete(target, replaces), settings=self._settings)
        self._engine.run(
            statement,
            files=files,
            schema=relation_schema(as_held(columns, seen.schema())),
            settings={**self._settings, **{f"{_PROPERTY}{name}": value for name, value in summary.items()}},
        )
