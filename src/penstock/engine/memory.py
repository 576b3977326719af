"""A reader and a sink in memory, for trials: records in, rows out in the manifests, and nothing kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from penstock.assembly.trial_registry import Given
from penstock.model import (
    COMPUTED,
    COORDINATES,
    DELETES,
    BatchToken,
    Guarantee,
    Manifest,
    MergeRules,
    OffsetRange,
    Refusal,
    SlotAttempt,
)
from penstock.quarantine.quarantine import WithoutTarget
from penstock.sinks.merging import refuse_null_keys, rows_that_count


@dataclass(frozen=True)
class MemoryReader:
    """Implements `contracts.Reader` over records in memory."""

    records: pa.RecordBatch
    given: Given = field(default_factory=Given)
    """The registry schemas: a task does not query the registry."""

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the records of `ranges`, by partition and offset."""
        self.given.remember()
        for one in sorted(ranges):
            conditions = (
                pc.equal(self.records.column("topic"), one.topic),
                pc.equal(self.records.column("partition"), one.partition),
                pc.greater_equal(self.records.column("offset"), one.start),
                pc.less(self.records.column("offset"), one.end),
            )
            found = self.records.filter(reduce(pc.and_, conditions))
            if found.num_rows:
                yield found.take(pc.sort_indices(found.column("offset")))


@dataclass(frozen=True)
class CollectingSink(WithoutTarget):
    """Implements `contracts.Sink`: what is staged for it travels in the manifests, and nothing is committed.

    One that merges refuses null keys as the real ones do.
    """

    name: str
    merging: MergeRules | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    target: str = "memory"

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> _CollectingStage:
        """In a task: start collecting."""
        return _CollectingStage(self, writer, schema)

    def rows(self, manifests: Sequence[Manifest]) -> pa.Table:
        """What a batch staged: for a sink that merges the one row of each key that counts, deletes among them."""
        own = [item for one in manifests if one.sink == self.name for item in one.items if isinstance(item, bytes)]
        tables = [pa.ipc.open_stream(item).read_all() for item in own] or [pa.table({})]
        whole = pa.concat_tables([table for table in tables if table.num_rows] or tables[:1], promote_options="default")
        if self.merging is not None and COORDINATES in whole.column_names:
            whole = rows_that_count(whole.combine_chunks(), self.merging)
            whole = whole.select([n for n in whole.column_names if not n.startswith(COMPUTED) or n == DELETES])
            places = pa.Table.from_struct_array(whole.column(COORDINATES))
            whole = whole.take(pc.sort_indices(places, [(n, "ascending") for n in ("topic", "partition", "offset")]))
        return whole


class _CollectingStage:
    def __init__(self, sink: CollectingSink, writer: SlotAttempt, schema: pa.Schema) -> None:
        self._sink, self._writer, self._schema = sink, writer, schema
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        refused: list[Refusal] = []
        if self._sink.merging is not None:
            rows, refused = refuse_null_keys(self._sink.name, rows, self._sink.merging.keys)
        self._batches.append(rows)
        return refused

    def finish(self) -> Manifest:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self._batches[0].schema if self._batches else self._schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        rows, block = sum(batch.num_rows for batch in self._batches), buffer.getvalue().to_pybytes()
        return Manifest(self._sink.name, self._writer, rows, len(block), (block,))

    def abort(self) -> None:
        self._batches.clear()


def ranges_of(records: pa.RecordBatch) -> list[OffsetRange]:
    """The ranges that hold exactly these records."""
    places = sorted(zip(*(records.column(n).to_pylist() for n in ("topic", "partition", "offset")), strict=True))
    found = []
    for (topic, partition, _), run in groupby(enumerate(places), key=lambda at: (*at[1][:2], at[1][2] - at[0])):
        offsets = [place[2] for _, place in run]
        found.append(OffsetRange(topic, partition, offsets[0], offsets[-1] + 1))
    return found
