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


DECODE = "decode"
"""The stage of a record that could not be decoded, so that no step has seen it."""

Offsets = Mapping[str, Mapping[TopicPartition, frozenset[int]]]


@dataclass(frozen=True)
class Excluded:
    """For a route or a sink by its name, or for all of them: the offsets that stay out of the targets, by partition.

    A record that a step or a target refused has taken part in the steps before: a dedupe that kept it has dropped older
    rows of its key. So it takes part again, and its row is dropped behind the steps. `before_steps` are those of
    `offsets` that no step sees.
    """

    offsets: Offsets = field(default_factory=dict)
    before_steps: Offsets = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[tuple[str, Place]], before_steps: Iterable[tuple[str, Place]] = ()) -> Excluded:
        """From pairs of a name and a record; `before_steps` are some of them."""
        return cls(_grouped(records), _grouped(before_steps))

    @classmethod
    def quarantined(cls, records: Iterable[tuple[str, Place, str]]) -> Excluded:
        """From records in the quarantine: the name of who refused it, the record, and the stage that did."""
        known = list(records)
        return cls.of(
            ((name, place) for name, place, _ in known),
            ((name, place) for name, place, stage in known if stage == DECODE),
        )

    def __bool__(self) -> bool:
        return bool(self.offsets)

    def together(self, other: Excluded) -> Excluded:
        """What either keeps out."""
        return Excluded.of(
            [*_pairs(self.offsets), *_pairs(other.offsets)], [*_pairs(self.before_steps), *_pairs(other.before_steps)]
        )

    def all_before_steps(self, sinks: Iterable[str]) -> Excluded:
        """The same for steps that judge each row by itself: they need not see what stays out.

        Where only these sinks are written, a record that stays out of all of them is not decoded at all.
        """
        parts = [self.offsets.get(sink, {}) for sink in sinks]
        found = self
        if parts and all(parts):
            shared = {
                at: frozenset.intersection(*(part[at] for part in parts))
                for at in parts[0]
                if all(at in part for part in parts)
            }
            found = self.together(Excluded({EVERYWHERE: shared}))
        return Excluded(found.offsets, found.offsets)

    def raw(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Raw records without those that stay out of the whole pipeline, and that no step has to see."""
        at = [records.column(name) for name in ("topic", "partition", "offset")]
        return _without(records, at, self.before_steps, {EVERYWHERE})

    def decoded(self, rows: pa.RecordBatch, route: str) -> pa.RecordBatch:
        """Rows without those that stay out of this route, and that none of its steps has to see."""
        return _without(rows, _coordinates(rows), self.before_steps, {route}) if route else rows

    def rows(self, rows: pa.RecordBatch, route: str, sink: str) -> pa.RecordBatch:
        """Rows behind the steps without those whose record stays out of this sink.

        Rows without coordinates all stay.
        """
        names = {EVERYWHERE, route, sink}
        if names.isdisjoint(self.offsets) or COORDINATES not in rows.schema.names:
            return rows
        return _without(rows, _coordinates(rows), self.offsets, names)

    def has(self, names: Iterable[str], place: Place) -> bool:
        """Whether a record stays out of all of these."""
        topic, partition, offset = place
        at = TopicPartition(topic, partition)
        everywhere = offset in self.offsets.get(EVERYWHERE, {}).get(at, ())
        return everywhere or all(offset in self.offsets.get(name, {}).get(at, ()) for name in names)


def _grouped(records: Iterable[tuple[str, Place]]) -> Offsets:
    found: dict[str, dict[TopicPartition, set[int]]] = {}
    for name, (topic, partition, offset) in records:
        found.setdefault(name, {}).setdefault(TopicPartition(topic, partition), set()).add(offset)
    return {name: {at: frozenset(some) for at, some in each.items()} for name, each in found.items()}


def _pairs(offsets: Offsets) -> Iterable[tuple[str, Place]]:
    for name, each in offsets.items():
        for at, some in each.items():
            yield from ((name, (at.topic, at.partition, offset)) for offset in some)


def _coordinates(rows: pa.RecordBatch) -> list[pa.Array]:
    coordinates = rows.column(COORDINATES)
    return [pc.struct_field(coordinates, name) for name in ("topic", "partition", "offset")]


def _without(rows: pa.RecordBatch, at: list[pa.Array], out: Offsets, names: set[str]) -> pa.RecordBatch:
    topic, partition, offset = at
    found = None
    for place, offsets in ((p, o) for name in names for p, o in out.get(name, {}).items()):
        here = pc.and_(pc.equal(topic, place.topic), pc.equal(partition, place.partition))
        here = pc.and_(here, pc.is_in(offset, value_set=pa.array(sorted(offsets), pa.int64())))
        found = here if found is None else pc.or_(found, here)
    return rows if found is None else rows.filter(pc.invert(pc.fill_null(found, False)))
