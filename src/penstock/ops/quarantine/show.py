"""One quarantined record: its bytes, the reason, its state, and the result of the current pipeline."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from penstock.assembly.reaching import settings_of
from penstock.config import PipelineConfig
from penstock.errors import DefinitionError, MissingError, PenstockError, one_line
from penstock.kafka import Cluster
from penstock.kafka.cluster import look_seconds
from penstock.model import OffsetRange, TopicPartition
from penstock.ops.quarantine.place import QuarantinePlace, quarantine_of, try_records
from penstock.quarantine import QUARANTINE_SCHEMA
from penstock.quarantine.records import PLACE, REFUSED_BY, SCHEMA_ID, Place, raw_records
from penstock.readers import KafkaReader

_NEIGHBOURS = (-2, -1, 1, 2)
_PLACE = re.compile(r"(?P<topic>[^\[\]:@]+)(?:\[(?P<p1>\d+)\]@(?P<o1>\d+)|:(?P<p2>\d+):(?P<o2>\d+))")
_WHY = ("pipeline", "batch_id", "stage", "code", "message", REFUSED_BY, "quarantined_at", "state", "failures", "run")
_MARK = ("run", "batch_id", REFUSED_BY, "outcome", "stage", "code", "message", "wanted_by", "marked_at")


@dataclass(frozen=True)
class Neighbour:
    """An offset next to the record's."""

    offset: int
    standing: str
    """Whether the source has it, for people."""
    code: str | None
    """Why it is also in quarantine, if it is."""


@dataclass(frozen=True)
class TrialResult:
    """The result of the current pipeline for the record."""

    rows: Mapping[str, int]
    """How many rows each sink would get."""
    refused: tuple[Mapping[str, Any], ...] = ()
    """The stage, code and message of each refusal."""
    unknown: str | None = None
    """Why it was not tried."""


@dataclass(frozen=True)
class ShownRecord:
    """A record and all that is known of it."""

    pipeline: str
    target: str
    place: Place
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: datetime | None
    schema_id: int | None
    rows: tuple[Mapping[str, Any], ...]
    """The quarantine rows, oldest first: one, unless several sinks refused it."""
    marks: tuple[Mapping[str, Any], ...]
    neighbours: tuple[Neighbour, ...]
    now: TrialResult

    def as_json(self) -> dict[str, Any]:
        """For `--json`: bytes as text where they are UTF-8, and as Base64."""
        topic, partition, offset = self.place
        return {
            "pipeline": self.pipeline,
            "quarantine": self.target,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": self.timestamp,
            "key": _bytes_json(self.key),
            "value": _bytes_json(self.value),
            "headers": [{"key": name, "value": _bytes_json(value)} for name, value in self.headers],
            "schema_id": self.schema_id,
            "quarantined": list(self.rows),
            "redrives": list(self.marks),
            "neighbours": [one.__dict__ for one in self.neighbours],
            "now": self.now.__dict__,
        }


def parse_place(text: str) -> Place:
    """`orders[3]@1234` or `orders:3:1234`."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise DefinitionError(
            "PLACE_INVALID", f'"{text}" is not a record position', hint="write topic[partition]@offset: orders[3]@1234"
        )
    return found["topic"], int(found["p1"] or found["p2"]), int(found["o1"] or found["o2"])


def show_record(config: PipelineConfig, place: Place) -> ShownRecord:
    """Everything about the record at a position. Raises if it is not in quarantine."""
    quarantine = quarantine_of(config)
    found = quarantine.read([*QUARANTINE_SCHEMA.names, SCHEMA_ID], place)
    if not found.height:
        raise MissingError(
            "RECORD_NOT_QUARANTINED",
            f"{describe(place)} is not in quarantine",
            context={"looked in": quarantine.records.target, "for pipeline": config.name},
            hint="penstock quarantine list FILE --records 20",
        )
    [raw] = raw_records(found.head(1)).to_pylist()
    marks = quarantine.read_marks().filter(_at(place)).sort("marked_at")
    return ShownRecord(
        config.name,
        quarantine.records.target,
        place,
        raw["key"],
        raw["value"],
        tuple((header["key"], header["value"]) for header in raw["headers"] or ()),
        raw["timestamp"],
        found[SCHEMA_ID][0],
        tuple(found.select(_WHY).iter_rows(named=True)),
        tuple(marks.select(_MARK).iter_rows(named=True)),
        _neighbours(config, quarantine, place),
        _verdict(config, found.head(1)),
    )


def describe(place: Place) -> str:
    """`orders[3]@1234`."""
    topic, partition, offset = place
    return f"{topic}[{partition}]@{offset}"


def _at(place: Place) -> pl.Expr:
    return pl.all_horizontal(pl.col(name) == value for name, value in zip(PLACE, place, strict=True))


def _neighbours(config: PipelineConfig, quarantine: QuarantinePlace, place: Place) -> tuple[Neighbour, ...]:
    topic, partition, offset = place
    offsets = [offset + step for step in _NEIGHBOURS if offset + step >= 0]
    nearby = quarantine.read().filter(
        (pl.col("topic") == topic) & (pl.col("partition") == partition) & pl.col("offset").is_in(offsets)
    )
    codes = dict(nearby.select("offset", "code").iter_rows())
    standing = _standing(config, TopicPartition(topic, partition), offsets)
    return tuple(Neighbour(at, standing(at), codes.get(at)) for at in offsets)


def _standing(config: PipelineConfig, at: TopicPartition, offsets: list[int]) -> Callable[[int], str]:
    """Whether the source currently has some offsets; unreachable brokers are one of the results."""
    settings = settings_of(config.source)
    seconds = look_seconds(settings)
    try:
        log = Cluster(settings, seconds).bounds([at]).get(at)
        if log is None:
            return lambda offset: "gone: the partition no longer exists"
        first, last = max(log.start, offsets[0]), min(log.end, offsets[-1] + 1)
        found: set[int] = set()
        if first < last:
            wanted = [OffsetRange(at.topic, at.partition, first, last)]
            for batch in KafkaReader(settings, seconds).read(wanted):
                found.update(batch.column("offset").to_pylist())
    except PenstockError as error:
        unknown = f"unknown: {error.summary}"
        return lambda offset: unknown

    def describe_offset(offset: int) -> str:
        if offset in found:
            return "there"
        if offset < log.start:
            return f"gone: the log now starts at {log.start}"
        return "not written yet" if offset >= log.end else "no record: compacted, aborted or a transaction marker"

    return describe_offset


def _verdict(config: PipelineConfig, record: pl.DataFrame) -> TrialResult:
    from penstock.assembly.build import build

    try:
        pipeline = build(config)
        if pipeline.stateful or pipeline.lane.lane != "direct":
            why = "it is stateful" if pipeline.stateful else f"it uses the frame lane ({pipeline.lane.reason})"
            return TrialResult({}, unknown=f"only Spark can run this pipeline: {why}")
        result = try_records(pipeline, record)
    except PenstockError as error:
        return TrialResult({}, unknown=one_line(error))
    refused = result.quarantine.select(["stage", "code", "message", REFUSED_BY]).to_pylist()
    return TrialResult({name: rows.num_rows for name, rows in result.sinks.items()}, tuple(refused))


def _bytes_json(value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    return {"text": text, "base64": base64.b64encode(value).decode(), "bytes": len(value)}
