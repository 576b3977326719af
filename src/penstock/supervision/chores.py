"""What a running pipeline does for itself on a schedule: copies of its checkpoint, care of its tables.

Neither can stop the stream: what goes wrong is told, and tried again when it is due the next time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from penstock.assembly.build import Pipeline
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import backups_of, list_backups, make_backup
from penstock.errors import PenstockError
from penstock.supervision.upkeep import needs_spark, upkeep


class Chores:
    """The chores of one run: entered before its first batch, left behind its last."""

    def __init__(self, pipeline: Pipeline, session: Any, tell: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._session = session
        self._tell = tell
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._checkpoint = SparkCheckpoint(pipeline.config.checkpoint, pipeline.storage)
        self._maintained: float | None = None

    @staticmethod
    def need_tables(pipeline: Pipeline) -> bool:
        """Whether the session has to know tables for them."""
        return pipeline.config.maintenance is not None and needs_spark(pipeline)

    def __enter__(self) -> Chores:
        if self._pipeline.config.checkpoint_backup is not None:
            self._thread = threading.Thread(target=self._back_up, name="penstock-backup", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(30)

    def between_batches(self) -> None:
        """Look after the tables if that is due; the next batch waits for it."""
        maintenance = self._pipeline.config.maintenance
        if maintenance is None:
            return
        if self._maintained is None:
            self._maintained = self._checkpoint.maintained_at()
        last, now = self._maintained, time.time()
        if last is not None and now < last + maintenance.every.total_seconds():
            return
        self._maintained = now
        self._checkpoint.note_maintained(now)
        if last is None:
            return
        try:
            within = maintenance.within.total_seconds()
            for line in upkeep(self._pipeline, self._session, within, maintenance.keep):
                self._tell(line)
        except Exception as error:
            self._tell(f"maintenance was not done: {_said(error)}")

    def _back_up(self) -> None:
        asked = self._pipeline.config.checkpoint_backup
        assert asked is not None
        checkpoint = self._checkpoint
        place, every = asked.to or backups_of(checkpoint.path), asked.every.total_seconds()
        due = 0.0
        with suppress(Exception):
            copies = list_backups(place, checkpoint.storage)
            own = [b.created_at for b in copies if b.checkpoint == checkpoint.path and b.kind == "backup"]
            due = every - (datetime.now(UTC) - own[-1]).total_seconds()
        while not self._over.wait(max(0.5, due)):
            if checkpoint.last_committed() is None:
                due = 0.5
                continue
            due = every
            try:
                made = make_backup(checkpoint, place, self._pipeline.config.name, asked.keep)
                self._tell(f"checkpoint copied: {made.path}")
            except Exception as error:
                self._tell(f"the checkpoint was not copied: {_said(error)}")


def _said(error: Exception) -> str:
    return f"{error.code} {error.line}" if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
