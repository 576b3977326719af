"""Records excluded from the targets: refused by a step or a target, or quarantined before.

A refused row becomes the record that it came from, with its bytes, which are read again from the source if they were
not kept. Records that an earlier attempt of the batch has quarantined, and those that a target already has, are
excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Reader
from penstock.model import BAD_SCHEMA, COORDINATES, RAW_SCHEMA, OffsetRange, Refusal, TopicPartition, bad_records

EVERYWHERE = ""
"""Means every route and sink of the pipeline."""

RecordPlace = tuple[str, int, int]
"""Topic, partition and offset of a record."""


DECODE = "decode"
"""The stage of a record that could not be decoded and reached no step."""

Offsets = Mapping[str, Mapping[TopicPartition, frozenset[int]]]


@dataclass(frozen=True)
class Excluded:
    """For a route or a sink by its name, or for all of them: the offsets that stay out of the targets, by partition.

    A record that a step or a target refused has taken part in the steps before: a dedupe that kept it has dropped older
    rows of its key. So it takes part again, and its row is dropped after the steps. `before_steps` are those of
    `offsets` that no step sees.
    """

    offsets: Offsets = field(default_factory=dict)
    before_steps: Offsets = field(default_factory=dict)

    @classmethod
    def of(
        cls, records: Iterable[tuple[str, RecordPlace]], before_steps: Iterable[tuple[str, RecordPlace]] = ()
    ) -> Excluded:
        """From pairs of a name and a record; `before_steps` are some of them."""
        return cls(_grouped(records), _grouped(before_steps))

    @classmethod
    def quarantined(cls, records: Iterable[tuple[str, RecordPlace, str]]) -> Excluded:
        """From records in the quarantine: the name of who refused it, the record, and the stage that did."""
        known = list(records)
        return cls.of(
            ((name, place) for name, place, _ in known),
            ((name, place) for name, place, stage in known if stage == DECODE),
        )

    def __bool__(self) -> bool:
        return bool(self.offsets)

    @property
    def count(self) -> int:
        """How many records stay out of anything."""
        return len({place for _, place in _pairs(self.offsets)})

    def together(self, other: Excluded) -> Excluded:
        """What either keeps out."""
        return Excluded.of(
            [*_pairs(self.offsets), *_pairs(other.offsets)], [*_pairs(self.before_steps), *_pairs(other.before_steps)]
        )

    def all_before_steps(self, sinks: Iterable[str]) -> Excluded:
        """The same for steps that check each row independently: they need not see excluded records.

        If only these sinks are written, a record that is excluded from all of them is not decoded at all.
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
        return _without(records, self.before_steps, {EVERYWHERE})

    def decoded(self, rows: pa.RecordBatch, route: str) -> pa.RecordBatch:
        """Rows without those that stay out of this route, and that none of its steps has to see."""
        return _without(rows, self.before_steps, {route}) if route else rows

    def rows(self, rows: pa.RecordBatch, route: str, sink: str) -> pa.RecordBatch:
        """Rows after the steps without those whose record stays out of this sink.

        Rows without coordinates all stay.
        """
        names = {EVERYWHERE, route, sink}
        if names.isdisjoint(self.offsets) or COORDINATES not in rows.schema.names:
            return rows
        return _without(rows, self.offsets, names)

    def has(self, names: Iterable[str], place: RecordPlace) -> bool:
        """Whether a record stays out of all of these."""
        topic, partition, offset = place
        at = TopicPartition(topic, partition)
        everywhere = offset in self.offsets.get(EVERYWHERE, {}).get(at, ())
        return everywhere or all(offset in self.offsets.get(name, {}).get(at, ()) for name in names)


def _grouped(records: Iterable[tuple[str, RecordPlace]]) -> Offsets:
    found: dict[str, dict[TopicPartition, set[int]]] = {}
    for name, (topic, partition, offset) in records:
        found.setdefault(name, {}).setdefault(TopicPartition(topic, partition), set()).add(offset)
    return {name: {at: frozenset(some) for at, some in each.items()} for name, each in found.items()}


def _pairs(offsets: Offsets) -> Iterable[tuple[str, RecordPlace]]:
    for name, each in offsets.items():
        for at, some in each.items():
            yield from ((name, (at.topic, at.partition, offset)) for offset in some)


def _coordinates(rows: pa.RecordBatch) -> list[pa.Array]:
    """Topic, partition and offset: columns of raw and bad records, fields of one column in decoded rows."""
    names = ("topic", "partition", "offset")
    if COORDINATES not in rows.schema.names:
        return [rows.column(name) for name in names]
    return [pc.struct_field(rows.column(COORDINATES), name) for name in names]


def record_places(rows: pa.RecordBatch) -> list[RecordPlace]:
    """The record of each row, or of each raw or bad record."""
    return list(zip(*(column.to_pylist() for column in _coordinates(rows)), strict=True))


def single_record(place: RecordPlace) -> OffsetRange:
    """The range of one record."""
    topic, partition, offset = place
    return OffsetRange(topic, partition, offset, offset + 1)


def _without(rows: pa.RecordBatch, out: Offsets, names: set[str]) -> pa.RecordBatch:
    topic, partition, offset = _coordinates(rows)
    found = None
    for place, offsets in ((p, o) for name in names for p, o in out.get(name, {}).items()):
        here = pc.and_(pc.equal(topic, place.topic), pc.equal(partition, place.partition))
        here = pc.and_(here, pc.is_in(offset, value_set=pa.array(sorted(offsets), pa.int64())))
        found = here if found is None else pc.or_(found, here)
    return rows if found is None else rows.filter(pc.invert(pc.fill_null(found, False)))


BYTES_GONE = "BYTES_GONE"
"""The code of a refused record that is no longer in the topic: its coordinates are kept, its bytes are lost."""


@dataclass
class Refused:
    """Refusals that wait for the bytes of their records. Each record leaves once, with its first reason."""

    waiting: dict[OffsetRange, list[Refusal]] = field(default_factory=dict)

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Take refusals; several of one record are one bad record."""
        for refusal in refusals:
            self.waiting.setdefault(refusal.record, []).append(refusal)

    def found_in(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Those whose records are among these, as bad records, byte for byte. They wait no longer."""
        if not self.waiting or not raw.num_rows:
            return pa.RecordBatch.from_pylist([], schema=BAD_SCHEMA)
        offsets = pa.array({record.start for record in self.waiting}, pa.int64())
        raw = raw.filter(pc.is_in(raw.column("offset"), value_set=offsets))
        found = [self.waiting.pop(single_record(place), None) for place in record_places(raw)]
        raw = raw.filter(pa.array([reasons is not None for reasons in found], pa.bool_()))
        return _as_bad(raw, [reasons for reasons in found if reasons is not None])

    def gone(self) -> pa.RecordBatch:
        """The remaining records, which are no longer in any topic, as bad records without bytes."""
        left, self.waiting = sorted(self.waiting.items()), {}
        places = [{"topic": one.topic, "partition": one.partition, "offset": one.start} for one, _ in left]
        raw = pa.RecordBatch.from_pylist(places, schema=RAW_SCHEMA)
        reasons = [
            [
                replace(
                    each[0],
                    code=BYTES_GONE,
                    message=f"{each[0].code}: {each[0].message}; the topic no longer has the record's bytes",
                ),
                *each[1:],
            ]
            for _, each in left
        ]
        return _as_bad(raw, reasons)


def refused_records(reader: Reader, refused: Sequence[Refusal]) -> Iterator[pa.RecordBatch]:
    """The records of refused rows as bad ones, read again from the source, each once.

    A record that compaction or retention has removed gets no bytes, and its own code.
    """
    waiting = Refused()
    waiting.add(refused)
    yield from read_again(reader, waiting)


def read_again(reader: Reader, waiting: Refused) -> Iterator[pa.RecordBatch]:
    """The same for refusals that wait already."""
    if not waiting.waiting:
        return
    for raw in reader.read(_around(waiting.waiting)):
        found = waiting.found_in(raw)
        if found.num_rows:
            yield found
    if waiting.waiting:
        yield waiting.gone()


def _as_bad(raw: pa.RecordBatch, reasons: Sequence[Sequence[Refusal]]) -> pa.RecordBatch:
    stages, codes, messages = (
        pa.array([getattr(each[0], name) for each in reasons], pa.string()) for name in ("stage", "code", "message")
    )
    by = [",".join(filter(None, dict.fromkeys(refusal.by for refusal in each))) or None for each in reasons]
    return bad_records(raw, stages, codes, messages, pa.array(by, pa.string()))


def _around(records: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One range for each partition that covers its records."""
    covering: dict[TopicPartition, OffsetRange] = {}
    for one in records:
        known = covering.setdefault(one.topic_partition, one)
        covering[one.topic_partition] = replace(known, start=min(known.start, one.start), end=max(known.end, one.end))
    return list(covering.values())
