"""A sink whose batches are staged one by one and committed together, with one token over all their ranges."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.checkpoint.whole import put_whole
from penstock.contracts import MaintainedSink, Maintenance, Sink, SqlEngine, SqlSink, Stage
from penstock.model import BatchToken, Guarantee, Manifest, SlotAttempt

_MOST_SLOTS = 10_000


class GatheredSink:
    """Implements `contracts.Sink`, and what its sink is besides. `land` commits, once however often called.

    What was staged is noted in a file for each batch, so that it is staged once.
    """

    def __init__(self, sink: Sink, token: BatchToken, folder: Path) -> None:
        self._sink = sink
        self._token = token
        self._folder = folder

    @property
    def name(self) -> str:
        """The name of the sink."""
        return self._sink.name

    @property
    def guarantee(self) -> Guarantee:
        """What the sink promises."""
        return self._sink.guarantee

    @property
    def target(self) -> str:
        """Where it writes."""
        return self._sink.target

    @property
    def needs_sql(self) -> bool:
        """Whether the sink commits through Spark SQL."""
        return isinstance(self._sink, SqlSink) and self._sink.needs_sql

    def use(self, sql: SqlEngine) -> None:
        """Hand the engine on."""
        assert isinstance(self._sink, SqlSink)
        self._sink.use(sql)

    @property
    def takes_turns(self) -> bool:
        """Whether its commit meets compactions."""
        return isinstance(self._sink, MaintainedSink) and self._sink.takes_turns

    def maintenance(self) -> Maintenance:
        """The care of its table."""
        assert isinstance(self._sink, MaintainedSink)
        return self._sink.maintenance()

    def prepare(self, schema: pa.Schema) -> None:
        """Prepare the sink."""
        self._sink.prepare(schema)

    def check(self, schema: pa.Schema) -> None:
        """Check the sink."""
        self._sink.check(schema)

    def last_commit(self) -> BatchToken | None:
        """The newest commit of the sink."""
        return self._sink.last_commit()

    def holds(self, token: BatchToken) -> bool:
        """Whether the batch is staged, or all of them committed."""
        return self._of(token.batch_id).exists() or self._sink.holds(self._token)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: stage under the token of the whole."""
        return self._sink.stage(self._token, self._seat(token, writer), schema)

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Note what a batch staged."""
        self._folder.mkdir(parents=True, exist_ok=True)
        put_whole(self._of(token.batch_id), pickle.dumps(list(manifests)))

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """What dead attempts left is removed when all is committed."""

    def land(self) -> None:
        """Commit what all batches staged."""
        notes = sorted(self._folder.glob("*.manifests"), key=lambda path: int(path.stem))
        manifests = [manifest for note in notes for manifest in pickle.loads(note.read_bytes())]
        self._sink.commit(self._token, manifests)
        self._sink.discard(self._token, manifests)

    def _of(self, batch_id: int) -> Path:
        return self._folder / f"{batch_id}.manifests"

    def _seat(self, token: BatchToken, writer: SlotAttempt) -> SlotAttempt:
        return replace(writer, slot=token.batch_id * _MOST_SLOTS + writer.slot)
