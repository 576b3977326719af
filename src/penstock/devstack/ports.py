"""Ports on loopback: free ones, and who holds one that is not."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

import psutil

from penstock.errors import MissingError

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
