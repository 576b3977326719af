"""Answers of a registry that is hostile, or is none: each ends in an error with a code, soon and in little memory."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.hostile.bounds import bounded

from penstock.errors import PenstockError
from penstock.registry import RegistryClient, RegistrySettings


def _referring(*references: Any) -> bytes:
    return json.dumps({"schema": "x", "id": 1, "version": 1, "references": references}).encode()


ANSWERS: dict[str, Callable[[], tuple[int, bytes, dict[str, str]]]] = {
    "nothing": lambda: (200, b"", {}),
    "no JSON": lambda: (200, b"<html>", {}),
    "a number of 5 MB": lambda: (200, b'{"schema": "x", "id": ' + b"9" * 5_000_000 + b"}", {}),
    "nested without end": lambda: (200, b"[" * 1_000_000, {}),
    "20 MiB": lambda: (200, b'{"schema": "' + b"a" * (20 << 20) + b'"}', {}),
    "a gzip bomb": lambda: (200, gzip.compress(b'{"schema": "' + b"a" * (200 << 20), 6), {"Content-Encoding": "gzip"}),
    "not gzip": lambda: (200, b"no gzip", {"Content-Encoding": "gzip"}),
    "a redirect to a file": lambda: (302, b"", {"Location": "file:///etc/passwd"}),
    "a redirect to itself": lambda: (307, b"", {"Location": "/"}),
    "a redirect elsewhere": lambda: (301, b"", {"Location": "http://169.254.169.254/latest"}),
    "a schema that is an object": lambda: (200, b'{"schema": {"type": "int"}}', {}),
    "half a character": lambda: (200, b'{"schema": "\\ud800"}', {}),
    "references that are a number": lambda: (200, b'{"schema": "x", "references": 5}', {}),
    "a version without end": lambda: (
        200,
        b'{"schema": "x", "references": [{"name": "n", "subject": "s", "version": 1e999}]}',
        {},
    ),
    "a reference to itself": lambda: (200, _referring({"name": "n", "subject": "s", "version": 1}), {}),
    "many references": lambda: (
        200,
        _referring(*({"name": f"n{n}", "subject": "s", "version": n} for n in range(5_000))),
        {},
    ),
    "a kind that is a list": lambda: (200, b'{"schema": "x", "schemaType": ["AVRO"]}', {}),
    "a list": lambda: (200, b"[]", {}),
    "an error of no registry": lambda: (418, b"{}", {}),
    "an error whose code is text": lambda: (404, b'{"error_code": "40403"}', {}),
    "an error of 5 MB": lambda: (404, b'{"error_code": 40499, "message": "' + b"a" * 5_000_000 + b'"}', {}),
    "informational": lambda: (199, b"{}", {}),
}


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body, headers = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_which: Any) -> None:
        """A client that closes the connection is what some answers are about."""


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with _Server(("127.0.0.1", 0), _Answering) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_answer_ends_with_a_code(server: Any, name: str) -> None:
    server.answer = ANSWERS[name]()
    client = RegistryClient(RegistrySettings(f"http://127.0.0.1:{server.server_address[1]}", timeout=2, retries=1))
    for ask in (client.schema, client.subjects, lambda _: client.latest("s"), lambda _: client.versions("s")):
        with bounded(name, growth_mib=150):
            try:
                found = ask(1)
            except PenstockError as error:
                assert error.code.startswith("REGISTRY_") and len(str(error)) < 2_000
            else:
                # Nothing is known by it: no schema, no subjects, no versions.
                assert not found
    client.close()
