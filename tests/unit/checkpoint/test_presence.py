"""The notes of a run: what others read of it, and how they ask it to stop. Lock and note tell whether it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.checkpoint.lock import checkpoint_lock, held_by
from penstock.checkpoint.presence import RUN_NOTE, Presence, RunFacts, find_run
from penstock.errors import MissingError

FACTS = RunFacts(pipeline="orders", lane="direct", doing="running", batches=3, batch_id=412, lag=70)
RUN = """
import sys
from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.presence import Presence, RunFacts
with checkpoint_lock(sys.argv[1]):
    Presence(sys.argv[1]).begin(RunFacts(pipeline="orders"))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("place", ["{tmp}/new/checkpoint", "file://{tmp}/checkpoint", "memory://presence/checkpoint"])
def test_presence_of_a_run_is_read_by_others_wherever_the_checkpoint_is(tmp_path: Path, place: str) -> None:
    path = place.format(tmp=tmp_path)
    run, others = Presence(path), Presence(path)
    assert others.read() is None
    run.begin(RunFacts(pipeline="orders"))
    run.beat(FACTS)
    note = others.read()
    assert note is not None
    assert (note.pid, note.host, note.ended_at, note.facts) == (os.getpid(), socket.gethostname(), None, FACTS)
    run.end("DATA_LOSS")
    note = others.read()
    assert note is not None
    assert (note.error, note.facts.batch_id) == ("DATA_LOSS", 412)
    assert note.ended_at is not None


def test_presence_stop_asked_before_the_run_began_is_not_asked_of_it(tmp_path: Path) -> None:
    run, others = Presence(str(tmp_path)), Presence(str(tmp_path))
    others.ask_stop("somebody")
    run.begin(FACTS)
    assert not run.stop_asked()
    others.ask_stop("somebody")
    assert run.stop_asked()
    run.end()
    assert not run.stop_asked()


def test_presence_attended_run_hears_of_a_stop_once(tmp_path: Path) -> None:
    run, heard = Presence(str(tmp_path)), threading.Semaphore(0)
    run.begin(FACTS)
    with run.heartbeat(lambda: heard.release()):
        assert not heard.acquire(timeout=0.6)
        Presence(str(tmp_path)).ask_stop("somebody")
        assert heard.acquire(timeout=2)
        assert not heard.acquire(timeout=0.7)


def test_presence_whose_folder_is_gone_does_not_raise_into_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    run = Presence(str(folder))
    run.begin(FACTS)
    (folder / RUN_NOTE).unlink()
    folder.rmdir()
    folder.write_text("in the way")
    run.beat(FACTS)
    assert not run.stop_asked()
    run.end()
    with pytest.raises(MissingError) as raised:
        Presence(str(folder)).begin(FACTS)
    assert raised.value.code == "CHECKPOINT_UNWRITABLE"


def test_presence_read_while_it_is_written_is_always_whole(tmp_path: Path) -> None:
    run, others, over = Presence(str(tmp_path)), Presence(str(tmp_path)), threading.Event()
    run.begin(FACTS)

    def beat() -> None:
        while not over.is_set():
            run.beat(FACTS)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        notes = [others.read() for _ in range(300)]
    finally:
        over.set()
        thread.join()
    assert all(note is not None and note.facts == FACTS for note in notes)
    assert [file.name for file in tmp_path.iterdir()] == [RUN_NOTE]


def test_held_by_names_the_holder_and_takes_nothing(tmp_path: Path) -> None:
    assert held_by(str(tmp_path)) is None
    with checkpoint_lock(str(tmp_path)):
        assert held_by(str(tmp_path)) == f"process {os.getpid()} on {socket.gethostname()}"
    assert held_by(str(tmp_path)) is None


def test_lock_is_given_to_a_run_while_others_look_at_it(tmp_path: Path) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            held_by(str(tmp_path))

    with checkpoint_lock(str(tmp_path)):
        pass
    lookers = [threading.Thread(target=look) for _ in range(2)]
    for thread in lookers:
        thread.start()
    try:
        for _ in range(30):
            with checkpoint_lock(str(tmp_path)):
                pass
    finally:
        over.set()
        for thread in lookers:
            thread.join()


def test_run_is_found_running_then_stopped_or_failed_by_its_note(tmp_path: Path) -> None:
    path, run = str(tmp_path), Presence(str(tmp_path))
    assert find_run(path).state == "none"
    with checkpoint_lock(path):
        assert (find_run(path).state, find_run(path).note) == ("running", None)
        run.begin(FACTS)
        found = find_run(path)
        assert found.running and found.note is not None and found.note.facts == FACTS
        run.end()
    assert find_run(path).state == "stopped"
    with checkpoint_lock(path):
        run = Presence(path)
        run.begin(FACTS)
        run.end("DATA_LOSS")
    assert find_run(path).state == "failed"


def test_run_killed_on_this_host_is_found_killed_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        found = find_run(str(tmp_path))
        assert (found.state, found.holder) == ("running", f"process {process.pid} on {socket.gethostname()}")
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = find_run(str(tmp_path))
    assert (found.state, found.note and found.note.pid) == ("killed", process.pid)


@pytest.mark.parametrize(("age", "state"), [(5, "running"), (40, "silent")])
def test_run_on_another_host_is_judged_by_the_age_of_its_note(tmp_path: Path, age: int, state: str) -> None:
    at = datetime.now(UTC) - timedelta(seconds=age)
    body = {"pid": 7, "host": "elsewhere", "started_at": "2026-01-31T08:00:00Z", "at": at.isoformat(), "new": "key"}
    (tmp_path / RUN_NOTE).write_text(json.dumps(body))
    found = find_run(str(tmp_path))
    assert (found.state, found.note and found.note.who) == (state, "process 7 on elsewhere")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\x00\xff"])
def test_presence_note_that_is_none_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN_NOTE).write_text(text)
    assert Presence(str(tmp_path)).read() is None
    assert find_run(str(tmp_path)).state == "none"
