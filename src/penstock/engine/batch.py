"""One batch: token; position of each target; stage by the lane; commit each target on its position; done.

The order of commits is the same for every sink: gaps, quarantine, targets. A sink that commits in its slot follows it
too: a slot with bad records does not commit before these are in the quarantine. Once committed, the quarantine of a
batch is binding: when the batch runs again, under the same definition or an edited one, its records stay out of the
targets, and newly bad ones are added to it.

Two runs may work on one batch, and one of them may have another definition. So before its first commit a run claims the
quarantine, and before it quarantines anything also the targets, by commits without rows: the other one's commits then
fail, and it begins anew and reads what this one has quarantined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from penstock.assembly.faults import translate_error
from penstock.assembly.inlet import Inlet
from penstock.contracts import Reader, RowsRefused, Sink, SlotSink, UpgradedSink
from penstock.engine.batches import Batches, Bounds
from penstock.engine.orphans import Orphans
from penstock.engine.outlet import Outlet, StagedFlow
from penstock.engine.refused import EVERYWHERE, Excluded, refused_records
from penstock.engine.slot import SlotReport, pin_slots, plan_slots
from penstock.errors import TerminalError, TransientError
from penstock.metrics import BatchMetrics
from penstock.metrics.memory import memory_in_use
from penstock.model import (
    BAD_SCHEMA,
    BatchToken,
    Guarantee,
    Manifest,
    OffsetRange,
    Position,
    Refusal,
    Rule,
)
from penstock.preflight.loss import BatchRanges, clip_to_log, data_loss
from penstock.quarantine import GAPS_SCHEMA, Gap, Quarantine, RefusingQuarantine, gap_rows
from penstock.registry.exchange import seconds_asked
from penstock.sinks.commit import commit, is_committed

END_PATIENCE = 120.0
"""How many seconds a log may end before the batch does until that is called a loss."""

_FIGURES = 64
"""Maximum number of slots to report."""
_PASSES = 5
"""How often a batch is staged for sinks that commit in their slot, before its records are called unstable."""
Figure = TypeVar("Figure", int, float)


@dataclass
class _Staged:
    """What the passes over a batch left."""

    reports: list[SlotReport]
    gaps: list[Gap]
    later: list[SlotReport] = field(default_factory=list)
    """Of further passes, for sinks that had to wait for the quarantine: their records are counted already."""

    def manifests(self, sink: Sink) -> list[Manifest]:
        return [m for r in (*self.reports, *self.later) for m in r.manifests if m.sink == sink.name]


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
    cores: Callable[[], int]
    """How many slots a batch may have, asked for each: executors come and go."""
    tell: Callable[[str], None] = lambda text: None
    marks: Sink | None = None
    """One of the sinks, the last: it is given the bad records, those too that a target refuses at its commit."""
    table_lock: Callable[[Sink], AbstractContextManager[None]] = lambda sink: nullcontext()
    """What a commit to a sink's table is made in, where a compaction may be at it."""
    garbage: Callable[[], float] = lambda: 0.0
    """What the JVM has spent on its garbage since it was asked last, in seconds."""
    enter: Callable[[int, str], None] = lambda batch_id, phase: None
    """Called with the phase that a batch enters."""
    orphans: Orphans | None = None
    """Clears up after attempts that do not count, where tasks may have several."""
    excluded: Callable[[BatchToken, Sequence[Sink]], Excluded] = lambda token, sinks: Excluded()
    """Records of a batch that stay out of some sinks; asked once the positions of these are read."""
    topic_ids: Callable[[BatchToken], Mapping[str, str]] = lambda token: {}
    """The ids of a batch's topics. Raises where a topic is not the one any more that the batch was planned for."""
    same_topics: Callable[[Mapping[str, str]], Callable[[], None]] | None = None
    """The same check for tasks: given the ids, what a slot calls before it commits."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """How many commits each target had when the run began."""
    recovers: bool = False
    """Whether a quarantine gets back what it lost: its number stays as it is until that is done."""
    claims: bool = True
    """Whether others may be at work on the same batches: targets are claimed."""
    late: bool = False
    """Whether the batches are ones that other targets have had already: a target that went back is caught up."""
    stopped: Callable[[float], bool] = lambda seconds: _waited(seconds)
    """Waits for so long; true where the run was asked to stop meanwhile."""
    after_restart: bool = True
    """Whether an earlier attempt may have committed something of the next batch."""
    _positions: dict[str, Position] = field(default_factory=dict)
    """Where each target stands, as far as this process knows."""
    _own: set[str] = field(default_factory=set)
    """The targets whose position this process wrote."""
    _run: str = field(default_factory=lambda: uuid4().hex[:12])
    _batch_id: int = -1
    _clock: dict[str, float] = field(default_factory=dict)

    def run(self, frame: Any, batch_id: int) -> BatchMetrics:
        """Carry one batch from its offsets to every sink's commit."""
        began, started_at, self._clock = time.perf_counter(), datetime.now(UTC), {}
        asked, self._batch_id = seconds_asked(), batch_id
        with self._timed("offsets"):
            batch = self.batches.ranges(batch_id)
            token = replace(self.token, batch_id=batch_id, ranges=batch.ranges, seen=batch.seen)
            token = replace(token, topic_ids=self.topic_ids(token))
            bounds = self.batches.recent_bounds(token.ends)
            lags = self.batches.lags(token, bounds)
            sinks = self._not_committed(token)
            self._quarantine_pending()
            if sinks:
                self._claim(token, self._kept_quarantines)
            held = self._quarantined_before(token) if sinks else Excluded()
        staged, added = _Staged([], []), 0
        if sinks:
            with self._kept_for_two_passes(frame, sinks):
                with self._timed("stage"):
                    staged = self._stage(frame, token, batch, sinks, bounds, held)
                with self._timed("commit"):
                    added = self._commit(frame, token, sinks, staged, held)
        else:
            with self._timed("stage"):
                staged.gaps = self._carry_state(frame, token, batch, bounds)
        reports = staged.reports
        for notice in sorted(set().union(*(r.notices for r in (*reports, *staged.later)))):
            self.tell(notice)
        self.after_restart = False
        tasks = {f"task_{phase}": seconds for phase, seconds in _added(r.seconds for r in reports).items()}
        return BatchMetrics(
            pipeline=token.pipeline,
            batch_id=batch_id,
            finished_at=datetime.now(UTC),
            seconds=time.perf_counter() - began,
            rows_in=sum(r.rows_in for r in reports),
            rows_out=sum(r.rows_out for r in reports) - (added if len(self.sinks) == 1 else 0),
            quarantined=sum(r.quarantined for r in reports) + added + _count(held),
            bytes_in=sum(r.bytes_in for r in reports),
            slots=sum(1 for r in reports if r.rows_in),
            lag=sum(lags.values()),
            skipped=not sinks,
            gaps=len(staged.gaps),
            codes=_added(report.codes for report in (*reports, *staged.later)),
            counts=_added(report.counts for report in reports),
            phases={**self._clock, **tasks, "registry": seconds_asked() - asked},
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
        """After the last batch: clear up."""
        if self.orphans is not None:
            self.orphans.finish()

    @property
    def _kept_quarantines(self) -> list[Sink]:
        """The quarantines that keep records; without one the first bad record stops the run."""
        return [one for one in self.quarantines if not isinstance(one, RefusingQuarantine)]

    def _not_committed(self, token: BatchToken) -> list[Sink]:
        """The sinks that still want this batch. Raises where a target contradicts it."""
        if not self.after_restart and token.rule is not Rule.RECORDS:
            return [*self.sinks]
        targets = [*self.sinks, *self._kept_quarantines]
        seen = {**self.numbers, **{name: position.number for name, position in self._positions.items()}}
        with ThreadPoolExecutor(max(1, len(targets))) as pool:
            found = dict(zip([t.name for t in targets], pool.map(lambda one: one.position(), targets), strict=True))
        self._positions = {name: position for name, position in found.items() if position is not None}
        self._own.clear()
        for quarantine in self._kept_quarantines if not self.late else ():
            is_committed(quarantine, found[quarantine.name], _forward(token), self._carried(quarantine))
        missing = [s for s in self.sinks if not is_committed(s, found[s.name], token, seen.get(s.name, 0))]
        # What a sink refuses is found by staging for it: where the marks lack the batch, all are staged for again.
        return [*self.sinks] if self.marks in missing else missing

    def _claim(self, token: BatchToken, targets: Sequence[Sink]) -> None:
        """Let only this run land anything in the targets, until another one claims them in turn."""
        for target in targets if self.claims else ():
            if target.name not in self._own and target.guarantee is Guarantee.EXACTLY_ONCE:
                held = self._positions.get(target.name)
                position = Position.claimed(held, self._carrying(token), f"claimed by run {self._run}")
                with self.table_lock(target):
                    if isinstance(target, SlotSink):
                        target.claim(self._carrying(token), position)
                    else:
                        target.land(position, (), held)
                self._positions[target.name] = position
                self._own.add(target.name)

    def _carried(self, quarantine: Sink) -> int:
        """How many commits the quarantine has had, by the positions of the sinks."""
        return max(
            (self._positions[s.name].last.quarantine.get(quarantine.name, 0) for s in self.sinks if self._has(s)),
            default=0,
        )

    def _has(self, target: Sink) -> bool:
        return target.name in self._positions

    def _quarantined_before(self, token: BatchToken) -> Excluded:
        """The records that an earlier attempt of this batch has quarantined, or of late batches any."""
        found = []
        for quarantine in self._kept_quarantines:
            if self._has(quarantine) and (self.late or self._reaches(quarantine, token)):
                assert isinstance(quarantine, Quarantine)
                found += quarantine.recorded(token.ranges)
        return Excluded.quarantined(
            (name, place, stage) for by, place, stage in found for name in (by or EVERYWHERE).split(",")
        )

    def _reaches(self, quarantine: Sink, token: BatchToken) -> bool:
        """Whether a quarantine may hold records of a batch: its position is beyond where the batch starts."""
        position = self._positions[quarantine.name]
        return position.last == token or any(
            position.next.get(r.topic_partition, 0) > r.start for r in token.ranges if self.after_restart
        )

    def _stage(
        self,
        frame: Any,
        token: BatchToken,
        batch: BatchRanges,
        sinks: Sequence[Sink],
        bounds: Bounds,
        held: Excluded,
    ) -> _Staged:
        flows = self.flows()
        excluded = held.together(self.excluded(token, sinks))
        first = sinks
        if self._kept_quarantines and not all(flow.knows_bad_in_slot for flow in flows):
            first = [sink for sink in sinks if not isinstance(sink, SlotSink)]
        for last_try in (False, True):
            readable, gaps = clip_to_log(batch, self._bounds(token, None if last_try else bounds))
            if gaps and self.gaps is None:
                raise data_loss(gaps, token.batch_id)
            try:
                reports = self._pass(frame, flows, self._carrying(token), first, readable, excluded, sinks)
                gaps = self._gaps_after(token, batch, gaps) if any(f.streaming for f in flows) else gaps
                # A topic that was created again while it was read has other records under the same offsets.
                self.topic_ids(token)
                reports = reports or [SlotReport(-1)]
                reports[0].deferred += [s.name for s in sinks if s not in first]
                return _Staged(reports, gaps)
            except Exception as error:
                # The log start may move while the batch is read: what is left is then found anew, once.
                told = translate_error(error)
                if told.code != "OFFSETS_GONE" or last_try:
                    raise told from error
        raise AssertionError("unreachable")

    def _pass(
        self,
        frame: Any,
        flows: Sequence[StagedFlow],
        token: BatchToken,
        sinks: Sequence[Sink],
        readable: Sequence[OffsetRange],
        excluded: Excluded,
        wanting: Sequence[Sink],
    ) -> list[SlotReport]:
        """Stage the batch once for some of the sinks that want it, and for the quarantine."""
        in_task = any(isinstance(sink, SlotSink) for sink in sinks) and bool(token.topic_ids)
        check = self.same_topics(token.topic_ids) if in_task and self.same_topics is not None else None
        # A record that is bad only now is missing in the sinks that want the batch; the others have its row.
        others = self.late or len(wanting) < len(self.sinks)
        lacking = ",".join(sink.name for sink in wanting) if others else ""
        made = [flow.of_batch(token, sinks, excluded, check, lacking) for flow in flows]
        # A late batch is for some sinks: flows that do not lead there have had its records.
        made = [flow for flow in made if not self.late or any(work.inlets for work in flow.works)]
        return [report for flow in made for report in self._stage_flow(frame, flow, readable)]

    def _carry_state(self, frame: Any, token: BatchToken, batch: BatchRanges, bounds: Bounds) -> list[Gap]:
        """Every sink has the batch. What is remembered from it is Spark's, and has to be brought forward again.

        For that its records are read once more, and one that is gone by now is missing in the state.
        """
        streaming = [flow.of_batch(token, (), Excluded()) for flow in self.flows() if flow.streaming]
        if not streaming:
            return []
        _, gaps = clip_to_log(batch, self._bounds(token, bounds))
        if gaps and self.gaps is None:
            raise data_loss(gaps, token.batch_id)
        for flow in streaming:
            flow.stage(frame, [replace(work, quarantines=()) for work in flow.works], ())
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
        its word, records that are there would count as lost. A request to stop ends the wait, and the batch with it.
        """
        deadline = time.monotonic() + END_PATIENCE
        while True:
            bounds = self.batches.bounds(token.ends) if bounds is None else bounds
            short = {at: end for at, end in token.ends.items() if at in bounds and bounds[at].end < end}
            if not short or time.monotonic() > deadline:
                return bounds
            self.topic_ids(token)
            if self.stopped(0.5):
                raise TransientError(
                    "LOG_ENDS_EARLY",
                    f"batch {token.batch_id}: the log ends before the batch does, and the run was asked to stop",
                    context={str(at): f"ends at {bounds[at].end}, the batch at {end}" for at, end in short.items()},
                    hint="the next run asks again",
                )
            bounds = None

    def _commit(self, frame: Any, token: BatchToken, sinks: Sequence[Sink], staged: _Staged, held: Excluded) -> int:
        """Commit gaps, quarantine, targets, in this order; how many records targets refused only now."""
        self._record(token, staged.gaps)
        self._commit_quarantines(token, staged.reports, sinks)
        self._finish_slots(frame, token, sinks, staged, held)
        added = 0
        committed: list[tuple[Sink, Sequence[Manifest]]] = []
        refused_late: list[Manifest] = []
        for sink in sinks:
            manifests = staged.manifests(sink)
            if sink is self.marks:
                manifests += refused_late
            with self.table_lock(sink), self._timed(f"commit:{sink.name}"):
                while True:
                    try:
                        self._commit_sink(token, sink, manifests)
                        break
                    except RowsRefused as refused:
                        manifests = list(refused.manifests)
                        refused_late += self._quarantine_refused(token, sinks, sink, refused.refusals)
                        added += len({refusal.record for refusal in refused.refusals})
            committed.append((sink, manifests))
            if self.after_restart:
                sink.discard(token, manifests)
        if self.orphans is not None:
            reports = (*staged.reports, *staged.later)
            committed += [(quarantine, staged.manifests(quarantine)) for quarantine in self.quarantines]
            self.orphans.after(token, committed, {report.stage for report in reports if report.stage is not None})
        return added

    def _finish_slots(
        self, frame: Any, token: BatchToken, sinks: Sequence[Sink], staged: _Staged, held: Excluded
    ) -> None:
        """Stage again for the sinks whose slots had to wait for the quarantine; its records stay out now."""
        reports = staged.reports
        for _ in range(_PASSES):
            deferred = {name for report in reports for name in report.deferred}
            waiting = [sink for sink in sinks if sink.name in deferred]
            if not waiting:
                return
            held = held.together(Excluded.quarantined(bad for report in reports for bad in report.bad))
            bounds = self._bounds(token)
            readable, _ = clip_to_log(BatchRanges(token.ranges, ()), bounds)
            excluded = held.together(self.excluded(token, waiting))
            reports = self._pass(frame, self.flows(), self._carrying(token), waiting, readable, excluded, sinks)
            self._commit_quarantines(token, reports, sinks)
            staged.later += reports
        raise TerminalError(
            "BATCH_UNSTABLE",
            f"batch {token.batch_id}: every pass over its records finds other bad ones",
            hint="a step gives another result for the same record each time: make it deterministic",
        )

    def _carrying(self, token: BatchToken) -> BatchToken:
        """The token with the number of commits that each quarantine has had."""
        numbers = {q.name: self._positions[q.name].number if self._has(q) else 0 for q in self._kept_quarantines}
        return replace(token, quarantine=numbers)

    def _commit_sink(self, token: BatchToken, sink: Sink, manifests: Sequence[Manifest]) -> None:
        token, known = self._carrying(token), self._positions.get(sink.name)
        if token.rule is Rule.RECORDS and is_committed(sink, known, token):
            return
        if token.rule is Rule.RECORDS:
            # Which records the target holds was asked at this position: on another one it has to be asked again.
            position: Position | None = Position.after(known, token)
            assert position is not None
            sink.land(position, manifests, known)
        else:
            position = commit(sink, token, manifests, known)
        if position is None:
            return
        carried = {name: position.last.quarantine.get(name, 0) for name in token.quarantine}
        if position.last == token and carried != dict(token.quarantine) and not isinstance(sink, SlotSink):
            raise TerminalError(
                "FENCED",
                f"sink {sink.name}: another run has committed batch {token.batch_id}, with another quarantine",
                context={"this run's quarantine": dict(token.quarantine), "the other's": carried},
                hint="two runs work on one batch, and one of them with another definition: stop one of them",
            )
        self._positions[sink.name] = position
        self._own.add(sink.name)

    def _commit_quarantines(self, token: BatchToken, reports: Sequence[SlotReport], sinks: Sequence[Sink]) -> None:
        """Commit the bad records of a pass over a batch that some sinks want.

        One attempt each: where the outcome is not known, or another run was first, the batch begins anew and keeps to
        what the quarantine then holds.
        """
        for quarantine in self.quarantines:
            manifests = [m for r in reports for m in r.manifests if m.sink == quarantine.name and m.rows]
            if not manifests:
                continue
            self._claim(token, sinks)
            known = self._positions.get(quarantine.name)
            carrying = self._carrying(token)
            adding = replace(carrying, rule=Rule.RECORDS) if self.late else _forward(carrying)
            position = Position.after(known, adding)
            if self.recovers:
                position = replace(position, number=known.number if known is not None else 0)
            with self.table_lock(quarantine), self._timed(f"commit:{quarantine.name}"):
                quarantine.land(position, manifests, known)
            self._positions[quarantine.name] = position
            if self.after_restart:
                quarantine.discard(token, manifests)

    def _record(self, token: BatchToken, gaps: Sequence[Gap]) -> None:
        if gaps and self.gaps is not None:
            forward = replace(token, rule=Rule.RECORDS) if self.late else _forward(token)
            if not is_committed(self.gaps, self.gaps.position(), forward):
                self.gaps.prepare(GAPS_SCHEMA)
                out = Outlet([Inlet(self.gaps)], token, 0, GAPS_SCHEMA)
                out.write(gap_rows(token, gaps))
                commit(self.gaps, forward, out.finish())

    def _quarantine_refused(
        self, token: BatchToken, sinks: Sequence[Sink], sink: Sink, refusals: Sequence[Refusal]
    ) -> list[Manifest]:
        """Bring rows that a target refuses at its commit into the quarantine, before the others are committed.

        In a redrive they are staged for its marks, and given back.
        """
        targets = [self.marks] if self.marks is not None else self._kept_quarantines
        manifests = self._stage_refused(token, targets, [replace(refusal, by=sink.name) for refusal in refusals])
        if self.marks is not None:
            return manifests
        self._commit_quarantines(token, [SlotReport(-1, manifests=manifests)], sinks)
        return []

    def _quarantine_pending(self) -> None:
        """Quarantine what version 0.7 refused in its last batch, where it was killed before it did."""
        for sink in self.sinks if self.after_restart and self._kept_quarantines else ():
            position = self._positions.get(sink.name)
            if position is None or position.number or not isinstance(sink, UpgradedSink):
                continue
            refusals = {refusal.record: refusal for refusal in sink.pending_rejects(position.last)}
            for quarantine in self._kept_quarantines if refusals else ():
                assert isinstance(quarantine, Quarantine)
                there = {place for _, place, _ in quarantine.recorded(position.last.ranges)}
                missing = [
                    replace(each, by=sink.name)
                    for record, each in refusals.items()
                    if (record.topic, record.partition, record.start) not in there
                ]
                if missing:
                    manifests = self._stage_refused(position.last, [quarantine], missing)
                    held = self._positions.get(quarantine.name)
                    adding = Position.after(held, replace(position.last, rule=Rule.RECORDS))
                    quarantine.land(adding, manifests, held)
                    self._positions[quarantine.name] = adding

    def _stage_refused(self, token: BatchToken, targets: Sequence[Sink], refusals: Sequence[Refusal]) -> list[Manifest]:
        """Stage the records of refused rows on the driver, read again from the source."""
        out = Outlet([Inlet(target) for target in targets], token, -1, BAD_SCHEMA)
        for bad in refused_records(self.reader, refusals):
            out.write(bad)
        return out.finish()

    @contextmanager
    def _kept_for_two_passes(self, frame: Any, sinks: Sequence[Sink]) -> Iterator[None]:
        """A frame with state is computed once: where sinks have to wait for the quarantine, its rows are kept."""
        twice = bool(self._kept_quarantines) and any(isinstance(sink, SlotSink) for sink in sinks)
        kept = twice and any(flow.streaming for flow in self.flows())
        if kept:
            frame.persist()
        try:
            yield
        finally:
            if kept:
                frame.unpersist()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        self.enter(self._batch_id, phase)
        began = time.perf_counter()
        yield
        self._clock[phase] = self._clock.get(phase, 0.0) + time.perf_counter() - began


def _waited(seconds: float) -> bool:
    """Where nobody asks to stop."""
    time.sleep(seconds)
    return False


def _forward(token: BatchToken) -> BatchToken:
    """The token for a target that has no commit for most batches."""
    return replace(token, rule=Rule.FORWARD)


def _count(held: Excluded) -> int:
    """How many records there are."""
    return len({(at, o) for each in held.offsets.values() for at, offsets in each.items() for o in offsets})


def _most(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    return tuple(sorted((one for one in figures if one), reverse=True)[:_FIGURES])


def _added(figures: Iterable[Mapping[str, Figure]]) -> dict[str, Figure]:
    total: dict[str, Figure] = {}
    for some in figures:
        for name, figure in some.items():
            total[name] = total.get(name, 0) + figure
    return total
