"""One slot's work, inside a Spark task: read, decode, split, transform, stage for every sink in one pass.

What enters is picklable and small; what leaves is a report with the manifests. Both lanes use these parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import TellingDecoder, Transform
from penstock.model import OffsetRange
from penstock.runtime.outlet import Outlet, Sides, SlotWork
from penstock.runtime.refused import refused_records
from penstock.runtime.slot_report import SlotReport
from penstock.transforms import Dedupe


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
