"""Batches that would never end: Spark cannot call back, or a batch hangs in this process."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.orders import drain, ids, order

from penstock import load
from penstock.checkpoint.presence import Presence
from penstock.engine.listener import BatchPhase, Event, Notice, Stalled
from penstock.errors import TransientError
from penstock.preflight.options import RunOptions
from penstock.supervision import watchdog
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


class WithoutDescriptors:
    """A listening socket whose process has no descriptor left, once."""

    def __init__(self, socket: Any) -> None:
        self._socket, self.refused = socket, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def accept(self) -> Any:
        if not self.refused:
            self.refused = True
            raise OSError(errno.EMFILE, "Too many open files")
        return self._socket.accept()


def test_callback_server_that_dies_is_started_again_and_the_batch_commits(
    spark: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic)
    drain(file, spark)
    topics.send(topic, [order(1)])
    server = spark.sparkContext._gateway._callback_server
    server.server_socket = WithoutDescriptors(server.server_socket)
    heard: list[Event] = []
    drain(file, spark, heard.append)
    assert server.server_socket.refused
    assert [event for event in heard if isinstance(event, Stalled) and "ulimit" in str(event.text)]
    assert [event for event in heard if isinstance(event, Notice) and "ulimit" in event.text]
    assert ids(file) == [0, 1]


def test_batch_that_hangs_is_told_and_given_up(
    session: Any, topics: Any, pipeline_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.1)
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    config = load(pipeline_file(topic)).config
    goes_on, notes = threading.Event(), []

    def hang(event: Event) -> None:
        if isinstance(event, BatchPhase) and event.phase == "stage":
            goes_on.wait(120)
        if isinstance(event, Stalled):
            note = Presence(config.checkpoint).read()
            notes.append(note.facts.stalled if note is not None else None)

    try:
        with pytest.raises(TransientError) as raised:
            run(config, RunOptions(available_now=True, stalled_after=1), hang, session=session)
    finally:
        goes_on.set()
    assert raised.value.code == "BATCH_STALLED" and "in the phase stage" in raised.value.summary
    assert notes and "no progress" in str(notes[0])
    for query in session.streams.active:
        query.stop()
