"""Records that stay out of targets: quarantined by an earlier attempt of the batch, or held by the target already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import COORDINATES, TopicPartition

EVERYWHERE = ""
"""Stands for every route and sink of the pipeline."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""


@dataclass(frozen=True)
class Excluded:
    """For a route or a sink by its name, or for all of them: the offsets that stay out, by partition."""

    offsets: Mapping[str, Mapping[TopicPartition, frozenset[int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[tuple[str, Place]]) -> Excluded:
        """From pairs of a name and a record."""
        found: dict[str, dict[TopicPartition, set[int]]] = {}
        for name, (topic, partition, offset) in records:
            found.setdefault(name, {}).setdefault(TopicPartition(topic, partition), set()).add(offset)
        return cls({name: {at: frozenset(some) for at, some in each.items()} for name, each in found.items()})

    def __bool__(self) -> bool:
        return bool(self.offsets)

    def together(self, other: Excluded) -> Excluded:
        """What either keeps out."""
        return Excluded.of([*self._pairs(), *other._pairs()])

    def for_sinks(self, sinks: Iterable[str]) -> Excluded:
        """The same where only these sinks are written: a record that stays out of all of them is not decoded at all."""
        parts = [self.offsets.get(sink, {}) for sink in sinks]
        if not parts or not all(parts):
            return self
        shared = {
            at: frozenset.intersection(*(part[at] for part in parts))
            for at in parts[0]
            if all(at in part for part in parts)
        }
        return self.together(Excluded({EVERYWHERE: shared}))

    def raw(self, records: pa.RecordBatch, route: str = EVERYWHERE) -> pa.RecordBatch:
        """Raw records without those that stay out of the whole pipeline, or of this route."""
        names = {EVERYWHERE, route}
        return self._without(records, [records.column(name) for name in ("topic", "partition", "offset")], names)

    def rows(self, rows: pa.RecordBatch, sink: str) -> pa.RecordBatch:
        """Rows without those whose record stays out of this sink. Rows without coordinates all stay."""
        if sink not in self.offsets or COORDINATES not in rows.schema.names:
            return rows
        coordinates = rows.column(COORDINATES)
        return self._without(
            rows, [pc.struct_field(coordinates, name) for name in ("topic", "partition", "offset")], {sink}
        )

    def _without(self, rows: pa.RecordBatch, at: list[pa.Array], names: set[str]) -> pa.RecordBatch:
        topic, partition, offset = at
        out = None
        for place, offsets in ((p, o) for name in names for p, o in self.offsets.get(name, {}).items()):
            here = pc.and_(pc.equal(topic, place.topic), pc.equal(partition, place.partition))
            here = pc.and_(here, pc.is_in(offset, value_set=pa.array(sorted(offsets), pa.int64())))
            out = here if out is None else pc.or_(out, here)
        return rows if out is None else rows.filter(pc.invert(pc.fill_null(out, False)))

    def _pairs(self) -> Iterable[tuple[str, Place]]:
        for name, each in self.offsets.items():
            for at, offsets in each.items():
                yield from ((name, (at.topic, at.partition, offset)) for offset in offsets)
