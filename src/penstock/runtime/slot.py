"""One slot's work, inside a Spark task: read, decode, split, transform, stage for every sink in one pass.

What enters is picklable and small; what leaves is a report with the manifests. Both lanes use these parts.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Decoder, Reader, Sink, SlotSink, Stage, TellingDecoder, Transform
from penstock.errors import PenstockError
from penstock.metrics.memory import memory_in_use
from penstock.model import (
    BAD_SCHEMA,
    DELETES,
    BatchToken,
    Manifest,
    OffsetRange,
    Refusal,
    SlotAttempt,
    Split,
    TopicPartition,
    bad_records,
)
from penstock.registry.exchange import seconds_asked
from penstock.runtime.inlet import Inlet
from penstock.transforms import Dedupe


@dataclass(frozen=True)
class SlotWork:
    """Everything a task needs to know about a batch."""

    token: BatchToken
    reader: Reader
    decoder: Decoder
    transforms: tuple[Transform, ...]
    inlets: tuple[Inlet, ...]
    quarantines: tuple[Sink, ...]
    schema: pa.Schema
    tombstones: Decoder | None = None
    """How a record without a value becomes a delete; none where the decoder sees to it."""
    deleting: tuple[Sink, ...] = ()
    """The sinks that are given the deletes."""
    pinned: int | None = None
    """The number of slots, where a sink commits in its slot."""
    first_side: int = 0
    """Where the numbers of this flow's side slots begin: flows share a quarantine, and not its slots."""
    route: str = ""
    """The name of the flow, where there are several."""
    counts: bool = True
    """Whether this flow counts the records that it reads, and quarantines those that cannot be decoded: of several
    that read the same topics one does."""

    def wanted_by(self, sinks: Sequence[Sink]) -> SlotWork:
        """The same work for some of the sinks."""
        return replace(
            self,
            inlets=tuple(inlet for inlet in self.inlets if inlet.sink in sinks),
            deleting=tuple(sink for sink in self.deleting if sink in sinks),
        )


@dataclass
class SlotReport:
    """What a slot did."""

    slot: int
    rows_in: int = 0
    bytes_in: int = 0
    read: set[TopicPartition] = field(default_factory=set)
    """The partitions that it read to the end, where Spark chose them."""
    rows_out: int = 0
    quarantined: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    """How many records were quarantined, by their codes."""
    counts: dict[str, int] = field(default_factory=dict)
    """What the transforms counted, by its names."""
    refused: list[Refusal] = field(default_factory=list)
    """Rows that the transforms refused and that are not in the quarantine yet."""
    notices: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    took: float = 0.0
    """Seconds from the slot's first line to its last."""
    pressure: float = 0.0
    """The share of its machine's memory that was in use at its end."""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        began = time.perf_counter()
        yield
        self.spent(phase, time.perf_counter() - began)

    def spent(self, phase: str, seconds: float) -> None:
        """Add to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def finish(self, sides: Sides | None = None, out: Outlet | None = None) -> None:
        """Finish what was staged, first the sides, and keep the manifests."""
        with self.timed("stage"):
            for end in (sides, out):
                self.manifests += end.finish() if end is not None else []
        for sink, seconds in (out.seconds if out is not None else {}).items():
            self.spent(f"stage:{sink}", seconds)

    def take(self, split: Split) -> pa.RecordBatch:
        """The rows of a transform that go on; what it refused and counted is kept here."""
        self.refused += [replace(refusal, stage="transform") for refusal in split.refused]
        for name, count in split.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        return split.good

    def refused_on(self, route: str) -> None:
        """Note on which route the transforms refused what they did since the last call."""
        self.refused = [
            replace(refusal, by=route) if refusal.stage == "transform" and not refusal.by else refusal
            for refusal in self.refused
        ]


@contextmanager
def reporting(slot: int) -> Iterator[SlotReport]:
    """The report of one slot, which is whole when the work inside is done."""
    report, began, asked = SlotReport(slot), time.perf_counter(), seconds_asked()
    yield report
    report.took, report.pressure = time.perf_counter() - began, memory_in_use()
    if (waited := seconds_asked() - asked) > 0:
        report.spent("registry", waited)


class Outlet:
    """The stages of one attempt: opened together, finished together, or aborted together."""

    def __init__(self, inlets: Sequence[Inlet], token: BatchToken, slot: int, schema: pa.Schema) -> None:
        writer = SlotAttempt(slot, uuid.uuid4().hex[:12])
        self._stages: list[tuple[Inlet, Stage]] = []
        self.refused: list[Refusal] = []
        self.seconds: dict[str, float] = {}
        """What each sink took."""
        try:
            for inlet in inlets:
                self._stages.append((inlet, inlet.sink.stage(token, writer, inlet.schema(schema))))
        except BaseException:
            self.abort()
            raise

    def write(self, rows: pa.RecordBatch) -> None:
        """Hand some rows to every stage."""
        for inlet, stage in self._stages:
            mine = inlet.rows(rows)
            if mine.num_rows:
                with self._timed(inlet):
                    refused = stage.write(mine)
                self.refused += [replace(refusal, by=inlet.sink.name) for refusal in refused]

    def finish(self) -> list[Manifest]:
        """Finish every stage, last those whose end is the commit."""
        manifests = []
        for inlet, stage in sorted(self._stages, key=lambda one: isinstance(one[0].sink, SlotSink)):
            with self._timed(inlet):
                manifests.append(stage.finish())
        return manifests

    def abort(self) -> None:
        """Remove what was staged."""
        for _, stage in self._stages:
            stage.abort()

    @contextmanager
    def _timed(self, inlet: Inlet) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[inlet.sink.name] = self.seconds.get(inlet.sink.name, 0.0) + time.perf_counter() - began


class Sides:
    """What leaves a slot beside its rows: bad records, and deletes by tombstones."""

    def __init__(self, work: SlotWork, slot: int) -> None:
        side = work.first_side + slot
        self.bad = Outlet([Inlet(sink) for sink in work.quarantines], work.token, side, BAD_SCHEMA)
        marked = {DELETES: DELETES}
        deleting = [Inlet(sink, computed=marked) for sink in work.deleting] if work.tombstones is not None else []
        schema = work.tombstones.schema if work.tombstones is not None else BAD_SCHEMA
        self.deletes = Outlet(deleting, work.token, slot, schema)

    def finish(self) -> list[Manifest]:
        """Finish both."""
        return self.deletes.finish() + self.bad.finish()

    def abort(self) -> None:
        """Remove what was staged."""
        self.deletes.abort()
        self.bad.abort()


@contextmanager
def outlet_of(work: SlotWork, slot: int) -> Iterator[Outlet]:
    """The stages of every sink for the rows of a slot, aborted when anything fails."""
    with errors_for_spark():
        out = Outlet(work.inlets, work.token, slot, work.schema)
        try:
            yield out
        except BaseException:
            out.abort()
            raise


@contextmanager
def sides_of(work: SlotWork, slot: int) -> Iterator[Sides]:
    """The stages beside the rows, aborted when anything fails."""
    with errors_for_spark():
        sides = Sides(work, slot)
        try:
            yield sides
        except BaseException:
            sides.abort()
            raise


@contextmanager
def errors_for_spark() -> Iterator[None]:
    """Send Penstock's own errors on in a form that Spark keeps."""
    try:
        yield
    except PenstockError as error:
        raise RuntimeError(error.to_wire()) from None


def decoded(
    work: SlotWork, ranges: Sequence[OffsetRange], sides: Sides, report: SlotReport
) -> Iterator[pa.RecordBatch]:
    """The good rows of some ranges; what is bad or deletes goes to the sides on the way."""
    yield from decoded_batches(work, work.reader.read(ranges), sides, report)


def decoded_batches(
    work: SlotWork, batches: Iterator[pa.RecordBatch], sides: Sides, report: SlotReport
) -> Iterator[pa.RecordBatch]:
    """The same for records that are read already."""
    while True:
        with report.timed("read"):
            raw = next(batches, None)
        if raw is None:
            break
        if work.counts:
            report.rows_in += raw.num_rows
            report.bytes_in += raw.column("value").nbytes
        with report.timed("decode"):
            if work.tombstones is not None and raw.column("value").null_count:
                raw = _take_out_tombstones(raw, work, sides, report)
            split = work.decoder.decode(raw)
        if work.counts:
            quarantine(split.bad, sides, report)
        yield split.good
    if isinstance(work.decoder, TellingDecoder):
        report.notices.update(work.decoder.notices())


def _take_out_tombstones(raw: pa.RecordBatch, work: SlotWork, sides: Sides, report: SlotReport) -> pa.RecordBatch:
    assert work.tombstones is not None
    empty = pc.is_null(raw.column("value"))
    split = work.tombstones.decode(raw.filter(empty))
    sides.deletes.write(split.good)
    report.rows_out += split.good.num_rows
    if work.counts:
        quarantine(split.bad, sides, report)
    return raw.filter(pc.invert(empty))


def transformed(
    rows: Iterable[pa.RecordBatch], transforms: Sequence[Transform], report: SlotReport
) -> Iterator[pa.RecordBatch]:
    """Rows through transforms. A dedupe waits for all of the slot's rows; the others stream."""
    if not transforms:
        yield from rows
        return
    first = next((i for i, t in enumerate(transforms) if isinstance(t, Dedupe)), len(transforms))
    streamed = (apply_all(batch, transforms[:first], report) for batch in rows)
    if first == len(transforms):
        yield from streamed
        return
    whole = joined(list(streamed))
    if whole is not None:
        yield from transformed(
            [apply_all(whole, transforms[first : first + 1], report)], transforms[first + 1 :], report
        )


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Some record batches as one."""
    batches = [b for b in batches if b.num_rows]
    return pa.concat_batches(batches) if batches else None


def apply_all(rows: pa.RecordBatch, transforms: Sequence[Transform], report: SlotReport) -> pa.RecordBatch:
    """Rows through transforms that need nothing but these rows."""
    with report.timed("transform"):
        for transform in transforms:
            rows = report.take(transform.apply(rows))
    return rows


def quarantine(bad: pa.RecordBatch, sides: Sides, report: SlotReport) -> None:
    """Stage bad records, and count them."""
    if bad.num_rows:
        report.quarantined += bad.num_rows
        for code, count in Counter(bad.column("code").to_pylist()).items():
            report.codes[code] = report.codes.get(code, 0) + count
        sides.bad.write(bad)


def stage_rows(rows: Iterable[pa.RecordBatch], out: Outlet, report: SlotReport) -> None:
    """Write rows to every sink's stage."""
    for batch in rows:
        report.rows_out += batch.num_rows
        with report.timed("stage"):
            out.write(batch)


def quarantine_refused(work: SlotWork, sides: Sides, report: SlotReport, out: Outlet | None = None) -> None:
    """Quarantine the records of refused rows and deletes. All is read now: the reader is free."""
    report.refused_on(work.route)
    refused, report.refused = report.refused, []
    for some in (refused, sides.deletes.refused, *((out.refused,) if out is not None else ())):
        for bad in refused_records(work.reader, some):
            quarantine(bad, sides, report)


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
