"""The line on which a thread of Spark calls back into Python: its own, and open for as long as the process.

Each start of a query has a new thread on Spark's side, and with it a new line: a socket on each side, and a thread here
that listens. Neither side closes it when the query is over: py4j's keeps it for a thread that is gone.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any


def line_of(frame: Any) -> Any:
    """In what Spark calls back: the line that it came by; none where there is none."""
    with suppress(AttributeError):
        return frame.sparkSession.sparkContext._gateway._gateway_client.get_thread_connection()
    return None


def hang_up(line: Any) -> None:
    """When nobody will call by it any more: end it on both sides, and the thread that listens on it."""
    from py4j.protocol import Py4JError

    with suppress(OSError, AttributeError, Py4JError):
        at = line.socket.getpeername()[1]
        line.socket.shutdown(socket.SHUT_RDWR)
        _hang_up_there(line.java_client, at)


def _hang_up_there(client: Any, port: int) -> None:
    """The other side of a line. Lines that nobody is using are in a queue; who changes it holds its lock."""
    from py4j.java_gateway import JavaObject

    caller = JavaObject("GATEWAY_SERVER", client).getCallbackClient()
    lock, idle = (_held_by(caller, name) for name in ("lock", "connections"))
    lock.lock()
    try:
        for line in [one for one in idle.toArray() if one.getSocket().getLocalPort() == port]:
            idle.remove(line)
            line.shutdown()
    finally:
        lock.unlock()


def _held_by(caller: Any, name: str) -> Any:
    field = caller.getClass().getSuperclass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(caller)
