"""What a batch asks of others, counted: figures that are the same on every machine, however fast it is.

A test that asserts such figures allows what was counted when it was written. When one is exceeded, either the change
is worth it and the figure is raised on purpose, or something has come to be done for each row, file or partition.
`PENSTOCK_SHOW_COSTS=1 pytest -s` prints the counts of every batch, to write the figures anew.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import psycopg

from penstock.engine.listener import BatchDone, BatchPhase, Event
from penstock.kafka import cluster
from penstock.readers.kafka import KafkaReader

_MEMORY = "m\n"
"""How a command begins by which Python tells the JVM that it has forgotten an object: sent whenever that is found."""


@dataclass
class Costs:
    """The counts of each batch that has ended since counting began; files below `folder`, each by its place there."""

    folder: Path
    batches: list[Counter[str]] = field(default_factory=list)
    _thread: int | None = None
    """The one that carries batches, once a listener has heard of one: others look after the run as time goes by."""
    _now: Counter[str] = field(default_factory=Counter)
    _files: set[Path] = field(default_factory=set)

    def add(self, what: str) -> None:
        if self._thread in (None, threading.get_ident()):
            self._now[what] += 1

    def listen(self, event: Event) -> None:
        """The listener of a run."""
        if isinstance(event, BatchPhase):
            self._thread = threading.get_ident()
        if isinstance(event, BatchDone):
            self.end_batch()

    def end_batch(self) -> None:
        counts, self._now = self._now, Counter()
        files = {path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file()}
        counts.update(_place(path) for path in files - self._files)
        self._files = files
        self.batches.append(counts)

    def most(self, which: slice) -> dict[str, int]:
        """For everything counted the most that one of some batches has; the first ones of a run open and import."""
        some = self.batches[which]
        assert some, "no batch was run"
        found = {what: max(batch[what] for batch in some) for batch in some for what in batch}
        if "PENSTOCK_SHOW_COSTS" in os.environ:
            print(*(dict(sorted(batch.items())) for batch in self.batches), sep="\n", file=sys.stderr)
        return dict(sorted(found.items()))


def exceeded(found: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, str]:
    """What is counted more often than is allowed; what is not named is not allowed."""
    return {
        what: f"{count} instead of {allowed.get(what, 0)}"
        for what, count in found.items()
        if count > allowed.get(what, 0)
    }


@contextmanager
def counting(folder: Path, *, jvm: bool = False) -> Iterator[Costs]:
    """Count what the batches of a run ask of brokers, tables, databases and the JVM."""
    costs = Costs(folder)

    class CountedAdmin(cluster.AdminClient):  # type: ignore[misc]
        def list_offsets(self, *args: Any, **kwargs: Any) -> Any:
            costs.add("brokers: list_offsets")
            return super().list_offsets(*args, **kwargs)

        def describe_topics(self, *args: Any, **kwargs: Any) -> Any:
            costs.add("brokers: describe_topics")
            return super().describe_topics(*args, **kwargs)

        def list_topics(self, *args: Any, **kwargs: Any) -> Any:
            costs.add("brokers: list_topics")
            return super().list_topics(*args, **kwargs)

    def counted(what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            costs.add(what)
            return original(*args, **kwargs)

        return call

    table: Any = deltalake.DeltaTable
    with (
        patch.object(cluster, "AdminClient", CountedAdmin),
        patch.object(KafkaReader, "_open", counted("brokers: consumers opened", KafkaReader._open)),
        patch.object(table, "__init__", counted("delta: tables opened", table.__init__)),
        patch.object(table, "update_incremental", counted("delta: tables read on", table.update_incremental)),
        patch.object(psycopg.Cursor, "execute", counted("database: statements", psycopg.Cursor.execute)),
        _jvm_counted(costs.add) if jvm else _nothing(),
    ):
        yield costs


@contextmanager
def _jvm_counted(add: Callable[[str], None]) -> Iterator[None]:
    from py4j.java_gateway import GatewayClient

    original = GatewayClient.send_command

    def send_command(self: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(_MEMORY):
            add("jvm: calls")
        return original(self, command, *args, **kwargs)

    with patch.object(GatewayClient, "send_command", send_command):
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _place(path: Path) -> str:
    """The folder of a target or of the checkpoint, and which part of it; the files of one place are alike."""
    parts = [part for part in path.parts[:-1] if "=" not in part]
    return f"files: {'/'.join(parts)}{'/.*' if path.name.startswith('.') else ''}"


@contextmanager
def counting_python(*, lines: bool = True) -> Iterator[Callable[[], int]]:
    """Count the calls that this thread makes, and the lines of Python that it runs; what is yielded gives the count.

    A loop over rows shows by its lines also where what it calls cannot be seen, as with the methods of Arrow.
    """
    done = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal done
        done += event in ("call", "c_call")

    def ran(frame: Any, event: str, argument: Any) -> Any:
        nonlocal done
        done += event == "line"
        return ran

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(called)
    if lines:
        sys.settrace(ran)
    try:
        yield lambda: done
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
