"""The lock on a checkpoint: one holder, told by name, freed by the kernel when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.checkpoint import checkpoint_lock
from penstock.errors import MissingError

HOLD = """
import sys, time
from penstock.checkpoint import checkpoint_lock
with checkpoint_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_held_refuses_a_second_holder_and_names_the_first(tmp_path: Path) -> None:
    with checkpoint_lock(str(tmp_path)), pytest.raises(MissingError) as raised, checkpoint_lock(str(tmp_path)):
        pass
    assert raised.value.code == "CHECKPOINT_IN_USE"
    assert raised.value.context["held by"].startswith(f"process {os.getpid()} on ")


def test_lock_given_back_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with checkpoint_lock(f"file://{tmp_path}/new"):
            assert (tmp_path / "new/.penstock.lock").exists()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MissingError), checkpoint_lock(str(tmp_path)):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with checkpoint_lock(str(tmp_path)):
            pass


def test_lock_where_nothing_keeps_two_runs_apart_is_refused() -> None:
    with pytest.raises(MissingError) as raised, checkpoint_lock("sftp://host/checkpoints/orders"):
        pass
    assert raised.value.code == "CHECKPOINT_NOT_LOCKABLE"
    assert "sftp://host/checkpoints/orders" in raised.value.summary
