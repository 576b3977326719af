"""A sink whose batches are staged one by one and committed together, with one token over all their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.checkpoint.atomic import put_whole
from penstock.contracts import BaseSink, Maintenance, Sink, SqlEngine, Stage
from penstock.errors import TransientError
from penstock.model import BatchToken, Guarantee, Manifest, OffsetRange, Position, SlotAttempt, Verdict, decide
from penstock.model.stored_manifests import manifests_from_json, manifests_to_json
from penstock.sinks.commit import commit

_MOST_SLOTS = 10_000


class GatheredSink(BaseSink):
    """Implements `contracts.Sink` over another sink. `publish` commits, once however often called.

    What was staged is noted in a file for each batch, so that it is staged once. Until `publish` its position is where
    these notes end; the target does not change.
    """

    def __init__(self, sink: Sink, whole: BatchToken, batches: Sequence[tuple[OffsetRange, ...]], folder: Path) -> None:
        self._sink = sink
        self._whole = whole
        self._batches = batches
        self._folder = folder
        self._checked = False

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
        return self._sink.needs_sql

    def use(self, sql: SqlEngine) -> None:
        """Hand the engine on."""
        self._sink.use(sql)

    @property
    def commits_under_lock(self) -> bool:
        """Whether its commit meets compactions."""
        return self._sink.commits_under_lock

    def maintenance(self) -> Maintenance | None:
        """The care of its table."""
        return self._sink.maintenance()

    def prepare(self, schema: pa.Schema) -> None:
        """Prepare the sink."""
        self._sink.prepare(schema)

    def check(self, schema: pa.Schema) -> None:
        """Check the sink."""
        self._sink.check(schema)

    @property
    def published(self) -> bool:
        """Whether the target holds all of it."""
        return decide(self._sink.position(), self._whole) is Verdict.COMMITTED

    def position(self) -> Position | None:
        """After the last batch that is staged, or after all of them where the target holds them."""
        staged = len(self._batches) if self.published else self._staged()
        return self._after(staged) if staged else None

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: stage under the token of the whole."""
        slot = token.batch_id * _MOST_SLOTS + writer.slot
        return self._sink.stage(self._whole, replace(writer, slot=slot), schema)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Note what a batch staged."""
        self._folder.mkdir(parents=True, exist_ok=True)
        put_whole(self._of(position.last.batch_id), manifests_to_json(manifests).encode())

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """What dead attempts left is removed when all is committed."""

    def publish(self) -> None:
        """Commit what all batches staged."""
        if self.published:
            return
        self._forget_lost()
        noted = [self._read(number) for number in range(len(self._batches))]
        manifests = [manifest for staged in noted if staged is not None for manifest in staged]
        if None in noted:
            raise TransientError(
                "SINK_STAGED_GONE",
                f"sink {self.name}: rows that were staged are gone: the target was put back meanwhile",
                hint="run the same command again: they are staged anew",
            )
        commit(self._sink, self._whole, manifests)
        self._sink.discard(self._whole, manifests)

    def _staged(self) -> int:
        """How many batches are staged, without a gap."""
        if not self._checked:
            self._checked = True
            self._forget_lost()
        return next(
            (number for number in range(len(self._batches)) if not self._of(number).exists()), len(self._batches)
        )

    def _forget_lost(self) -> None:
        """What is noted is a hint: staged rows are gone where the target was put back since.

        A note that cannot be read is dropped too. No commit names what its batch staged, and `discard` removes it.
        """
        for number in range(len(self._batches)):
            manifests = self._read(number)
            if manifests is None or not self._sink.has_staged(manifests):
                self._of(number).unlink(missing_ok=True)

    def _read(self, batch_id: int) -> list[Manifest] | None:
        """What a batch staged; none where that is not noted, or cannot be read."""
        try:
            return manifests_from_json(self._of(batch_id).read_bytes())
        except FileNotFoundError:
            return None

    def _after(self, count: int) -> Position:
        tokens = [replace(self._whole, batch_id=number, ranges=self._batches[number]) for number in range(count)]
        held = Position.first(tokens[0])
        for token in tokens[1:]:
            held = Position.after(held, token)
        return held

    def _of(self, batch_id: int) -> Path:
        # Versions before 0.8 noted it as a pickle in N.manifests, which is not read: the batch is staged again.
        return self._folder / f"{batch_id}.json"
