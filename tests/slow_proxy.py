"""A server that is slow to answer: a door on loopback in front of a real one, through which every answer is late."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_CHUNK = 65_536


@contextlib.contextmanager
def slowed(url: str, seconds: float) -> Iterator[str]:
    """The same URL at another port, where an answer begins so many seconds later than it would."""
    real = urlsplit(url)
    assert real.hostname is not None and real.port is not None
    target = real.hostname, real.port

    class Door(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with socket.create_connection(target) as server:
                asked = threading.Event()
                back = threading.Thread(target=_answer, args=(server, client, asked, seconds), daemon=True)
                back.start()
                with contextlib.suppress(OSError):
                    while some := client.recv(_CHUNK):
                        asked.set()
                        server.sendall(some)
                    server.shutdown(socket.SHUT_WR)
                back.join(30)

    class Doors(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True
        block_on_close = False

    with Doors(("127.0.0.1", 0), Door) as doors:
        threading.Thread(target=doors.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield real._replace(netloc=f"127.0.0.1:{doors.server_address[1]}").geturl()
        finally:
            doors.shutdown()


def _answer(server: socket.socket, client: socket.socket, asked: threading.Event, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while some := server.recv(_CHUNK):
            # Once for each question, however many pieces the answer comes in.
            if asked.is_set():
                asked.clear()
                time.sleep(seconds)
            client.sendall(some)
        client.shutdown(socket.SHUT_WR)
