"""Which records of Kafka the rows of some files came from, by their coordinates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, TopicPartition
from penstock.sinks.files.folder import TableFolder

_PARTS = ("topic", "partition", "offset")


def records_in(
    folder: TableFolder, paths: Sequence[str], ranges: Sequence[OffsetRange], format: str | ds.FileFormat = "parquet"
) -> set[tuple[str, int, int]] | None:
    """The topic, partition and offset of each record in these ranges that a row came from.

    None where a file has no coordinates. Row groups are skipped by their statistics.
    """
    asked = [r for r in sorted(ranges) if r.end > r.start]
    if not paths or not asked:
        return set()
    by_partition = {at: list(each) for at, each in groupby(asked, key=lambda r: r.topic_partition)}
    topic, partition, offset = (pc.field(COORDINATES, part) for part in _PARTS)
    near = (
        topic.isin(sorted({r.topic for r in asked}))
        & partition.isin(pa.array(sorted({r.partition for r in asked}), pa.int32()))
        & (offset >= min(r.start for r in asked))
        & (offset < max(r.end for r in asked))
    )
    columns = {part: pc.field(COORDINATES, part) for part in _PARTS}
    found: set[tuple[str, int, int]] = set()
    for file in folder.dataset(paths, pa.schema([COORDINATES_FIELD]), format).get_fragments():
        if COORDINATES not in file.physical_schema.names:
            return None
        # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
        for rows in file.to_batches(
            schema=pa.schema([COORDINATES_FIELD]), columns=columns, filter=near, use_threads=False
        ):
            for at in zip(*(rows.column(part).to_pylist() for part in _PARTS), strict=True):
                if _is_in(by_partition.get(TopicPartition(at[0], at[1]), []), at[2]):
                    found.add(at)
    return found


def _is_in(ranges: Sequence[OffsetRange], offset: int) -> bool:
    """Whether an offset is in one of a partition's ranges, which are in order and may touch but not overlap."""
    place = bisect_right(ranges, offset, key=lambda r: r.start)
    return place > 0 and offset < ranges[place - 1].end
