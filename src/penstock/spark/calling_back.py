"""The line on which a thread of Spark calls back into Python: its own, and open for as long as the process.

Each start of a query has a new thread on Spark's side, and with it a new line: a socket on each side, and a thread here
that listens. Neither side closes it when the query is over: py4j's keeps it for a thread that is gone.

New lines are accepted by py4j's callback server, a thread that ends silently at its first error, such as a process with
no descriptor left. Spark then waits for ever for an answer: the server is watched, and started again.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

_reviving = threading.Lock()


def revive_callback_server(session: Any) -> bool:
    """Whether py4j's callback server had ended; it listens again at the same socket, to those who wait there too."""
    server = session.sparkContext._gateway.__dict__.get("_callback_server")
    with _reviving:
        if server is None or server.is_shutdown or server.thread is None or server.thread.is_alive():
            return False
        again = threading.Thread(target=server.run, name="py4j-callback-server", daemon=True)
        # A process that cannot start a thread now may be able to when it is looked at next.
        with suppress(RuntimeError):
            again.start()
            server.thread = again
    return True


def line_of(frame: Any) -> Any:
    """In what Spark calls back: the line that it came by; none where there is none."""
    with suppress(AttributeError):
        return frame.sparkSession.sparkContext._gateway._gateway_client.get_thread_connection()
    return None


def close_line(line: Any) -> None:
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
