"""The lease of a checkpoint on S3: one holder, taken over only from one who is gone, and known to be lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.services.running import wait_for

from penstock.checkpoint import checkpoint_lock, lock
from penstock.checkpoint.lock import LEASE_NOTE, Claim, held_by
from penstock.checkpoint.presence import find_run
from penstock.errors import MissingError, TerminalError, TransientError

_HOLDER = """
import sys, time
from penstock.checkpoint import checkpoint_lock
from penstock.storage import Storage
with checkpoint_lock(sys.argv[1], Storage(*sys.argv[2:6])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def checkpoint(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.2)
    yield f"s3://{s3.bucket()}/checkpoint"
    s3.calm()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(lock, "_MARGIN_SECONDS", 1.0)


def _elsewhere(**more: Any) -> Claim:
    """The claim of a process on another machine."""
    return replace(Claim.mine(), who="process 7 on elsewhere", host="another system", **more)


def _note(s3: Any, checkpoint: str) -> tuple[Any, str]:
    fs, root = s3.storage.filesystem(checkpoint)
    return fs, f"{root}/{LEASE_NOTE}"


def test_lock_held_here_is_refused_at_once_and_free_after(s3: Any, checkpoint: str) -> None:
    with checkpoint_lock(checkpoint, s3.storage):
        holder = held_by(checkpoint, s3.storage)
        assert holder is not None and holder.startswith("process ")
        assert find_run(checkpoint, s3.storage).running
        began = time.monotonic()
        with pytest.raises(MissingError) as raised, checkpoint_lock(checkpoint, s3.storage):
            pass
        assert raised.value.code == "CHECKPOINT_IN_USE"
        assert time.monotonic() - began < 10
    assert held_by(checkpoint, s3.storage) is None
    with checkpoint_lock(checkpoint, s3.storage) as hold:
        hold.check()


def test_lock_of_two_at_once_is_had_by_one(s3: Any, checkpoint: str) -> None:
    held, refused, go = [], [], threading.Barrier(4)

    def take() -> None:
        go.wait()
        try:
            with checkpoint_lock(checkpoint, s3.storage):
                held.append(1)
                wait_for(lambda: len(held) + len(refused) == 4, "the others", 20)
        except MissingError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), refused) == (1, ["CHECKPOINT_IN_USE"] * 3)


def test_lock_of_a_killed_process_here_is_taken_at_once(s3: Any, checkpoint: str) -> None:
    way_in = (s3.endpoint, s3.storage.region, s3.storage.access_key, s3.storage.secret_key)
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, checkpoint, *way_in], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    process.kill()
    process.wait()
    began = time.monotonic()
    with checkpoint_lock(checkpoint, s3.storage):
        assert time.monotonic() - began < 10


def test_lock_of_a_silent_machine_is_taken_when_it_has_run_out(s3: Any, checkpoint: str, short: None) -> None:
    fs, note = _note(s3, checkpoint)
    fs.put_new(note, _elsewhere().to_bytes())
    told: list[str] = []
    began = time.monotonic()
    with checkpoint_lock(checkpoint, s3.storage, told.append):
        assert 1.5 < time.monotonic() - began < 12
    assert ["process 7 on elsewhere" in line for line in told] == [True]


def test_lock_of_a_machine_that_lives_is_refused(s3: Any, checkpoint: str, short: None) -> None:
    fs, note = _note(s3, checkpoint)
    mark, over = fs.put_new(note, _elsewhere().to_bytes()), threading.Event()

    def beat() -> None:
        nonlocal mark
        number = 0
        while not over.wait(0.5):
            number += 1
            mark = fs.put_over(note, _elsewhere(beat=number).to_bytes(), mark)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(MissingError) as raised, checkpoint_lock(checkpoint, s3.storage):
            pass
        assert raised.value.code == "CHECKPOINT_IN_USE"
        assert raised.value.context["held by"] == "process 7 on elsewhere"
    finally:
        over.set()
        thread.join()


def test_lease_taken_over_is_lost_and_nothing_more_may_be_committed(s3: Any, checkpoint: str) -> None:
    fs, note = _note(s3, checkpoint)
    with checkpoint_lock(checkpoint, s3.storage) as hold:
        fs.pipe_file(note, _elsewhere().to_bytes())
        wait_for(lambda: hold.lost() is not None, "the loss", 20)
        with pytest.raises(TerminalError) as raised:
            hold.check()
        assert raised.value.code == "CHECKPOINT_LOST"
        assert raised.value.context["taken by"] == "process 7 on elsewhere"
    assert held_by(checkpoint, s3.storage) == "process 7 on elsewhere"


def test_lease_that_cannot_be_renewed_stops_commits_until_it_is(s3: Any, checkpoint: str, short: None) -> None:
    def late() -> bool:
        try:
            hold.check()
        except TransientError as error:
            return error.code == "CHECKPOINT_LEASE_LATE"
        return False

    with checkpoint_lock(checkpoint, s3.storage) as hold:
        s3.fault("error", method="PUT", path=LEASE_NOTE, times=1000)
        wait_for(late, "the lease to be late", 20)
        s3.calm()
        wait_for(lambda: not late(), "the lease to be renewed", 20)
        assert hold.lost() is None


def test_lease_whose_answers_are_lost_is_kept(s3: Any, checkpoint: str) -> None:
    fs, note = _note(s3, checkpoint)

    def await_renewal() -> None:
        before = fs.read(note).mark
        wait_for(lambda: fs.read(note).mark != before, "a renewal", 20)

    with checkpoint_lock(checkpoint, s3.storage) as hold:
        s3.fault("swallow", method="PUT", path=LEASE_NOTE, times=3)
        for _ in range(5):  # of which three are not answered
            await_renewal()
        assert hold.lost() is None
        hold.check()
