"""Rows that a transform or a target refused, as the records that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Reader
from penstock.model import OffsetRange, Refusal, TopicPartition, bad_records


def refused_records(reader: Reader, refused: Sequence[Refusal]) -> Iterator[pa.RecordBatch]:
    """The records of refused rows as bad ones, read again from the source: byte for byte, each once."""
    reasons = {r.record: r for r in reversed(refused)}
    by: dict[OffsetRange, dict[str, None]] = {}
    for refusal in refused:
        by.setdefault(refusal.record, {}).setdefault(refusal.by)
    if not reasons:
        return
    offsets = pa.array({record.start for record in reasons}, pa.int64())
    for raw in reader.read(_around(reasons)):
        raw = raw.filter(pc.is_in(raw.column("offset"), value_set=offsets))
        places = zip(*(raw.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        found = [reasons.get(OffsetRange(topic, p, offset, offset + 1)) for topic, p, offset in places]
        raw = raw.filter(pa.array([reason is not None for reason in found], pa.bool_()))
        told = [reason for reason in found if reason is not None]
        stages, codes, messages = (
            pa.array([getattr(reason, name) for reason in told], pa.string()) for name in ("stage", "code", "message")
        )
        refusing = pa.array([",".join(filter(None, by[reason.record])) or None for reason in told], pa.string())
        yield bad_records(raw, stages, codes, messages, refusing)


def _around(records: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One range for each partition that covers its records."""
    covering: dict[TopicPartition, OffsetRange] = {}
    for one in records:
        known = covering.setdefault(one.topic_partition, one)
        covering[one.topic_partition] = replace(known, start=min(known.start, one.start), end=max(known.end, one.end))
    return list(covering.values())
