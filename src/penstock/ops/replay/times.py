"""When the records of some ranges were written, by a look at their ends alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow.compute as pc

from penstock.contracts import Reader
from penstock.model import OffsetRange, TopicPartition

_PEEKED = 20
"""So many offsets are looked at for a record's time: some of them may be holes."""


def first_times(reader: Reader, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, datetime]:
    """When the first record of each range was written."""
    found: dict[TopicPartition, tuple[int, datetime]] = {}
    for rows in reader.read(_heads(ranges)):
        columns = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset", "timestamp"))
        for topic, partition, offset, time in zip(*columns, strict=True):
            at = TopicPartition(topic, partition)
            if time is not None and (at not in found or offset < found[at][0]):
                found[at] = (offset, time)
    return {at: time for at, (_, time) in found.items()}


def times_of(reader: Reader, ranges: Sequence[OffsetRange]) -> tuple[datetime, datetime] | None:
    """About when the first and the last of the records were written."""
    tails = [replace(one, start=max(one.start, one.end - _PEEKED)) for one in ranges]
    found = [
        time.as_py()
        for ends in (_heads(ranges), tails)
        for rows in reader.read(ends)
        for time in pc.min_max(rows.column("timestamp")).values()
    ]
    known = [time for time in found if time is not None]
    return (min(known), max(known)) if known else None


def _heads(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    return [replace(one, end=min(one.end, one.start + _PEEKED)) for one in ranges]
