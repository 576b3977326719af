"""Services as child processes, apart from the terminal, with one log each; their ports on loopback; and files that hold
secrets.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

from penstock.devstack.state import Service
from penstock.errors import MissingError


def put(file: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that from the start only its owner can read, unless `mode` says otherwise."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(text)


# Below the range from which the system gives ports to outgoing connections: a client that keeps trying a broker
# that is down could otherwise be given that very port, connect to itself, and keep the broker from coming back.
_CANDIDATES = range(20000, 30000)


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Different ports that nobody listens on now, none of them in `taken`."""
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
        # A session of its own: a Ctrl-C at the terminal reaches Penstock alone, which then ends the services.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=service.folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def log_context(log: Path) -> dict[str, object]:
    """Where a service's log is and how it ends, for the error about a service that did not come up."""
    return {"log": log, "its last lines": "".join(f"\n    {line}" for line in _last_lines(log))}


def _last_lines(log: Path, count: int = 8) -> list[str]:
    """The last lines that say something, each cut to a readable length."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    telling = [line[:200] for line in lines if line.strip() and not line.lstrip().startswith("at ")]
    return telling[-count:]
