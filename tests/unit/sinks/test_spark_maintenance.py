"""A statement of table maintenance that runs through Spark: how it ends, and what is reported of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from penstock.errors import PenstockError, TerminalError
from penstock.sinks.maintenance import NoLock, TableMaintenance


class Engine:
    """Answers each statement by the next of some outcomes; `hang` until it is interrupted."""

    def __init__(self, *outcomes: list[dict[str, Any]] | Exception | str) -> None:
        self._outcomes = list(outcomes)
        self._interrupted = threading.Event()

    def run(self, statement: str, settings: Mapping[str, str]) -> list[dict[str, Any]]:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, str):
            assert self._interrupted.wait(10)
            raise RuntimeError("cancelled")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def interrupt(self) -> None:
        self._interrupted.set()


class HeldLock(NoLock):
    """The stream has the table until the time is up."""

    @contextmanager
    def taken(self, deadline: float) -> Iterator[bool]:
        yield False


class Optimizing(TableMaintenance[None]):
    """Runs one statement of Spark on a table that it never opens."""

    def __init__(self, engine: Engine) -> None:
        super().__init__("out", 1 << 20, (), lambda sink, doing: nullcontext())
        self.use(engine, engine.interrupt)

    def run(self, lock: NoLock, deadline: float) -> tuple[list[dict[str, Any]], int, str | None]:
        return self._run("OPTIMIZE t", {}, lock, deadline)

    def _failure(self, error: Exception) -> PenstockError | None:
        return None if "conflict" in str(error) else TerminalError("SINK_FAILED", str(error))

    def _open(self) -> None:
        raise AssertionError("not opened here")

    def _file_sizes(self, table: None) -> list[list[int]]:
        return []

    def _versions(self, table: None) -> int:
        return 0


def soon() -> float:
    return time.monotonic() + 30


def test_statement_that_ends_gives_its_rows() -> None:
    assert Optimizing(Engine([{"files": 3}])).run(NoLock(), soon()) == ([{"files": 3}], 0, None)


def test_statement_that_conflicts_is_tried_again_and_counted() -> None:
    engine = Engine(RuntimeError("conflict"), [{"files": 3}])
    assert Optimizing(engine).run(NoLock(), soon()) == ([{"files": 3}], 1, None)


def test_statement_that_fails_ends_the_maintenance() -> None:
    with pytest.raises(TerminalError, match="no space"):
        Optimizing(Engine(RuntimeError("no space"))).run(NoLock(), soon())


def test_statement_is_given_up_when_its_time_is_up() -> None:
    rows, lost, reason = Optimizing(Engine("hang")).run(NoLock(), time.monotonic() + 0.05)
    assert (rows, lost, reason) == ([], 0, "the time was up")


def test_statement_does_not_begin_where_the_stream_keeps_the_table() -> None:
    rows, lost, reason = Optimizing(Engine()).run(HeldLock(), soon())
    assert (rows, lost, reason) == ([], 0, "the time was up")
