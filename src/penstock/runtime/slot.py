"""One slot's work, inside a Spark task: read, decode, split, transform, stage for every sink in one pass.

What enters is picklable and small; what leaves is a report with the manifests. Both lanes use these parts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.contracts import Decoder, Reader, Sink, Stage, Transform
from penstock.errors import PenstockError
from penstock.model import BatchToken, Manifest, OffsetRange, SlotAttempt
from penstock.transforms import Dedupe


@dataclass(frozen=True)
class SlotWork:
    """Everything a task needs to know about a batch."""

    token: BatchToken
    reader: Reader
    decoder: Decoder
    transforms: tuple[Transform, ...]
    sinks: tuple[Sink, ...]
    quarantine: Sink
    schema: pa.Schema


@dataclass
class SlotReport:
    """What a slot did."""

    slot: int
    rows_in: int = 0
    bytes_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        began = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


class Outlet:
    """The stages of one attempt: opened together, finished together, or aborted together."""

    def __init__(self, sinks: Sequence[Sink], token: BatchToken, slot: int, schema: pa.Schema) -> None:
        self._writer = SlotAttempt(slot, uuid.uuid4().hex[:12])
        self._stages: list[Stage] = [sink.stage(token, self._writer, schema) for sink in sinks]

    def write(self, rows: pa.RecordBatch) -> None:
        """Hand some rows to every stage."""
        if rows.num_rows:
            for stage in self._stages:
                stage.write(rows)

    def finish(self) -> list[Manifest]:
        """Finish every stage."""
        return [stage.finish() for stage in self._stages]

    def abort(self) -> None:
        """Remove what was staged."""
        for stage in self._stages:
            stage.abort()


@contextmanager
def outlets(*opened: Outlet) -> Iterator[None]:
    """Abort the outlets when anything fails, and send Penstock's own errors on in a form that Spark keeps."""
    try:
        yield
    except BaseException as error:
        for outlet in opened:
            outlet.abort()
        if isinstance(error, PenstockError):
            raise RuntimeError(error.to_wire()) from None
        raise


def decoded(work: SlotWork, ranges: Sequence[OffsetRange], bad: Outlet, report: SlotReport) -> Iterator[pa.RecordBatch]:
    """The good rows of some ranges; the bad ones go to `bad` on the way."""
    batches = work.reader.read(ranges)
    while True:
        with report.timed("read"):
            raw = next(batches, None)
        if raw is None:
            return
        report.rows_in += raw.num_rows
        report.bytes_in += raw.column("value").nbytes
        with report.timed("decode"):
            split = work.decoder.decode(raw)
        if split.bad.num_rows:
            report.quarantined += split.bad.num_rows
            bad.write(split.bad)
        yield split.good


def transformed(
    rows: Iterable[pa.RecordBatch], transforms: Sequence[Transform], bad: Outlet, report: SlotReport
) -> Iterator[pa.RecordBatch]:
    """Rows through transforms. A dedupe waits for all of the slot's rows; the others stream."""
    if not transforms:
        yield from rows
        return
    first = next((i for i, t in enumerate(transforms) if isinstance(t, Dedupe)), len(transforms))
    streamed = (_apply(batch, transforms[:first], bad, report) for batch in rows)
    if first == len(transforms):
        yield from streamed
        return
    whole = joined(list(streamed))
    if whole is not None:
        yield from transformed(
            [_apply(whole, transforms[first : first + 1], bad, report)], transforms[first + 1 :], bad, report
        )


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Some record batches as one."""
    batches = [b for b in batches if b.num_rows]
    return pa.concat_batches(batches) if batches else None


def _apply(rows: pa.RecordBatch, transforms: Sequence[Transform], bad: Outlet, report: SlotReport) -> pa.RecordBatch:
    with report.timed("transform"):
        for transform in transforms:
            split = transform.apply(rows)
            if split.bad.num_rows:
                report.quarantined += split.bad.num_rows
                bad.write(split.bad)
            rows = split.good
    return rows


def stage_rows(rows: Iterable[pa.RecordBatch], out: Outlet, report: SlotReport) -> None:
    """Write rows to every sink's stage."""
    for batch in rows:
        report.rows_out += batch.num_rows
        with report.timed("stage"):
            out.write(batch)
