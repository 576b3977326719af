"""Taking a stack down: only the processes that its process file names, and only the folders that it made."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from penstock.devstack.state import Service, is_secure, load, locked, process_file, save, secure_folder

_PATIENCE_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Stopped:
    """What taking a stack down came to."""

    ended: Sequence[Service]
    killed: Sequence[Service]
    gone_before: Sequence[Service]
    data_removed: bool


def stop_stack(folder: Path, *, keep_data: bool = False) -> Stopped:
    """End the services of the stack in `folder`, and remove their data unless it is to be kept."""
    if not folder.is_dir():
        return Stopped((), (), (), data_removed=False)
    with locked(folder):
        stack = load(folder)
        if stack is None:
            return Stopped((), (), (), data_removed=False)
        running = [service for service in stack.services if service.alive]
        killed = end(running)
        if keep_data:
            idle = tuple(node.without_process() for node in stack.nodes)
            registry = stack.registry and stack.registry.without_process()
            spark = stack.spark and stack.spark.without_ended()
            save(folder, replace(stack, nodes=idle, registry=registry, spark=spark))
        else:
            _remove(folder, stack.services)
    return Stopped(
        ended=[service for service in running if service not in killed],
        killed=killed,
        gone_before=[service for service in stack.services if service.pid and service not in running],
        data_removed=not keep_data,
    )


def _remove(folder: Path, services: Sequence[Service]) -> None:
    """Remove what the stack wrote; the folder itself may be one that the user has other things in."""
    for service in services:
        shutil.rmtree(service.folder, ignore_errors=True)
    if is_secure(folder):
        shutil.rmtree(secure_folder(folder), ignore_errors=True)
    process_file(folder).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def end(services: Sequence[Service]) -> list[Service]:
    """End these services: asked first, killed when that takes too long. Returns the killed ones."""
    processes = {service: process for service in services if (process := service.process())}
    for process in processes.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(list(processes.values()), timeout=_PATIENCE_SECONDS)
    killed = [service for service, process in processes.items() if process in stubborn]
    kill(killed)
    return killed


def kill(services: Sequence[Service]) -> None:
    """End these services at once, as a power cut would."""
    processes = [process for service in services if (process := service.process())]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)
