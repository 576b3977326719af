"""One batch: token; position of each target; stage by the lane; commit each target on its position; done.

The order of commits is the same for every sink: gaps, quarantine, targets. A sink that commits in its slot follows it
too: a slot with bad records does not commit before these are in the quarantine. Once committed, the quarantine of a
batch is binding: when the batch runs again, under the same definition or an edited one, its records stay out of the
targets, and newly bad ones are added to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock.assembly.faults import translate_error
from penstock.assembly.inlet import Inlet
from penstock.contracts import RowsRefused, Sink, SlotSink
from penstock.engine.batches import Batches, BatchLog, grown
from penstock.engine.committer import Committer
from penstock.engine.flows import CurrentFlows
from penstock.engine.measure import BatchTimer, added
from penstock.engine.orphans import Orphans
from penstock.engine.outlet import Outlet
from penstock.engine.refused import Excluded, refused_records
from penstock.engine.work import SlotReport, StagedFlow, pin_slots, plan_slots
from penstock.errors import TerminalError
from penstock.metrics import BatchMetrics
from penstock.model import BAD_SCHEMA, BatchToken, Manifest, OffsetRange, Refusal, Rule
from penstock.quarantine import Gap, Quarantine

_PASSES = 5
"""How many times a batch is staged for sinks that commit in their slot, before it fails as unstable."""


def _waited(seconds: float) -> bool:
    """Wait; this run cannot be stopped."""
    time.sleep(seconds)
    return False


@dataclass
class BatchRunner:
    """Runs the batches of one query, one after another, on the driver."""

    token: BatchToken
    """The common part of all batch tokens."""
    flows: CurrentFlows
    batches: Batches
    committer: Committer
    cores: Callable[[], int]
    """The maximum number of slots, evaluated for each batch: executors come and go."""
    enter: Callable[[int, str], None] = lambda batch_id, phase: None
    """Called when a batch enters a phase."""
    orphans: Orphans | None = None
    """Cleans up after discarded attempts, if tasks may have several."""
    excluded: Callable[[BatchToken, Sequence[Sink]], Excluded] = lambda token, sinks: Excluded()
    """Records of a batch to exclude from some sinks; called once the positions of these sinks are read."""
    topic_ids: Callable[[BatchToken], Mapping[str, str]] = lambda token: {}
    """The ids of a batch's topics. Raises if a topic was re-created since the batch was planned."""
    same_topics: Callable[[Mapping[str, str]], Callable[[], None]] | None = None
    """The same check for tasks: given the ids, returns what a slot calls before it commits."""
    stopped: Callable[[float], bool] = _waited
    """Waits for this many seconds; returns true if the run was asked to stop."""

    def run(self, frame: Any, batch_id: int) -> BatchMetrics:
        """Process one batch from its offsets to every sink's commit. After an error it can be repeated."""
        try:
            metrics = Batch(self, frame, batch_id).run()
        except BaseException:
            self.committer.after_restart = True
            raise
        self.committer.after_restart = False
        return metrics

    def end(self) -> None:
        """After the last batch: clear up."""
        if self.orphans is not None:
            self.orphans.finish()


class Batch:
    """One batch in progress: its token, what the topics still have of it, what is staged for it."""

    def __init__(self, runner: BatchRunner, frame: Any, batch_id: int) -> None:
        self.runner, self.committer, self.frame = runner, runner.committer, frame
        self.timer = BatchTimer(lambda phase: runner.enter(batch_id, phase))
        self.token = replace(runner.token, batch_id=batch_id)
        self.sinks: Sequence[Sink] = ()
        """The sinks that lack the batch."""
        self.quarantined = Excluded()
        """The records of the batch that the quarantine holds."""
        self.reports: list[SlotReport] = []
        self.later: list[SlotReport] = []
        """Reports of later passes, for sinks that had to wait for the quarantine: their records are already counted."""
        self.gaps: list[Gap] = []
        self.landed: list[tuple[Sink, Sequence[Manifest]]] = []
        """What each sink committed."""
        self.refused = 0
        """The number of records that the sinks refused at commit."""

    def run(self) -> BatchMetrics:
        """The whole of it."""
        with self.timer.phase("offsets"):
            self._make_token()
            self._find_sinks()
        if self.sinks:
            with self._frame_kept():
                with self.timer.phase("stage"):
                    self._stage()
                with self.timer.phase("commit"):
                    self._commit()
        else:
            with self.timer.phase("stage"):
                self._carry_state()
        return self._metrics()

    def _make_token(self) -> None:
        runner = self.runner
        covered = runner.batches.ranges(self.token.batch_id)
        token = replace(self.token, ranges=covered.ranges, seen=covered.seen)
        self.token = replace(token, topic_ids=runner.topic_ids(token))
        records_gaps = self.committer.targets.gaps is not None
        self.log = BatchLog(runner.batches, self.token, covered, runner.topic_ids, runner.stopped, records_gaps)

    def _find_sinks(self) -> None:
        """The sinks that lack the batch, and what the quarantine holds of it."""
        committer = self.committer
        self.sinks = committer.missing_in(self.token)
        self._quarantine_pending()
        if self.sinks:
            committer.claim(self.token, committer.quarantines)
            self.quarantined = committer.quarantined_before(self.token)

    def _stage(self) -> None:
        """Stage by the lanes, for the sinks and for the quarantine."""
        runner, flows = self.runner, self.runner.flows.now()
        excluded = self.quarantined.together(runner.excluded(self.token, self.sinks))
        first = self.sinks
        if self.committer.quarantines and not all(flow.knows_bad_in_slot for flow in flows):
            first = [sink for sink in self.sinks if not isinstance(sink, SlotSink)]
        for last_try in (False, True):
            readable, self.gaps = self.log.readable(recent=not last_try)
            try:
                reports = self._pass(flows, first, readable, excluded)
                if any(flow.streaming for flow in flows):
                    # Spark read them: it does not report records that expired meanwhile.
                    _, self.gaps = self.log.readable()
                # A topic that was created again while it was read has other records under the same offsets.
                runner.topic_ids(self.token)
                self.reports = reports or [SlotReport(-1)]
                self.reports[0].deferred += [sink.name for sink in self.sinks if sink not in first]
                return
            except Exception as error:
                # The log start may move while the batch is read: the remaining ranges are then determined again, once.
                translated = translate_error(error)
                if translated.code != "OFFSETS_GONE" or last_try:
                    raise translated from error

    def _pass(
        self, flows: Sequence[StagedFlow], sinks: Sequence[Sink], readable: Sequence[OffsetRange], excluded: Excluded
    ) -> list[SlotReport]:
        """Stage the batch once for some of the sinks that lack it, and for the quarantine."""
        runner, token = self.runner, self.committer.carrying(self.token)
        in_task = any(isinstance(sink, SlotSink) for sink in sinks) and bool(token.topic_ids)
        check = runner.same_topics(token.topic_ids) if in_task and runner.same_topics is not None else None
        # A record that is bad only now is missing in the sinks that lack the batch; the others have its row.
        catches_up = self.committer.purpose.catches_up
        others = catches_up or len(self.sinks) < len(self.committer.sinks)
        lacking = ",".join(sink.name for sink in self.sinks) if others else ""
        made = [flow.of_batch(token, sinks, excluded, check, lacking) for flow in flows]
        # A catch-up is for some sinks: flows that do not lead there have had its records.
        made = [flow for flow in made if not catches_up or any(work.inlets for work in flow.works)]
        return [report for flow in made for report in self._stage_flow(flow, readable)]

    def _stage_flow(self, flow: StagedFlow, readable: Sequence[OffsetRange]) -> list[SlotReport]:
        if flow.streaming:
            return flow.stage(self.frame, flow.works, ())
        pinned, ranges = flow.works[0].pinned, flow.of(readable)
        slots = plan_slots(ranges, self.runner.cores()) if pinned is None else pin_slots(ranges, pinned)
        return flow.stage(self.frame, flow.works, slots) if slots else []

    def _carry_state(self) -> None:
        """Every sink has the batch, but its state is in Spark and must be rebuilt. For that its records are read again;
        expired ones are missing in the state.
        """
        streaming = [flow.of_batch(self.token, ()) for flow in self.runner.flows.now() if flow.streaming]
        if not streaming:
            return
        self.log.readable(recent=True)
        for flow in streaming:
            flow.stage(self.frame, [replace(work, quarantines=()) for work in flow.works], ())
        _, self.gaps = self.log.readable()
        self.committer.record(self.token, self.gaps)

    def _commit(self) -> None:
        """Commit gaps, quarantine, targets, in this order."""
        committer = self.committer
        committer.record(self.token, self.gaps)
        self._quarantine(_manifests(self.reports), claim=self.sinks)
        self._finish_slots()
        for sink in self.sinks:
            self._commit_sink(sink)
        if self.runner.orphans is not None:
            quarantined = [(quarantine, self._staged_for(quarantine)) for quarantine in committer.targets.quarantines]
            stages = {report.stage for report in (*self.reports, *self.later) if report.stage is not None}
            self.runner.orphans.after(self.token, [*self.landed, *quarantined], stages)

    def _finish_slots(self) -> None:
        """Stage again for the sinks whose slots had to wait for the quarantine; its records stay out now."""
        runner, reports, quarantined = self.runner, self.reports, self.quarantined
        for _ in range(_PASSES):
            deferred = {name for report in reports for name in report.deferred}
            waiting = [sink for sink in self.sinks if sink.name in deferred]
            if not waiting:
                return
            quarantined = quarantined.together(Excluded.quarantined(bad for report in reports for bad in report.bad))
            readable, gaps = self.log.readable()
            if not all(flow.streaming for flow in runner.flows.now()):
                # The sinks that waited miss what expired since the first pass. A stream's rows were kept.
                self.committer.record_more(self.token, grown(self.gaps, gaps))
            excluded = quarantined.together(runner.excluded(self.token, waiting))
            reports = self._pass(runner.flows.now(), waiting, readable, excluded)
            self._quarantine(_manifests(reports), claim=self.sinks)
            self.later += reports
        raise TerminalError(
            "BATCH_UNSTABLE",
            f"batch {self.token.batch_id}: every pass over its records finds different bad records",
            hint="a step returns different results for the same record: make it deterministic",
        )

    def _commit_sink(self, sink: Sink) -> None:
        """Commit what was staged for a sink; the rows that it refuses only now go to the quarantine first."""
        manifests = self._staged_for(sink)
        with self._committing(sink):
            while True:
                try:
                    self.committer.commit(self.token, sink, manifests)
                    break
                except RowsRefused as refused:
                    manifests = list(refused.manifests)
                    self._quarantine_refused([replace(refusal, by=sink.name) for refusal in refused.refusals])
        self.landed.append((sink, manifests))
        self._discard_others(sink, self.token, manifests)

    def _quarantine_refused(self, refusals: Sequence[Refusal]) -> None:
        """Write refused rows to the quarantine before other sinks commit; in a redrive, to its marks."""
        self.refused += len({refusal.record for refusal in refusals})
        marks = self.committer.marks
        targets = [marks] if marks is not None else self.committer.quarantines
        manifests = self._stage_refused(self.token, targets, refusals)
        # The marks are the last of the sinks, and are committed in their turn.
        self.later.append(SlotReport(-1, manifests=manifests))
        self._quarantine(manifests, claim=self.sinks)

    def _quarantine_pending(self) -> None:
        """Quarantine what version 0.7 refused in its last batch, if it was killed before it did."""
        committer = self.committer
        for sink in committer.sinks if committer.after_restart and committer.quarantines else ():
            position = committer.positions.get(sink.name)
            if position is None or position.number:
                continue
            refusals = {refusal.record: refusal for refusal in sink.pending_rejects(position.last)}
            for quarantine in committer.quarantines if refusals else ():
                assert isinstance(quarantine, Quarantine)
                there = {place for _, place, _ in quarantine.recorded(position.last.ranges)}
                missing = [
                    replace(each, by=sink.name)
                    for record, each in refusals.items()
                    if (record.topic, record.partition, record.start) not in there
                ]
                if missing:
                    manifests = self._stage_refused(position.last, [quarantine], missing)
                    self._quarantine(manifests, token=replace(position.last, rule=Rule.RECORDS))

    def _stage_refused(self, token: BatchToken, targets: Sequence[Sink], refusals: Sequence[Refusal]) -> list[Manifest]:
        """Stage the records of refused rows on the driver, read again from the source."""
        out = Outlet([Inlet(target) for target in targets], token, -1, BAD_SCHEMA)
        for bad in refused_records(self.runner.flows.pipeline.reader, refusals):
            out.write(bad)
        return out.finish()

    def _quarantine(
        self, manifests: Sequence[Manifest], *, claim: Sequence[Sink] = (), token: BatchToken | None = None
    ) -> None:
        """Commit the bad records among these, once the targets are claimed: the one way into the quarantine."""
        token = token or self.token
        for quarantine in self.committer.targets.quarantines:
            bad = [one for one in manifests if one.sink == quarantine.name and one.rows]
            if bad:
                self.committer.claim(token, claim)
                with self._committing(quarantine):
                    self.committer.commit_quarantine(token, quarantine, bad)
                self._discard_others(quarantine, token, bad)

    @contextmanager
    def _committing(self, target: Sink) -> Iterator[None]:
        with self.committer.table_lock(target), self.timer.phase(f"commit:{target.name}"):
            yield

    def _discard_others(self, target: Sink, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what an earlier attempt of the batch may have staged."""
        if self.committer.after_restart:
            target.discard(token, manifests)

    def _staged_for(self, target: Sink) -> list[Manifest]:
        return [one for one in _manifests((*self.reports, *self.later)) if one.sink == target.name]

    @contextmanager
    def _frame_kept(self) -> Iterator[None]:
        """A frame with state is computed once: where sinks have to wait for the quarantine, its rows are kept."""
        twice = bool(self.committer.quarantines) and any(isinstance(sink, SlotSink) for sink in self.sinks)
        kept = twice and any(flow.streaming for flow in self.runner.flows.now())
        if kept:
            self.frame.persist()
        try:
            yield
        finally:
            if kept:
                self.frame.unpersist()

    def _metrics(self) -> BatchMetrics:
        for notice in sorted(set().union(*(report.notices for report in (*self.reports, *self.later)))):
            self.runner.flows.tell(notice)
        metrics = self.timer.metrics(self.token, self.log.lags, self.reports)
        return replace(
            metrics,
            rows_out=metrics.rows_out - (self.refused if len(self.committer.sinks) == 1 else 0),
            quarantined=metrics.quarantined + self.refused + self.quarantined.count,
            codes=added(report.codes for report in (*self.reports, *self.later)),
            skipped=not self.sinks,
            gaps=len(self.gaps),
        )


def _manifests(reports: Sequence[SlotReport]) -> list[Manifest]:
    return [manifest for report in reports for manifest in report.manifests]
