"""What a slot does inside a Spark task: read, decode, split, transform, and stage for every sink, in one pass.

What enters is picklable and small; what leaves is a report with the manifests. Both lanes use these parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Transform
from penstock.engine.outlet import Outlet, SideOutputs, finish_stages, outlet_of, sides_of
from penstock.engine.refused import EVERYWHERE, Refused, read_again, record_places
from penstock.engine.work import SlotReport, SlotWork, reporting
from penstock.model import OffsetRange, TopicPartition
from penstock.transforms import Dedupe


def _take_out_tombstones(raw: pa.RecordBatch, work: SlotWork, sides: SideOutputs, report: SlotReport) -> pa.RecordBatch:
    assert work.tombstones is not None
    empty = pc.is_null(raw.column("value"))
    split = work.tombstones.decode(raw.filter(empty))
    sides.deletes.write(split.good)
    report.rows_out += split.good.num_rows
    if work.counts:
        quarantine(split.bad, work, sides, report)
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


def quarantine(bad: pa.RecordBatch, work: SlotWork, sides: SideOutputs, report: SlotReport) -> None:
    """Stage bad records, and count them. Those that an earlier attempt of the batch quarantined are there already."""
    if work.excluded and bad.num_rows:
        bad = bad.filter(pa.array([not known for known in _known(bad, work)], pa.bool_()))
    if bad.num_rows:
        if work.lacking:
            named = pc.if_else(pc.is_null(bad.column("refused_by")), _lacking(bad, work), bad.column("refused_by"))
            bad = bad.set_column(bad.schema.get_field_index("refused_by"), "refused_by", named)
        report.quarantined += bad.num_rows
        for code, count in Counter(bad.column("code").to_pylist()).items():
            report.codes[code] = report.codes.get(code, 0) + count
        if work.pinned is not None:
            reasons = (bad.column(name).to_pylist() for name in ("refused_by", "stage"))
            for by, stage, place in zip(*reasons, record_places(bad), strict=True):
                report.bad += [(name, place, stage) for name in (by or EVERYWHERE).split(",")]
        sides.bad.write(bad)


def _known(bad: pa.RecordBatch, work: SlotWork) -> list[bool]:
    """For each bad record, whether every sink that it is refused for leaves it out already."""
    refused_by, every_sink = bad.column("refused_by").to_pylist(), work.lacking or EVERYWHERE
    pairs = zip(refused_by, record_places(bad), strict=True)
    return [work.excluded.has((by or every_sink).split(","), place) for by, place in pairs]


def _lacking(bad: pa.RecordBatch, work: SlotWork) -> pa.Array:
    """For each bad record the sinks that need the batch, without those that exclude it or already have it."""
    names = work.lacking.split(",")
    out = {name: work.excluded.offsets.get(name, {}) for name in names}
    places = record_places(bad)
    found = [",".join(n for n in names if o not in out[n].get(TopicPartition(t, p), ())) for t, p, o in places]
    return pa.array([some or work.lacking for some in found], pa.string())


def stage_rows(rows: Iterable[pa.RecordBatch], out: Outlet, report: SlotReport) -> None:
    """Write rows to every sink's stage."""
    for batch in rows:
        with report.timed("stage"):
            report.rows_out += batch.num_rows - out.write(batch)


class SlotRun:
    """A running slot: its input and outputs, for one flow or for several that read the same records.

    Rows refused by steps and targets go to the quarantine. While the rows of some records are processed, the records
    are still in memory, and a refused one keeps its bytes. Rows refused later, after a dedupe, are read again at the
    end.
    """

    def __init__(self, report: SlotReport, ends: Sequence[tuple[SlotWork, SideOutputs, Outlet | None]]) -> None:
        self.report = report
        self._ends = ends
        self._refused = [Refused() for _ in ends]

    def decoded(self, ranges: Sequence[OffsetRange], work: SlotWork | None = None) -> Iterator[pa.RecordBatch]:
        """The good rows of some ranges; bad records and deletes are collected separately."""
        work, sides, report = work or self._ends[0][0], self._ends[0][1], self.report
        batches = work.reader.read(ranges)
        while True:
            with report.timed("read"):
                raw = next(batches, None)
            if raw is None:
                break
            if work.counts:
                report.rows_in += raw.num_rows
                report.bytes_in += raw.column("value").nbytes
            raw = whole = work.excluded.raw(raw)
            with report.timed("decode"):
                if work.tombstones is not None and raw.column("value").null_count:
                    raw = _take_out_tombstones(raw, work, sides, report)
                split = work.decoder.decode(raw)
            if work.counts:
                quarantine(split.bad, work, sides, report)
            yield work.excluded.decoded(split.good, work.route)
            self._quarantine_refused(whole)
        report.notices.update(work.decoder.notices())

    def stage(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Write the rows of one flow to its sinks."""
        out = self._ends[0][2]
        assert out is not None
        stage_rows(rows, out, self.report)

    def share(self, batch: pa.RecordBatch) -> None:
        """Take rows through the steps of each flow, to its sinks."""
        for work, _, out in self._ends:
            assert out is not None
            mine = work.excluded.decoded(batch, work.route)
            stage_rows(transformed([mine], work.transforms, self.report), out, self.report)
            self.report.refused_on(work.route)

    def finish(self) -> None:
        """Quarantine what is still refused, all of it read now, and finish every stage."""
        self._collect_refused()
        for refused, (work, sides, _) in zip(self._refused, self._ends, strict=True):
            for bad in read_again(work.reader, refused):
                quarantine(bad, work, sides, self.report)
        for _, sides, out in self._ends:
            finish_stages(self.report, sides, out)

    def _quarantine_refused(self, raw: pa.RecordBatch) -> None:
        """Quarantine what was refused of these records, whose rows have gone through."""
        self._collect_refused()
        for refused, (work, sides, _) in zip(self._refused, self._ends, strict=True):
            if refused.waiting:
                quarantine(refused.found_in(raw), work, sides, self.report)

    def _collect_refused(self) -> None:
        for refused, (work, sides, out) in zip(self._refused, self._ends, strict=True):
            if len(self._ends) == 1:
                self.report.refused_on(work.route)
            mine = [r for r in self.report.refused if len(self._ends) == 1 or r.by == work.route]
            self.report.refused = [r for r in self.report.refused if r not in mine] if mine else self.report.refused
            refused.add(mine)
            for outlet in (sides.deletes, *((out,) if out is not None else ())):
                refused.add(outlet.refused)
                outlet.refused = []


@contextmanager
def slot_run(works: Sequence[SlotWork], slot: int, rows_to: int | None = None) -> Iterator[SlotRun]:
    """A running slot, finished when the block ends, and aborted if anything fails.

    Rows are staged under the number `rows_to`; without it, the output of the steps is not staged here.
    """
    with reporting(slot) as report, ExitStack() as opened:
        ends = []
        for work in works:
            out = opened.enter_context(outlet_of(work, rows_to)) if rows_to is not None else None
            ends.append((work, opened.enter_context(sides_of(work, slot)), out))
        run = SlotRun(report, ends)
        yield run
        run.finish()
