"""Services as child processes, apart from the terminal, with one log each: started, waited for, and ended; their ports
on loopback; and files that hold secrets.

What is ended are only the processes that the process file names, what is removed only the folders that were made.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import requests

from penstock.devstack.state import Node, Registry, Service, is_secure, load, locked, process_file, save, secure_folder
from penstock.errors import MissingError

S = TypeVar("S", bound=Service)


def put(file: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that from the start only its owner can read, unless `mode` says otherwise."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(text)


# Below the range from which the system gives ports to outgoing connections: a client that keeps trying a broker
# that is down could otherwise be given that very port, connect to itself, and keep the broker from coming back.
_CANDIDATES = range(20000, 30000)


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Distinct ports on which nothing listens now, none of them in `taken`."""
    found: list[int] = []
    for port in random.sample(_CANDIDATES, len(_CANDIDATES)):
        if port not in taken and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise MissingError("PORT_TAKEN", f"looking for {count} free ports between 20000 and 30000: there are none")


def is_free(port: int) -> bool:
    """Whether a service could listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the services do: connections that are closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def refuse_taken(port: int, what: str = "a broker", option: str = "--port") -> None:
    """Raise where the port that `what` is to have is taken, with the process that has it where the system tells."""
    if is_free(port):
        return
    raise MissingError(
        "PORT_TAKEN",
        f"starting {what}: port {port} is taken",
        context={"held by": _holder(port)},
        hint=f"choose another one: penstock dev up {option} PORT",
    )


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return "a process that this user may not see"


def spawn(
    command: list[str], service: Service, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in the service's folder, with its log for whatever it prints; `environment` is added to ours."""
    service.folder.mkdir(parents=True, exist_ok=True)
    with service.log.open("ab") as log:
        # A session of its own: a Ctrl-C at the terminal only reaches Penstock, which then stops the services.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=service.folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def wait_until_ready(
    first: Service,
    children: Mapping[S, subprocess.Popen[bytes]],
    ready: Callable[[], bool],
    seconds: float,
    late: str,
) -> None:
    """Wait until services that were just started are `ready`.

    Raise if one of them ends before, or if it takes too long, with the log of the `first`.
    """
    deadline = time.monotonic() + seconds
    while True:
        for service, child in children.items():
            if (status := child.poll()) is not None:
                raise not_started(service, f"it ended with status {status}")
        if ready():
            return
        if time.monotonic() > deadline:
            raise not_started(first, f"{late} within {seconds} seconds")
        time.sleep(0.1)


def answer_of(url: str, trusted: str | None = None) -> requests.Response | None:
    """The response of a service on this machine; none if nothing answers."""
    with requests.Session() as session:
        # A proxy of the environment has no way to this machine's loopback.
        session.trust_env = False
        try:
            return session.get(url, timeout=5, verify=trusted)
        except requests.RequestException:
            return None


def stack_differs(doing: str, there: str, wanted: str) -> MissingError:
    """The error for a folder with another stack than the wanted one."""
    return MissingError(
        "DEV_STACK_DIFFERS",
        f"{doing}: there is already another one",
        context={"there": there, "wanted": wanted},
        hint="take the stack down first, with its data: penstock dev down\nor name another folder: --dir DIR",
    )


def not_started(service: Service, what: str) -> MissingError:
    """The error for a service that ended, or never came up, with the end of its log."""
    last_lines = "".join(f"\n    {line}" for line in _last_lines(service.log))
    context = {"log": service.log, "its last lines": last_lines}
    match service:
        case Node():
            return MissingError(
                "BROKER_NOT_STARTED",
                f"starting broker {service.id} on port {service.port}: {what}",
                context=context,
                hint="everything that was started has been stopped; `penstock dev down` removes the data as well",
            )
        case Registry():
            return MissingError(
                "REGISTRY_NOT_STARTED",
                f"starting the schema registry on port {service.port}: {what}",
                context=context,
                hint="everything that was started has been stopped; `penstock dev down` removes the data as well",
            )
    return MissingError(
        "SPARK_CLUSTER_NOT_STARTED",
        f"starting {service.folder.name} on port {service.port}: {what}",
        context=context,
        hint="everything that was started has been stopped; `penstock dev down` removes the data as well",
    )


def _last_lines(log: Path, count: int = 8) -> list[str]:
    """The last lines that are not blank or part of a stack trace, shortened."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    lines = [line[:200] for line in lines if line.strip() and not line.lstrip().startswith("at ")]
    return lines[-count:]


_TERMINATE_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of taking a stack down."""

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
            save(folder, stack.without_ended())
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
    _, stubborn = psutil.wait_procs(list(processes.values()), timeout=_TERMINATE_SECONDS)
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
