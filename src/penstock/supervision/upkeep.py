"""Maintenance of a pipeline's tables: the list of tables, the results, and the run between two batches.

In a running pipeline no error here can stop the stream: it is reported in one line, and maintenance is retried the next
time. The stream and a compaction lock a table, and the stream has priority. Two kernel locks in the checkpoint folder
do this, and a crash releases them: the writer of the table holds one, and the stream holds the other from when it
requests the first until it is done. A compaction that finds it locked yields. The stream waits only briefly for that; a
conflict after that is an ordinary one, and its commit is retried.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from penstock.assembly.build import Pipeline
from penstock.assembly.reaching import backup_place_of, storage_of
from penstock.assembly.targets import Targets
from penstock.background import Repeating
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import list_backups, make_backup
from penstock.config import PipelineConfig, reveal
from penstock.contracts import Maintenance, MaintenanceLock, Sink
from penstock.errors import PenstockError, one_line
from penstock.model.upkeep import Cleaned, Compacted, TableFigures
from penstock.sinks.delta.maintenance import DeltaMaintenance

STREAM_PATIENCE = 2.0
"""Maximum number of seconds that the stream waits for a compaction to yield."""

_POLL = 0.01


class TableLock:
    """The lock of one sink's table, which is free without a local checkpoint. Implements `MaintenanceLock`."""

    def __init__(self, checkpoint: str, sink: str) -> None:
        local = "://" not in checkpoint or checkpoint.startswith("file://")
        self._folder = Path(checkpoint.removeprefix("file://")) if local else None
        mark = hashlib.sha256(sink.encode()).hexdigest()[:6]
        self._name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', sink)[:40]}-{mark}"

    @contextmanager
    def stream(self) -> Iterator[None]:
        """For the stream: request the table, and continue with or without it. Never raises."""
        with self._opened("wanted") as wanted, self._opened("turn") as lock:
            if wanted is not None and lock is not None:
                soon = time.monotonic() + STREAM_PATIENCE
                _await(wanted, soon)
                _await(lock, soon)
            yield

    @contextmanager
    def taken(self, deadline: float) -> Iterator[bool]:
        """For a compaction: hold the lock, once the stream neither holds nor wants it."""
        with self._opened("turn") as lock:
            yield lock is None or self._take(lock, deadline)

    def wanted(self) -> bool:
        """Whether the stream wants the table, or has it."""
        with self._opened("wanted") as wanted:
            return wanted is not None and not _held(wanted, fcntl.LOCK_SH)

    def _take(self, lock: IO[str], deadline: float) -> bool:
        while True:
            if not self.wanted() and _held(lock):
                if not self.wanted():
                    return True
                fcntl.flock(lock, fcntl.LOCK_UN)
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)

    @contextmanager
    def _opened(self, which: str) -> Iterator[IO[str] | None]:
        """The file of a lock; None if there is no folder for it."""
        file = None
        if self._folder is not None and self._folder.is_dir():
            with suppress(OSError):
                file = (self._folder / f".penstock.{which}.{self._name}").open("a")
        try:
            yield file
        finally:
            if file is not None:
                file.close()


def _await(file: IO[str], deadline: float) -> bool:
    while not _held(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _held(file: IO[str], how: int = fcntl.LOCK_EX) -> bool:
    """Try to take a lock. On a file system without locks no other process could hold one."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


FEW_FILES = 8
"""A running pipeline compacts tables with more small files than this."""

SHORTEST_KEEP = timedelta(hours=1)
"""Clean-up keeps everything that was current within this time: readers and running batches may still need it."""


@dataclass(frozen=True)
class TendedTable:
    """A table of the pipeline that can be maintained."""

    name: str
    target: str
    maintenance: Maintenance
    lock: MaintenanceLock


@dataclass(frozen=True)
class Tended:
    """What was done to one table."""

    table: TendedTable
    before: TableFigures | None
    after: TableFigures | None = None
    compacted: Compacted = field(default_factory=Compacted)
    cleaned: Cleaned = field(default_factory=Cleaned)
    seconds: float = 0.0
    error: PenstockError | None = None

    @property
    def line(self) -> str | None:
        """For people; None if there was nothing to do."""
        if self.error is not None:
            return f"maintenance of {self.table.name} failed: {one_line(self.error)}"
        done = []
        if self.compacted.removed:
            done.append(f"{self.compacted.removed:,} files compacted into {self.compacted.added:,}")
        if self.cleaned.files:
            done.append(f"{self.cleaned.files:,} files removed")
        if self.cleaned.versions:
            done.append(f"{self.cleaned.versions:,} snapshots expired")
        if self.compacted.left:
            done.append(f"incomplete: {self.compacted.left}")
        return f"maintenance of {self.table.name}: {', '.join(done)} ({self.seconds:.1f} s)" if done else None


def tables_of(config: PipelineConfig, targets: Targets) -> list[TendedTable]:
    """The tables of the sinks, and those that belong to the quarantine, each once."""
    found = [
        TendedTable(sink.name, sink.target, maintenance, TableLock(config.checkpoint, sink.name))
        for sink in targets.sinks
        if (maintenance := sink.maintenance()) is not None
    ]
    quarantine = config.quarantine.table if config.quarantine is not None else None
    if quarantine is not None:
        for name, end in (("quarantine", ""), ("gaps", "_gaps"), ("redrives", "_redrives")):
            path = quarantine.rstrip("/") + end
            care = DeltaMaintenance(config.name, name, path, storage=storage_of(config))
            found.append(TendedTable(name, path, care, TableLock(config.checkpoint, name)))
    return list({table.target: table for table in reversed(found)}.values())[::-1]


def lock_of(checkpoint: str, sink: Sink) -> AbstractContextManager[None]:
    """The lock that a stream takes while it commits to a sink."""
    if sink.commits_under_lock:
        return TableLock(checkpoint, sink.name).stream()
    return nullcontext()


def needs_spark(pipeline: Pipeline) -> bool:
    """Whether some table is maintained by Spark, whose session must then support tables."""
    return any(table.maintenance.needs_sql for table in tables_of(pipeline.config, pipeline.targets))


def use_spark(table: TendedTable, session: Any, settings: Mapping[str, str] | None = None) -> None:
    """Give a table its own engine if it needs one."""
    if table.maintenance.needs_sql:
        from penstock.spark.sql import SparkSql

        engine = SparkSql(session, settings)
        table.maintenance.use(engine, engine.interrupt)


def upkeep(pipeline: Pipeline, session: Any, within: float, keep: timedelta) -> Iterator[str]:
    """Look after every table for at most `within` seconds in all; yield what there is to tell."""
    deadline, settings = time.monotonic() + within, reveal(pipeline.config.spark)
    for table in tables_of(pipeline.config, pipeline.targets):
        if time.monotonic() >= deadline:
            return
        done = tend(table, deadline, keep, few=FEW_FILES, ready=lambda table: use_spark(table, session, settings))
        if done.line is not None:
            yield done.line


def tend(
    table: TendedTable,
    deadline: float,
    keep: timedelta,
    *,
    clean: bool = True,
    few: int = 1,
    ready: Callable[[TendedTable], None] = lambda table: None,
) -> Tended:
    """Compact a table with more than `few` small files, and clean it up. What goes wrong is in what is returned."""
    began = time.monotonic()
    done = Tended(table, None)
    try:
        before = table.maintenance.figures()
        done = Tended(table, before, before)
        if before is None:
            return done
        ready(table)
        if before.small_files > few:
            done = replace(done, compacted=table.maintenance.compact(table.lock, deadline))
        if clean and time.monotonic() < deadline:
            keep = max(keep, SHORTEST_KEEP)
            done = replace(done, cleaned=table.maintenance.clean(keep, table.lock, deadline))
        return replace(done, after=table.maintenance.figures(), seconds=time.monotonic() - began)
    except Exception as error:
        if not isinstance(error, PenstockError):
            error = PenstockError(
                "UNEXPECTED", f"sink {table.name}: maintaining the table: {type(error).__name__}: {error}"
            )
        return replace(done, error=error, seconds=time.monotonic() - began)


# What a running pipeline does on a schedule: back up its checkpoint, maintain its tables.
#
# Neither can stop the stream: an error is reported, and the task is tried again when it is due the next time.


class Chores:
    """The scheduled tasks of one run: entered before its first batch, left after its last."""

    def __init__(self, pipeline: Pipeline, session: Any, tell: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._session = session
        self._tell = tell
        self._backups: Repeating | None = None
        self._checkpoint = SparkCheckpoint(pipeline.config.checkpoint, pipeline.storage)
        self._maintained: float | None = None

    @staticmethod
    def need_tables(pipeline: Pipeline) -> bool:
        """Whether the session has to know tables for them."""
        return pipeline.config.maintenance is not None and needs_spark(pipeline)

    def __enter__(self) -> Chores:
        if self._pipeline.config.checkpoint_backup is not None:
            self._backups = Repeating("backup", self._back_up, 0.5)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._backups is not None:
            self._backups.close(30)

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
            self._tell(f"maintenance failed: {one_line(error)}")

    def _back_up(self) -> float:
        asked = self._pipeline.config.checkpoint_backup
        assert asked is not None
        checkpoint, every = self._checkpoint, asked.every.total_seconds()
        place = backup_place_of(self._pipeline.config)
        if checkpoint.last_committed() is None:
            return 0.5
        with suppress(PenstockError, OSError):
            copies = list_backups(place, checkpoint.storage)
            own = [b.created_at for b in copies if b.checkpoint == checkpoint.path and b.kind == "backup"]
            age = (datetime.now(UTC) - own[-1]).total_seconds() if own else every
            if age < every:
                return every - age
        try:
            made = make_backup(checkpoint, place, self._pipeline.config.name, asked.keep)
            self._tell(f"checkpoint copied: {made.path}")
        except Exception as error:
            self._tell(f"copying the checkpoint failed: {one_line(error)}")
        return every
