"""A real HTTP server on a free port that keeps what it is sent, and answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = tuple[str, dict[str, str], bytes]


class Receiver:
    """`taken` are the requests that were answered with 2xx, `refused` the others: path, headers, body."""

    def __init__(self, port: int = 0, answers: Iterator[int] | None = None) -> None:
        self.taken: list[Request] = []
        self.refused: list[Request] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = next(answers, 200) if answers is not None else 200
                kept = receiver.taken if 200 <= status < 300 else receiver.refused
                headers = {name.lower(): value for name, value in self.headers.items()}
                kept.append((self.path, headers, body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.taken]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiving(port: int = 0, answers: Iterator[int] | None = None) -> Iterator[Receiver]:
    receiver = Receiver(port, answers)
    try:
        yield receiver
    finally:
        receiver.stop()
