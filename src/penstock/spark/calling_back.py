"""The line on which a thread of Spark calls back into Python: its own, and open for as long as the process.

Each start of a query has a new thread on Spark's side, and with it a new line: a socket, and a thread here that listens
on it. Neither side closes it when the query is over.
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
    """When nobody will call by it any more: end it, and the thread that listens on it."""
    with suppress(OSError, AttributeError):
        line.socket.shutdown(socket.SHUT_RDWR)
