"""One batch: the token; already committed?; stage by the lane; commit each sink; done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from penstock.contracts import Reader, RejectingSink, Sink, SlotSink
from penstock.metrics import BatchMetrics
from penstock.metrics.memory import memory_in_use
from penstock.model import BAD_SCHEMA, BatchToken, Manifest, OffsetRange
from penstock.quarantine import GAPS_SCHEMA, Gap, gap_rows
from penstock.registry.exchange import seconds_asked
from penstock.runtime.batches import Batches, Bounds
from penstock.runtime.faults import in_our_terms
from penstock.runtime.inlet import Inlet
from penstock.runtime.loss import BatchRanges, clip_to_log, data_loss
from penstock.runtime.outlet import Outlet, SlotWork
from penstock.runtime.refused import refused_records
from penstock.runtime.slot_report import SlotReport
from penstock.runtime.slots import pin_slots, plan_slots
from penstock.runtime.strays import Strays

END_PATIENCE = 120.0
"""How many seconds a log may end before the batch does until that is called a loss."""

_FIGURES = 64
"""Of how many slots the figures are told."""
Figure = TypeVar("Figure", int, float)
StageLane = Callable[[Any, Sequence[SlotWork], Sequence[tuple[OffsetRange, ...]]], list[SlotReport]]
"""Takes the batch's frame, and what to read: how a lane stages a batch."""


@dataclass(frozen=True)
class StagedFlow:
    """One pass over some records: the lane's way to stage, and what the tasks need to know."""

    stage: StageLane
    works: tuple[SlotWork, ...]
    """Of one flow, or of several that share a pass over the same records."""
    topics: frozenset[str] | None = None
    """The topics that it reads; None for all."""
    streaming: bool = False
    """Whether Spark's own stream reads: the flow then has a frame for every batch, one without new records too."""

    def of_batch(self, token: BatchToken, sinks: Sequence[Sink]) -> StagedFlow:
        """The same for a batch, as far as these sinks want it."""
        return replace(self, works=tuple(replace(work.wanted_by(sinks), token=token) for work in self.works))

    def of(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The ranges that it reads."""
        return [r for r in ranges if self.topics is None or r.topic in self.topics]


@dataclass
class BatchRunner:
    """Runs the batches of one query, one after another, on the driver."""

    token: BatchToken
    flows: Callable[[], Sequence[StagedFlow]]
    """The flows as they are now; asked before each batch that is staged."""
    sinks: Sequence[Sink]
    quarantines: Sequence[Sink]
    batches: Batches
    reader: Reader
    gaps: Sink | None
    rejects: Mapping[str, Sequence[Sink]]
    """For a sink whose target may refuse rows at the commit: where these go."""
    cores: Callable[[], int]
    """How many slots a batch may have, asked for each: executors come and go."""
    tell: Callable[[str], None] = lambda text: None
    marks: Sink | None = None
    """One of the sinks, the last: it is given the bad records, those too that a target refuses at its commit."""
    turn: Callable[[Sink], AbstractContextManager[None]] = lambda sink: nullcontext()
    """What a commit to a sink's table is made in, where a compaction may be at it."""
    garbage: Callable[[], float] = lambda: 0.0
    """What the JVM has spent on its garbage since it was asked last, in seconds."""
    enter: Callable[[int, str], None] = lambda batch_id, phase: None
    """Told which phase a batch enters."""
    strays: Strays | None = None
    """Clears up behind attempts that do not count, where tasks may have several."""
    after_restart: bool = True
    _batch_id: int = -1
    _clock: dict[str, float] = field(default_factory=dict)

    def run(self, frame: Any, batch_id: int) -> BatchMetrics:
        """Carry one batch from its offsets to every sink's commit."""
        began, started_at, self._clock = time.perf_counter(), datetime.now(UTC), {}
        asked, self._batch_id = seconds_asked(), batch_id
        with self._timed("offsets"):
            batch = self.batches.ranges(batch_id)
            token = self._token(batch_id, batch)
            bounds = self.batches.recent_bounds(token.ends)
            lags = self.batches.behind(token, bounds)
        sinks = self._not_committed(token)
        reports: list[SlotReport] = []
        gaps: list[Gap] = []
        if sinks:
            with self._timed("stage"):
                reports, gaps = self._stage(frame, token, batch, sinks, bounds)
            with self._timed("commit"):
                self._commit(token, sinks, reports, gaps)
        else:
            with self._timed("stage"):
                gaps = self._carry_state(frame, token, batch, bounds)
        for notice in sorted(set().union(*(r.notices for r in reports))):
            self.tell(notice)
        rejected = self._quarantine_rejected(token)
        self.after_restart = False
        return BatchMetrics(
            pipeline=token.pipeline,
            batch_id=batch_id,
            finished_at=datetime.now(UTC),
            seconds=time.perf_counter() - began,
            rows_in=sum(r.rows_in for r in reports),
            rows_out=sum(r.rows_out for r in reports),
            quarantined=sum(r.quarantined for r in reports) + rejected,
            bytes_in=sum(r.bytes_in for r in reports),
            slots=sum(1 for r in reports if r.rows_in),
            lag=sum(lags.values()),
            skipped=not sinks,
            gaps=len(gaps),
            codes=_added(report.codes for report in reports),
            counts=_added(report.counts for report in reports),
            phases={**self._clock, **_task_seconds(reports), "registry": seconds_asked() - asked},
            started_at=started_at,
            offsets=sum(len(one) for one in token.ranges),
            gc_seconds=self.garbage(),
            pressure=max([memory_in_use(), *(r.pressure for r in reports)]),
            slot_rows=_most(r.rows_in for r in reports),
            slot_rows_out=_most(r.rows_out for r in reports),
            slot_seconds=_most(r.took for r in reports),
            lags=lags,
            ends=token.ends,
        )

    def end(self) -> None:
        """Behind the last batch: clear up."""
        if self.strays is not None:
            self.strays.finish()

    def _token(self, batch_id: int, batch: BatchRanges) -> BatchToken:
        return replace(self.token, batch_id=batch_id, ranges=batch.ranges)

    def _not_committed(self, token: BatchToken) -> list[Sink]:
        """The sinks that still want this batch. Only a run's first batch can have been committed before."""
        quarantines, targets = self.quarantines, self.sinks
        if not self.after_restart:
            return [*quarantines, *targets]
        missing = [sink for sink in (*quarantines, *targets) if not sink.holds(token)]
        if self.marks in missing:
            # What a sink refuses is found by staging for it: one that has the batch is staged for again, and says so.
            return [*targets]
        # A quarantine keeps no token of a batch without bad records. It is committed before the others, so a
        # target that has the batch vouches for it; one that commits in its tasks does not: they end earlier.
        vouched = any(sink not in missing and not isinstance(sink, SlotSink) for sink in targets)
        return [] if vouched and all(sink in quarantines for sink in missing) else missing

    def _stage(
        self, frame: Any, token: BatchToken, batch: BatchRanges, sinks: Sequence[Sink], bounds: Bounds
    ) -> tuple[list[SlotReport], list[Gap]]:
        flows = [flow.of_batch(token, sinks) for flow in self.flows()]
        for last_try in (False, True):
            readable, gaps = clip_to_log(batch, self._bounds(token, None if last_try else bounds))
            if gaps and self.gaps is None:
                raise data_loss(gaps, token.batch_id)
            try:
                reports = [report for flow in flows for report in self._stage_flow(frame, flow, readable)]
                return reports, self._gaps_after(token, batch, gaps) if any(f.streaming for f in flows) else gaps
            except Exception as error:
                # The log start may move while the batch is read: what is left is then found anew, once.
                told = in_our_terms(error)
                if told.code != "OFFSETS_GONE" or last_try:
                    raise told from error
        raise AssertionError("unreachable")

    def _carry_state(self, frame: Any, token: BatchToken, batch: BatchRanges, bounds: Bounds) -> list[Gap]:
        """Every sink has the batch. What is remembered from it is Spark's, and has to be brought forward again.

        For that its records are read once more, and one that is gone by now is missing in the state.
        """
        streaming = [flow.of_batch(token, ()) for flow in self.flows() if flow.streaming]
        if not streaming:
            return []
        _, gaps = clip_to_log(batch, self._bounds(token, bounds))
        if gaps and self.gaps is None:
            raise data_loss(gaps, token.batch_id)
        for flow in streaming:
            flow.stage(frame, flow.works, ())
        gaps = self._gaps_after(token, batch, gaps)
        self._record(token, gaps)
        return gaps

    def _stage_flow(self, frame: Any, flow: StagedFlow, readable: Sequence[OffsetRange]) -> list[SlotReport]:
        if flow.streaming:
            return flow.stage(frame, flow.works, ())
        pinned, ranges = flow.works[0].pinned, flow.of(readable)
        slots = plan_slots(ranges, self.cores()) if pinned is None else pin_slots(ranges, pinned)
        return flow.stage(frame, flow.works, slots) if slots else []

    def _gaps_after(self, token: BatchToken, batch: BatchRanges, before: list[Gap]) -> list[Gap]:
        """The gaps of a batch that Spark read: it says nothing of records that went while it did."""
        _, gaps = clip_to_log(batch, self._bounds(token))
        if len(gaps) > len(before) and self.gaps is None:
            raise data_loss(gaps, token.batch_id)
        return gaps

    def _bounds(self, token: BatchToken, bounds: Bounds | None = None) -> Bounds:
        """Where the logs begin and end, asked before or now. An end before the batch's own is not believed at once.

        When a broker is lost, the next leader of a partition learns a little later how far readers may go. Taken at
        its word, records that are there would count as lost.
        """
        deadline = time.monotonic() + END_PATIENCE
        while True:
            bounds = self.batches.bounds(token.ends) if bounds is None else bounds
            behind = any(at in bounds and bounds[at].end < end for at, end in token.ends.items())
            if not behind or time.monotonic() > deadline:
                return bounds
            time.sleep(0.5)
            bounds = None

    def _commit(
        self, token: BatchToken, sinks: Sequence[Sink], reports: Sequence[SlotReport], gaps: Sequence[Gap]
    ) -> None:
        self._record(token, gaps)
        committed: list[tuple[Sink, Sequence[Manifest]]] = []
        for sink in sinks:
            manifests = [m for r in reports for m in r.manifests if m.sink == sink.name]
            if sink in self.quarantines and not any(m.rows for m in manifests):
                continue
            if sink is self.marks:
                manifests += self._rejected(token, sink)
            with self.turn(sink), self._timed(f"commit:{sink.name}"):
                sink.commit(token, manifests)
            committed.append((sink, manifests))
            if self.after_restart:
                sink.discard(token, manifests)
        for quarantine in self.quarantines:
            if quarantine not in sinks:
                # It has the batch already; what was staged for it beside the others' rows is not needed.
                quarantine.discard(token, [])
        if self.strays is not None:
            self.strays.after(token, committed, {report.stage for report in reports if report.stage is not None})

    def _record(self, token: BatchToken, gaps: Sequence[Gap]) -> None:
        if gaps and self.gaps is not None and not self.gaps.holds(token):
            self.gaps.prepare(GAPS_SCHEMA)
            out = Outlet([Inlet(self.gaps)], token, 0, GAPS_SCHEMA)
            out.write(gap_rows(token, gaps))
            self.gaps.commit(token, out.finish())

    def _rejected(self, token: BatchToken, marks: Sink) -> list[Manifest]:
        """The records that targets refused at their commits, staged for the marks."""
        out = Outlet([Inlet(marks)], token, -1, BAD_SCHEMA)
        for sink in self.sinks:
            if isinstance(sink, RejectingSink):
                refused = [replace(refusal, by=sink.name) for refusal in sink.rejected(token)]
                for bad in refused_records(self.reader, refused):
                    out.write(bad)
        return out.finish()

    def _quarantine_rejected(self, token: BatchToken) -> int:
        """Bring the records that a target refused at its commit into the quarantine, in a commit of their own."""
        count = 0
        for sink in (sink for sink in self.sinks if sink.name in self.rejects):
            assert isinstance(sink, RejectingSink)
            refused = [replace(refusal, by=sink.name) for refusal in sink.rejected(token)]
            count += len({refusal.record for refusal in refused})
            for quarantine in self.rejects[sink.name] if refused else ():
                if not quarantine.holds(token):
                    out = Outlet([Inlet(quarantine)], token, 0, BAD_SCHEMA)
                    for bad in refused_records(self.reader, refused):
                        out.write(bad)
                    quarantine.commit(token, out.finish())
        return count

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        self.enter(self._batch_id, phase)
        began = time.perf_counter()
        yield
        self._clock[phase] = self._clock.get(phase, 0.0) + time.perf_counter() - began


def _task_seconds(reports: Sequence[SlotReport]) -> dict[str, float]:
    total: dict[str, float] = {}
    for report in reports:
        for phase, seconds in report.seconds.items():
            total[f"task_{phase}"] = total.get(f"task_{phase}", 0.0) + seconds
    return total


def _most(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    return tuple(sorted((one for one in figures if one), reverse=True)[:_FIGURES])


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)
