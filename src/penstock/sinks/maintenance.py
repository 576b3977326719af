"""The maintenance of a table in chunks, each in a thread or process of its own.

A chunk is interrupted when its time is up or the stream wants the table. A Spark statement is one chunk.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar

from penstock.contracts import MaintenanceLock, SqlEngine
from penstock.errors import PenstockError
from penstock.model.upkeep import TableFigures
from penstock.sinks.files.writer import worth_joining
from penstock.sinks.spark_sql import require_engine

COMPACTING, CLEANING = "compacting the table", "cleaning the table up"
ORPHAN_AGE = timedelta(days=3)
"""The minimum age of files to remove that no version of the table names: a batch or a replay may be about to."""

GRACE = 0.3
"""How long a chunk may continue after the stream requests the table: most are done by then."""

_POLL = 0.02

ChunkEnd = Literal["done", "conflict", "failure", "gave way", "time"]


@dataclass(frozen=True)
class ChunkResult:
    """How a chunk ended. `reason` is what went wrong."""

    ended: ChunkEnd
    reason: str = ""
    error: Exception | None = None


def run_chunk(
    run: Callable[[], object], interrupt: Callable[[], None], lock: MaintenanceLock, deadline: float
) -> ChunkResult:
    """Run something in a thread of its own; `interrupt` makes it raise."""
    failed: list[Exception] = []

    def work() -> None:
        try:
            run()
        except Exception as error:
            failed.append(error)

    with lock.taken(deadline) as mine:
        if not mine:
            return ChunkResult("time")
        thread = threading.Thread(target=work, name="compaction", daemon=True)
        thread.start()
        broken = _watch(lambda seconds: _ended(thread, seconds), lock, deadline)
        while thread.is_alive():  # a job that begins just after an interrupt is not reached by it
            interrupt()
            thread.join(0.2)
    if not failed:
        return ChunkResult("done")
    return ChunkResult(broken or "failure", str(failed[0]), failed[0])


_TRIES = 3

Table = TypeVar("Table")


class TableMaintenance(ABC, Generic[Table]):
    """Implements `contracts.Maintenance` with a subclass that knows the table format."""

    def __init__(
        self,
        sink: str,
        target_file_bytes: int,
        cluster_by: Sequence[str],
        failures: Callable[[str, str], AbstractContextManager[None]],
    ) -> None:
        self._sink = sink
        self._target = target_file_bytes
        self._cluster_by = tuple(cluster_by)
        self._failures = failures
        self._sql: SqlEngine | None = None
        self._interrupt: Callable[[], None] = lambda: None

    def use(self, sql: SqlEngine, interrupt: Callable[[], None]) -> None:
        """Set the engine, and how to interrupt what it runs."""
        self._sql, self._interrupt = sql, interrupt

    def figures(self) -> TableFigures | None:
        """The table as it is now; none where there is no table."""
        with self._failures(self._sink, "looking at the table"):
            table = self._open()
            if table is None:
                return None
            partitions = self._file_sizes(table)
            return TableFigures(
                files=sum(map(len, partitions)),
                small_files=sum(worth_joining(sizes, self._target) for sizes in partitions),
                size_bytes=sum(map(sum, partitions)),
                versions=self._versions(table),
            )

    @abstractmethod
    def _open(self) -> Table | None:
        """The table as it is now."""

    @abstractmethod
    def _file_sizes(self, table: Table) -> list[list[int]]:
        """The sizes of the data files in each partition."""

    @abstractmethod
    def _versions(self, table: Table) -> int:
        """How many versions or snapshots can still be read."""

    @abstractmethod
    def _failure(self, error: Exception) -> PenstockError | None:
        """The error that a statement of Spark ended with; none for a conflict, after which it is run again."""

    @property
    def _engine(self) -> SqlEngine:
        return require_engine(self._sql, self._sink, "maintaining the table")

    def _run(
        self, statement: str, settings: Mapping[str, str], lock: MaintenanceLock, deadline: float
    ) -> tuple[list[dict[str, Any]], int, str | None]:
        """Run one statement, interrupted when the stream wants the table.

        Its rows, how often it gave way, and why it was not finished.
        """
        engine = self._engine
        rows: list[dict[str, Any]] = []

        def work() -> None:
            rows.extend(engine.run(statement, settings=settings))

        for lost in range(_TRIES):
            found = run_chunk(work, self._interrupt, lock, deadline)
            if found.ended == "done":
                return rows, lost, None
            if found.ended == "time":
                return [], lost, "the time was up"
            if found.ended == "failure" and found.error is not None and (failure := self._failure(found.error)):
                raise failure from found.error
            time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
        return [], _TRIES, "the stream left no room for it"


class NoLock:
    """For work that no stream can conflict with. Implements `contracts.MaintenanceLock`."""

    def taken(self, deadline: float) -> AbstractContextManager[bool]:
        """Immediately."""
        return nullcontext(time.monotonic() < deadline)

    def wanted(self) -> bool:
        """Never."""
        return False


class ChunkProcess:
    """A process that carries out orders, one chunk each, and is killed when a chunk must stop."""

    def __init__(self, script: str, first: Mapping[str, Any]) -> None:
        self._command = [sys.executable, "-P", script]
        self._first = first
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, order: Mapping[str, Any], lock: MaintenanceLock, deadline: float) -> ChunkResult:
        """Carry out one order while holding the lock. The process is started before that."""
        process = self._ready(deadline)
        if process is None:
            return ChunkResult("time")
        with lock.taken(deadline) as mine:
            if not mine:
                return ChunkResult("time")
            self._send(process, order)
            broken = _watch(lambda seconds: _answers(process, seconds), lock, deadline)
            if broken:
                self._end()
                return ChunkResult(broken)
        return self._answer(process)

    def _ready(self, deadline: float) -> subprocess.Popen[bytes] | None:
        if self._process is None:
            # A group of its own: a Ctrl-C at the terminal reaches the command alone, which then ends this.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._send(self._process, self._first)
            while not _answers(self._process, _POLL):
                if time.monotonic() >= deadline:
                    self._end()
                    return None
            self._answer(self._process)
        return self._process

    def _send(self, process: subprocess.Popen[bytes], what: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            process.stdin.write(json.dumps(what).encode() + b"\n")
            process.stdin.flush()

    def _answer(self, process: subprocess.Popen[bytes]) -> ChunkResult:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self._end()
            return ChunkResult("failure", f"its process ended with {process.returncode}")
        answer = json.loads(line)
        return ChunkResult(answer["outcome"], answer["message"])

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _watch(over: Callable[[float], bool], lock: MaintenanceLock, deadline: float) -> ChunkEnd | None:
    """Wait until a chunk has ended; or return why it must stop."""
    wanted_at: float | None = None
    while not over(_POLL):
        now = time.monotonic()
        if now >= deadline:
            return "time"
        if wanted_at is None and lock.wanted():
            wanted_at = now
        if wanted_at is not None and now - wanted_at > GRACE:
            return "gave way"
    return None


def _ended(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


def _answers(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether there is an answer to read, or the process has ended."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    return bool(readable)
