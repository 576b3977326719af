"""What a task writes to: the stages of every sink for the rows, and those beside them, as one.

They are opened together, and finished or aborted together.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.contracts import Decoder, Reader, Sink, SlotSink, Stage, Transform
from penstock.errors import PenstockError
from penstock.model import BAD_SCHEMA, DELETES, BatchToken, Manifest, Refusal, SlotAttempt
from penstock.runtime.inlet import Inlet


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
