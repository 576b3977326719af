"""The HTTP server that the metrics port and the dashboard share: an ASGI application in, bounded connections out.

Anybody who reaches the port may open connections, so these are bounded, and none is kept open for an idle client:

- A request, with its body, arrives within `REQUEST_SECONDS` of its connection or of the answer before it, however its
  bytes are spread over that time.
- A client reads the response: one that makes no progress for `WRITE_SECONDS` is cut off.
- A server has `MOST_CONNECTIONS`, and all servers of a process together an eighth of the descriptors that it may open.
  Beyond that a new connection takes the place of the one that has waited longest without a request. A scrape sends its
  request at once, so it is answered during a flood of idle connections too. If all are being answered, the new one is
  closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
WRITE_SECONDS = 10.0
MOST_CONNECTIONS = 64
MOST_HEAD_BYTES = 16 * 1024
_ALWAYS = 4
"""Connections that a server may have even if the other servers of the process have used up the rest."""
_ACCEPTED_AT_ONCE = 16
"""asyncio accepts as many connections as its backlog before it looks at the first of them."""
_QUEUE = 128
"""Connections that the kernel keeps for the server: they take no descriptor."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing the socket sends a RST."""
_GRACE_SECONDS = 1
_START_SECONDS = 5.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; 0 takes a free port. Raises `OSError`."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_QUEUE)
    except BaseException:
        listener.close()
        raise
    return listener


class HttpServer:
    """Serves an application at a bound socket, from a thread of its own, until it is closed."""

    def __init__(self, listener: socket.socket, make_app: Callable[[], Any], name: str) -> None:
        """`make_app` is called in the thread, with its event loop running."""
        self.port = int(listener.getsockname()[1])
        self._listener, self._make_app = listener, make_app
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait(_START_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self._thread.is_alive()

    def close(self, before: Callable[[], None] = lambda: None) -> None:
        """Stop serving; `before` is first called in the thread, to end endless responses."""
        if self._server is None or self._loop is None:
            return
        self._server.should_exit = True
        try:
            self._loop.call_soon_threadsafe(before)
        except RuntimeError:
            return
        self._thread.join(_START_SECONDS)

    def _run(self) -> None:
        with self._listener:
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        # Malformed requests must not fill the run's log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            self._make_app(),
            lifespan="off",
            ws="none",
            loop="asyncio",
            http=partial(_BoundedConnection, _Admission()),  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_ACCEPTED_AT_ONCE,
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._loop, self._server = asyncio.get_running_loop(), _Server(config)
        self._started.set()
        await self._server.serve(sockets=[self._listener])


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            # asyncio has set the kernel's queue to its own backlog.
            one.listen(_QUEUE)


class _Admission:
    """Limits the connections of one server."""

    _lock = threading.Lock()
    _in_process = 0

    def __init__(self) -> None:
        self._open = 0
        self._waiting: dict[_BoundedConnection, None] = {}

    def enter(self, connection: _BoundedConnection) -> None:
        """A new connection: if there are too many, it or the one that waited longest is closed."""
        self._count(1)
        if self._is_full():
            longest = next(iter(self._waiting), connection)
            self._waiting.pop(longest, None)
            longest.abort()

    def leave(self, connection: _BoundedConnection) -> None:
        """A connection is closed."""
        self._count(-1)
        self._waiting.pop(connection, None)

    def wait(self, connection: _BoundedConnection, *, waits: bool) -> None:
        """Whether a connection waits for a request."""
        self._waiting.pop(connection, None)
        if waits:
            self._waiting[connection] = None

    def _count(self, more: int) -> None:
        self._open += more
        with _Admission._lock:
            _Admission._in_process += more

    def _is_full(self) -> bool:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        together = soft // 8 if soft != resource.RLIM_INFINITY else MOST_CONNECTIONS**2
        return self._open > MOST_CONNECTIONS or (self._open > _ALWAYS and _Admission._in_process > together)


class _BoundedConnection(H11Protocol):
    """uvicorn's connection, with a timeout for every wait for the client."""

    def __init__(self, admission: _Admission, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._admission = admission
        self._request_by: asyncio.TimerHandle | None = None
        self._read_by: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._admission.enter(self)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.leave(self)
        self._request_by = _cancelled(self._request_by)
        self._read_by = _cancelled(self._read_by)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            # The request turned out to be malformed while it was being answered.
            self.abort()
        if self._is_answering:
            self._request_by = _cancelled(self._request_by)
            self._admission.wait(self, waits=False)

    def on_response_complete(self) -> None:
        # Also if the connection is about to close: it stays open until the client has read the rest.
        self._await_request()
        super().on_response_complete()
        if self._is_answering:
            self._request_by = _cancelled(self._request_by)
            self._admission.wait(self, waits=False)

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.abort()

    def timeout_keep_alive_handler(self) -> None:
        self.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_by = self._read_by or self.loop.call_later(WRITE_SECONDS, self.abort)

    def resume_writing(self) -> None:
        self._read_by = _cancelled(self._read_by)
        super().resume_writing()

    def abort(self) -> None:
        """Reset the connection. Otherwise the kernel would keep unsent data for a client that never reads."""
        with suppress(OSError, AttributeError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        """Whether a whole request has arrived and its response is not complete."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _await_request(self) -> None:
        self._request_by = _cancelled(self._request_by)
        self._request_by = self.loop.call_later(REQUEST_SECONDS, self.abort)
        self._admission.wait(self, waits=not self.transport.is_closing())


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
