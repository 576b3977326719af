"""What a task is told of a batch, and what it writes to: the stages of every sink, for rows and for bad records.

They are opened together, and finished or aborted together.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.assembly.inlet import Inlet
from penstock.contracts import Decoder, Reader, Sink, SlotSink, Stage, Transform
from penstock.engine.refused import EVERYWHERE, Excluded
from penstock.errors import PenstockError, wire_key
from penstock.model import BAD_SCHEMA, COORDINATES, DELETES, BatchToken, Manifest, OffsetRange, Refusal, SlotAttempt
from penstock.transforms import Dedupe

if TYPE_CHECKING:
    from penstock.engine.slot import SlotReport


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
    route: str = ""
    """The name of the flow, where there are several."""
    counts: bool = True
    """Whether this flow counts the records that it reads, and quarantines those that cannot be decoded: of several
    that read the same topics one does."""
    excluded: Excluded = field(default_factory=Excluded)
    """Records that stay out: of the whole pipeline, of a route or of a sink."""
    lacking: str = ""
    """Where some sinks have the batch already: those that do not. A record that is bad only now is missing in these."""
    same_topics: Callable[[], None] | None = None
    """Raises where a topic of the batch was created again since; asked before a slot commits in its task."""
    key: bytes = field(default_factory=wire_key, repr=False)
    """Signs the errors that the task sends to the driver."""

    def wanted_by(self, sinks: Sequence[Sink]) -> SlotWork:
        """The same work for some of the sinks."""
        return replace(
            self,
            inlets=tuple(inlet for inlet in self.inlets if inlet.sink in sinks),
            deleting=tuple(sink for sink in self.deleting if sink in sinks),
        )


StageLane: TypeAlias = "Callable[[Any, Sequence[SlotWork], Sequence[tuple[OffsetRange, ...]]], list[SlotReport]]"
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
    direct: bool = False
    """Whether it takes the direct lane."""

    def of_batch(
        self,
        token: BatchToken,
        sinks: Sequence[Sink],
        excluded: Excluded = Excluded(),
        same_topics: Callable[[], None] | None = None,
        lacking: str = "",
    ) -> StagedFlow:
        """The same for a batch, as far as these sinks want it."""
        if not self.keeps_rows_for_steps:
            names = (inlet.sink.name for work in self.works for inlet in work.wanted_by(sinks).inlets)
            excluded = excluded.all_before_steps(names)
        works = (
            replace(work.wanted_by(sinks), token=token, excluded=excluded, same_topics=same_topics, lacking=lacking)
            for work in self.works
        )
        return replace(self, works=tuple(works))

    def of(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The ranges that it reads."""
        return [r for r in ranges if self.topics is None or r.topic in self.topics]

    @property
    def keeps_rows_for_steps(self) -> bool:
        """Whether a step may decide about a row by others, so that it has to see the rows that stay out of the targets.

        After steps that leave the coordinates out these rows could not be found again.
        """
        return not self.knows_bad_in_slot and all(COORDINATES in work.schema.names for work in self.works)

    @property
    def knows_bad_in_slot(self) -> bool:
        """Whether a slot has met all bad records of its rows by its end. After an exchange they are in other tasks."""
        return self.direct and not any(isinstance(step, Dedupe) for work in self.works for step in work.transforms)


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
        """Sinks that commit in their slot and did not: the slot's bad records have to be quarantined first."""
        self.seconds: dict[str, float] = {}
        """What each sink took."""
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
        """Finish every stage, last those whose end is the commit; with `defer` these are given up instead."""
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


class Sides:
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
def sides_of(work: SlotWork, slot: int) -> Iterator[Sides]:
    """The stages for what is not a row, aborted when anything fails."""
    with errors_for_spark(work.key):
        sides = Sides(work, slot)
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
