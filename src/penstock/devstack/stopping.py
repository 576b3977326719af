"""Taking a stack down: only the processes that its process file names, and only the folders that it made."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from penstock.devstack.state import Node, load, locked, process_file, save

_PATIENCE_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Stopped:
    """What taking a stack down came to."""

    ended: Sequence[Node]
    killed: Sequence[Node]
    gone_before: Sequence[Node]
    data_removed: bool


def stop_stack(folder: Path, *, keep_data: bool = False) -> Stopped:
    """End the brokers of the stack in `folder`, and remove their data unless it is to be kept."""
    if not folder.is_dir():
        return Stopped((), (), (), data_removed=False)
    with locked(folder):
        stack = load(folder)
        if stack is None:
            return Stopped((), (), (), data_removed=False)
        running = [node for node in stack.nodes if node.alive]
        killed = end(running)
        if keep_data:
            save(folder, replace(stack, nodes=tuple(node.without_process() for node in stack.nodes)))
        else:
            _remove(folder, stack.nodes)
    return Stopped(
        ended=[node for node in running if node not in killed],
        killed=killed,
        gone_before=[node for node in stack.nodes if node.pid and node not in running],
        data_removed=not keep_data,
    )


def _remove(folder: Path, nodes: Sequence[Node]) -> None:
    """Remove what the stack wrote; the folder itself may be one that the user has other things in."""
    for node in nodes:
        shutil.rmtree(node.folder, ignore_errors=True)
    process_file(folder).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def end(nodes: Sequence[Node]) -> list[Node]:
    """End these brokers: asked first, killed when that takes too long. Returns the killed ones."""
    processes = {node: process for node in nodes if (process := node.process())}
    for process in processes.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(list(processes.values()), timeout=_PATIENCE_SECONDS)
    killed = [node for node, process in processes.items() if process in stubborn]
    kill(killed)
    return killed


def kill(nodes: Sequence[Node]) -> None:
    """End these brokers at once, as a power cut would."""
    processes = [process for node in nodes if (process := node.process())]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)
