"""What a task writes to: the stages of every sink, for rows and for bad records.

They are opened together, and finished or aborted together.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from penstock.assembly.inlet import Inlet
from penstock.contracts import SlotSink, Stage
from penstock.engine.refused import EVERYWHERE, Excluded
from penstock.engine.work import SlotReport, SlotWork
from penstock.errors import PenstockError
from penstock.model import BAD_SCHEMA, DELETES, BatchToken, Manifest, OffsetRange, Refusal, SlotAttempt


def plain(schema: pa.Schema) -> pa.Schema:
    """The columns without their metadata, which files and tables do not keep."""
    return pa.schema([field.remove_metadata() for field in schema])


class Outlet:
    """The stages of one attempt: opened together, finished together, or aborted together."""

    def __init__(
        self,
        inlets: Sequence[Inlet],
        token: BatchToken,
        slot: int,
        schema: pa.Schema,
        excluded: Excluded = Excluded(),
        before_commit: Callable[[], None] | None = None,
        route: str = EVERYWHERE,
    ) -> None:
        writer = SlotAttempt(slot, uuid.uuid4().hex[:12])
        self._stages: list[tuple[Inlet, Stage]] = []
        self._excluded = excluded
        self._before_commit = before_commit
        self._route = route
        self.refused: list[Refusal] = []
        self.deferred: list[str] = []
        """Sinks that commit in their slot but have not: the slot's bad records must be quarantined first."""
        self.seconds: dict[str, float] = {}
        """The result of each sink."""
        try:
            for inlet in inlets:
                self._stages.append((inlet, inlet.sink.stage(token, writer, plain(inlet.schema(schema)))))
        except BaseException:
            self.abort()
            raise

    def write(self, rows: pa.RecordBatch) -> int:
        """Hand some rows to every stage; how many of them no sink took."""
        refusing: dict[OffsetRange, int] = {}
        for inlet, stage in self._stages:
            mine = self._excluded.rows(inlet.rows(rows), self._route, inlet.sink.name)
            if mine.num_rows:
                with self._timed(inlet):
                    refused = stage.write(mine)
                self.refused += [replace(refusal, by=inlet.sink.name) for refusal in refused]
                for refusal in refused:
                    refusing[refusal.record] = refusing.get(refusal.record, 0) + 1
        return sum(1 for count in refusing.values() if count >= len(self._stages))

    def finish(self, *, defer: bool = False) -> list[Manifest]:
        """Finish every stage, last those that commit when they finish; with `defer` these are aborted instead."""
        manifests = []
        for inlet, stage in sorted(self._stages, key=lambda one: isinstance(one[0].sink, SlotSink)):
            commits = isinstance(inlet.sink, SlotSink)
            if commits and defer:
                stage.abort()
                self.deferred.append(inlet.sink.name)
                continue
            if commits and self._before_commit is not None:
                self._before_commit()
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


class SideOutputs:
    """What leaves a slot apart from its rows: bad records, and deletes by tombstones."""

    def __init__(self, work: SlotWork, slot: int) -> None:
        self.bad = Outlet([Inlet(sink) for sink in work.quarantines], work.token, slot, BAD_SCHEMA)
        marked = {DELETES: DELETES}
        deleting = [Inlet(sink, computed=marked) for sink in work.deleting] if work.tombstones is not None else []
        schema = work.tombstones.schema if work.tombstones is not None else BAD_SCHEMA
        self.deletes = Outlet(deleting, work.token, slot, schema, work.excluded, route=work.route)

    def finish(self) -> list[Manifest]:
        """Finish both."""
        return self.deletes.finish() + self.bad.finish()

    def abort(self) -> None:
        """Remove what was staged."""
        self.deletes.abort()
        self.bad.abort()


def finish_stages(report: SlotReport, sides: SideOutputs | None = None, out: Outlet | None = None) -> None:
    """Finish what was staged, first the sides, and keep the manifests in the report.

    A slot with bad records does not commit before these are in the quarantine.
    """
    with report.timed("stage"):
        report.manifests += sides.finish() if sides is not None else []
        if out is not None:
            report.manifests += out.finish(defer=report.quarantined > 0 or bool(out.refused))
            report.deferred += out.deferred
    for sink, seconds in (out.seconds if out is not None else {}).items():
        report.spent(f"stage:{sink}", seconds)


@contextmanager
def outlet_of(work: SlotWork, slot: int) -> Iterator[Outlet]:
    """The stages of every sink for the rows of a slot, aborted when anything fails."""
    with errors_for_spark(work.key):
        out = Outlet(work.inlets, work.token, slot, work.schema, work.excluded, work.same_topics, work.route)
        try:
            yield out
        except BaseException:
            out.abort()
            raise


@contextmanager
def sides_of(work: SlotWork, slot: int) -> Iterator[SideOutputs]:
    """The stages for what is not a row, aborted when anything fails."""
    with errors_for_spark(work.key):
        sides = SideOutputs(work, slot)
        try:
            yield sides
        except BaseException:
            sides.abort()
            raise


@contextmanager
def errors_for_spark(key: bytes) -> Iterator[None]:
    """Send Penstock's own errors on in a form that Spark keeps, signed with the driver's key."""
    try:
        yield
    except PenstockError as error:
        raise RuntimeError(error.to_wire(key)) from None
