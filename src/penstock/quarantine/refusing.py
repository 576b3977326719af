"""What stands in for a quarantine when none is configured: the first bad record stops the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.model import BatchToken, Guarantee, Manifest, Position, Refusal, SlotAttempt


class WithoutTarget:
    """What every sink without a target has in common: it keeps nothing and commits nothing."""

    def prepare(self, schema: pa.Schema) -> None:
        """There is nothing to prepare."""

    def check(self, schema: pa.Schema) -> None:
        """There is nothing to check."""

    def position(self) -> Position | None:
        """It never holds anything."""
        return None

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """There is nothing to commit."""

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """There is nothing to remove."""


class RefusingQuarantine(WithoutTarget):
    """Implements `contracts.Sink`: it takes no record."""

    name = "quarantine"
    guarantee = Guarantee.EXACTLY_ONCE
    target = "none: a bad record stops the pipeline"

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> _RefusingStage:
        """In a task: stop at the first bad record."""
        return _RefusingStage(writer, token.batch_id)


class _RefusingStage:
    def __init__(self, writer: SlotAttempt, batch_id: int) -> None:
        self._writer = writer
        self._batch_id = batch_id

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if not rows.num_rows:
            return ()
        shown = ("stage", "code", "message", "topic", "partition", "offset")
        first = rows.select(list(shown)).slice(0, 1).to_pylist()[0]
        place = f"{first['topic']}[{first['partition']}] offset {first['offset']}"
        raise TerminalError(
            "BAD_RECORD",
            f"{place}: {first['code']}: {first['message']}",
            context={
                "record": place,
                "stage": first["stage"],
                "batch": self._batch_id,
                "bad records": f"{rows.num_rows} among those read together",
            },
            hint="to set bad records aside and go on, add to the pipeline file:\nquarantine: {table: lake/quarantine}",
        )

    def finish(self) -> Manifest:
        return Manifest(RefusingQuarantine.name, self._writer, rows=0, size_bytes=0)

    def abort(self) -> None:
        pass
