"""Rows that a transform or a target refused, as the records that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Reader
from penstock.model import BAD_SCHEMA, OffsetRange, Refusal, TopicPartition, bad_records

BYTES_GONE = "BYTES_GONE"
"""The code of a refused record that the topic no longer has: its coordinates are kept, its bytes are lost."""


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
            return bad_records(raw.slice(0, 0), *_nothing())
        offsets = pa.array({record.start for record in self.waiting}, pa.int64())
        raw = raw.filter(pc.is_in(raw.column("offset"), value_set=offsets))
        places = zip(*(raw.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        found = [self.waiting.pop(OffsetRange(topic, p, offset, offset + 1), None) for topic, p, offset in places]
        raw = raw.filter(pa.array([reasons is not None for reasons in found], pa.bool_()))
        return _as_bad(raw, [reasons for reasons in found if reasons is not None])

    def gone(self) -> pa.RecordBatch:
        """The rest, which no topic has any more, as bad records without bytes. They wait no longer."""
        left, self.waiting = sorted(self.waiting.items()), {}
        places = [[getattr(record, name) for record, _ in left] for name in ("topic", "partition", "start")]
        columns = {"topic": places[0], "partition": places[1], "offset": places[2]}
        raw = pa.RecordBatch.from_arrays(
            [
                pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(left), f.type)
                for f in BAD_SCHEMA
                if f.name not in ("stage", "code", "message", "refused_by")
            ],
            names=[f.name for f in BAD_SCHEMA if f.name not in ("stage", "code", "message", "refused_by")],
        )
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

    One that compaction or retention has removed meanwhile comes without its bytes, and with a code that says so.
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


def _nothing() -> tuple[pa.Array, pa.Array, pa.Array]:
    return pa.array([], pa.string()), pa.array([], pa.string()), pa.array([], pa.string())


def _around(records: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One range for each partition that covers its records."""
    covering: dict[TopicPartition, OffsetRange] = {}
    for one in records:
        known = covering.setdefault(one.topic_partition, one)
        covering[one.topic_partition] = replace(known, start=min(known.start, one.start), end=max(known.end, one.end))
    return list(covering.values())
