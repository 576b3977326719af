"""What the sinks that append have in common for a replay in place: which rows of a table lie in some offset ranges.

A row is known by its coordinates alone. One record may have given several rows, or none: all rows of a range go out,
and what the replay made of the range comes in, in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MissingError
from penstock.model import COORDINATES, OffsetRange

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


def in_ranges(coordinates: pa.StructArray, ranges: Sequence[OffsetRange]) -> pa.BooleanArray:
    """For each row whether it lies in one of the ranges; false where it does not say where it came from."""
    topic, partition, offset = (pc.struct_field(coordinates, name) for name in ("topic", "partition", "offset"))
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


def refuse_without_coordinates(sink: str, schema: pa.Schema, *, kept: bool) -> None:
    """Refuse rows, or a table, that do not say where each row came from: nothing tells which ones to replace."""
    if kept and COORDINATES in schema.names:
        return
    raise MissingError(
        "REPLAY_NEEDS_INTO",
        f"sink {sink}: a replay cannot tell which rows of the target to replace: they lack the column {COORDINATES}",
        context={"columns": ", ".join(schema.names), "coordinates kept": "yes" if kept else "no"},
        hint="write to another target: --into TARGET",
    )
