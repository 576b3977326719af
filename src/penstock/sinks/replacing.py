"""The rows of some offset ranges in a target: identified by their coordinates, counted, and replaced file by file.

One record may have produced several rows, or none: all rows of a range are removed, and what a replay made of the
range is added, in one transaction.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.contracts import Stage
from penstock.errors import MissingError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, SlotAttempt
from penstock.sinks.files import TableFolder

PLACE = ("topic", "partition", "offset")
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_REST_SLOT = 999_999_999
"""No slot of a batch has this number: the files of rows that are kept have names of their own."""


def in_ranges(coordinates: pa.StructArray, ranges: Sequence[OffsetRange]) -> pa.BooleanArray:
    """For each row whether it lies in one of the ranges; false where it does not say where it came from."""
    topic, partition, offset = (pc.struct_field(coordinates, name) for name in PLACE)
    found = [
        reduce(
            pc.and_,
            [
                pc.equal(topic, one.topic),
                pc.equal(partition, pa.scalar(one.partition, pa.int32())),
                pc.greater_equal(offset, one.start),
                pc.less(offset, one.end),
            ],
        )
        for one in ranges
    ]
    nothing = pa.repeat(pa.scalar(False), len(coordinates))
    return pc.fill_null(reduce(pc.or_, found, nothing), False)


def ranges_sql(ranges: Sequence[OffsetRange], part: Callable[[str], str]) -> str:
    """The same as a SQL condition, for at least one range; `part` names a member of the coordinates.

    Kafka allows no quotes in the name of a topic, and this does not take it on trust: engines quote in different ways.
    """
    return " OR ".join(
        f"({part('topic')} = '{_named(one.topic)}' AND {part('partition')} = {one.partition}"
        f" AND {part('offset')} >= {one.start} AND {part('offset')} < {one.end})"
        for one in ranges
    )


def _named(topic: str) -> str:
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"no topic of Kafka has this name: {topic!r}")
    return topic


def refuse_without_coordinates(sink: str, columns: Sequence[str], *, kept: bool) -> None:
    """Refuse rows, or a table, without coordinates: the rows to replace cannot be identified."""
    if kept and COORDINATES in columns:
        return
    raise MissingError(
        "REPLAY_NEEDS_INTO",
        f"sink {sink}: the rows to replace cannot be identified: they lack the column {COORDINATES}",
        context={"columns": ", ".join(columns), "coordinates kept": "yes" if kept else "no"},
        hint="write to another target: --into TARGET",
    )


class RecordRanges:
    """Records wanted, by partitions: the ranges may be thousands of single records, and may overlap."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._wanted: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        for one in sorted(one for one in ranges if one.end > one.start):
            starts, ends = self._wanted.setdefault((one.topic, one.partition), ([], []))
            if ends and one.start <= ends[-1]:
                ends[-1] = max(ends[-1], one.end)
            else:
                starts.append(one.start)
                ends.append(one.end)

    @property
    def hulls(self) -> list[OffsetRange]:
        """One range for each partition, from the first wanted record to the last."""
        return [OffsetRange(*at, starts[0], ends[-1]) for at, (starts, ends) in self._wanted.items()]

    def __contains__(self, at: tuple[str, int, int]) -> bool:
        """Whether a record, by its topic, partition and offset, is wanted."""
        starts, ends = self._wanted.get((at[0], at[1]), ([], []))
        place = bisect_right(starts, at[2])
        return place > 0 and at[2] < ends[place - 1]

    def among(self, coordinates: pa.StructArray) -> set[tuple[str, int, int]]:
        """The topic, partition and offset of each wanted record that some of these rows came from."""
        found: set[tuple[str, int, int]] = set()
        for hull in self.hulls:
            near = coordinates.filter(in_ranges(coordinates, [hull]))
            offsets = pc.unique(pc.struct_field(near, "offset")).to_numpy(zero_copy_only=False)
            starts, ends = map(np.array, self._wanted[hull.topic, hull.partition])
            wanted = offsets[offsets < ends[np.searchsorted(starts, offsets, side="right") - 1]]
            found |= {(hull.topic, hull.partition, int(offset)) for offset in wanted}
        return found


def records_in(
    folder: TableFolder, paths: Sequence[str], ranges: Sequence[OffsetRange], format: str | ds.FileFormat = "parquet"
) -> set[tuple[str, int, int]] | None:
    """The topic, partition and offset of each record in these ranges that a row came from.

    None where a file has no coordinates. Row groups are skipped by their statistics.
    """
    wanted = RecordRanges(ranges)
    asked = wanted.hulls
    if not paths or not asked:
        return set()
    topic, partition, offset = (pc.field(COORDINATES, part) for part in PLACE)
    near = (
        topic.isin(sorted({r.topic for r in asked}))
        & partition.isin(pa.array(sorted({r.partition for r in asked}), pa.int32()))
        & (offset >= min(r.start for r in asked))
        & (offset < max(r.end for r in asked))
    )
    columns = {part: pc.field(COORDINATES, part) for part in PLACE}
    found: set[tuple[str, int, int]] = set()
    for file in folder.dataset(paths, pa.schema([COORDINATES_FIELD]), format).get_fragments():
        if COORDINATES not in file.physical_schema.names:
            return None
        # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
        for rows in file.to_batches(
            schema=pa.schema([COORDINATES_FIELD]), columns=columns, filter=near, use_threads=False
        ):
            found |= wanted.among(pa.StructArray.from_arrays(rows.columns, PLACE))
    return found


Table = TypeVar("Table")
File = TypeVar("File")


@dataclass(frozen=True, slots=True)
class RewrittenFile(Generic[File]):
    """A file of a table with rows in the ranges, and the rows of it that stay, written again."""

    file: File
    replaced: int
    rest: tuple[Any, ...] = ()


class RangeReplacement(ABC, Generic[Table, File]):
    """Finds what to replace in the files of a table.

    A file whose rows are all in the ranges is removed. One that also has other rows is removed too, and these are
    rewritten. Each file is read once: a try that lost to another writer only reads the files that are new.
    """

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = tuple(ranges)
        self._known: dict[str, RewrittenFile[File] | None] = {}

    def touched(self, table: Table) -> list[RewrittenFile[File]]:
        """The files of the table that have rows in the ranges."""
        return list(self._touched(table, rewriting=True))

    def count(self, table: Table) -> int:
        """Read only: how many rows would be removed."""
        return sum(one.replaced for one in self._touched(table, rewriting=False))

    def records(self, table: Table) -> set[tuple[str, int, int]]:
        """Read only: the topic, partition and offset of every record in the ranges that the table has rows of."""
        wanted = RecordRanges(self._ranges)
        found: set[tuple[str, int, int]] = set()
        for _, file in self._possible(table, wanted.hulls) if wanted.hulls else ():
            for coordinates in self._coordinates(table, file):
                found |= wanted.among(coordinates)
        return found

    @abstractmethod
    def _possible(self, table: Table, ranges: Sequence[OffsetRange]) -> Iterator[tuple[str, File]]:
        """The files that may have rows of the ranges, by their statistics, with their paths."""

    @abstractmethod
    def _coordinates(self, table: Table, file: File) -> Iterator[pa.StructArray]:
        """Where the rows of a file came from; null where they do not say."""

    @abstractmethod
    def _rows(self, table: Table, file: File) -> Iterator[pa.RecordBatch]:
        """The rows of a file in the table's columns as they are now."""

    @abstractmethod
    def _begin(self, table: Table, writer: SlotAttempt) -> Stage:
        """A stage that writes data files of the table."""

    def _touched(self, table: Table, *, rewriting: bool) -> Iterator[RewrittenFile[File]]:
        for path, file in self._possible(table, self._ranges):
            if path not in self._known:
                self._known[path] = self._examine(table, file, rewriting)
            found = self._known[path]
            if found is not None:
                yield found

    def _examine(self, table: Table, file: File, rewriting: bool) -> RewrittenFile[File] | None:
        inside = [in_ranges(coordinates, self._ranges) for coordinates in self._coordinates(table, file)]
        replaced, rows = sum(mask.true_count for mask in inside), sum(map(len, inside))
        if not replaced:
            return None
        return RewrittenFile(file, replaced, self._rest(table, file) if rewriting and replaced < rows else ())

    def _rest(self, table: Table, file: File) -> tuple[Any, ...]:
        stage = self._begin(table, SlotAttempt(_REST_SLOT, f"rest{len(self._known)}"))
        try:
            for rows in self._rows(table, file):
                stage.write(rows.filter(pc.invert(in_ranges(rows.column(COORDINATES), self._ranges))))
            return tuple(stage.finish().items)
        except BaseException:
            stage.abort()
            raise
