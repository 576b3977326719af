"""Requests that no client sends: each ends in a status code or a closed connection, in time, and tells nothing."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

import pytest
from tests.services.running import wait_for
from tests.unit.dashboard.pipelines import SECRET, definition

from penstock.dashboard import Dashboard
from penstock.metrics import http_server
from penstock.metrics.prometheus import Exposition

SECONDS = 20.0
HOST = b"Host: 127.0.0.1:{port}\r\n"

# Each is sent as it is, with {port} and {token} filled in; the server may answer with one of these, or close.
REQUESTS: dict[str, tuple[bytes, set[int]]] = {
    "no request at all": (b"\r\n\r\n", {400}),
    "noise": (bytes(range(256)) * 4, {400}),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), {400}),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 405, 421}),
    "a version that is none": (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", {200, 400, 401}),
    "no version": (b"GET /\r\n\r\n", {400}),
    "a line feed in the path": (b"GET /\nX: y HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    "a path of a megabyte": (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {400, 431}),
    "a header of a megabyte": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n", {400, 431}),
    "a hundred thousand headers": (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 100_000 + b"\r\n", {400, 431}),
    "two lengths": (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", {400}),
    "a length and chunks": (
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        {200, 400, 401},
    ),
    "a negative length": (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", {400}),
    "a chunk that is none": (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 401}),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", {400}),
    "a header with a null": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n", {400}),
    "headers that are no text": (
        b"GET / HTTP/1.1\r\n" + HOST + b"Accept: \xff\xfe\r\nCookie: \xff=\xfe\r\nAuthorization: Bearer \xff\r\n\r\n",
        {200, 401},
    ),
    "an upgrade": (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", {200, 401}),
    "a proxy request": (b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", {200, 400, 404, 421}),
    "a tunnel": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n", {400, 405, 421}),
    "a method of its own": (b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n", {405}),
    "POST with a body": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\na=b", {405}),
    "DELETE": (b"DELETE /metrics HTTP/1.1\r\n" + HOST + b"\r\n", {405}),
    "TRACE": (b"TRACE / HTTP/1.1\r\n" + HOST + b"X: echo\r\n\r\n", {405}),
    "a path out of the assets": (b"GET /assets/../../../../etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401, 404}),
    "an escaped path": (b"GET /assets/%2e%2e%2f%2e%2e%2fserving.py HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401, 404}),
    "a double escape": (b"GET /assets/%252e%252e/serving.py HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401, 404}),
    "an absolute asset": (b"GET /assets//etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401, 404}),
    "a null in an asset": (b"GET /assets/app.js%00.css HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401, 404}),
    "a path that is no text": (b"GET /%ff%fe/%c0%ae HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401, 404}),
    "a wrong token": (b"GET /?token=wrong HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401}),
    "an empty token": (b"GET /?token= HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401}),
    "a token that is no text": (b"GET /?token=%ff%fe%ed%a0%80 HTTP/1.1\r\n" + HOST + b"\r\n", {200, 401}),
    "a cookie that is none": (b"GET / HTTP/1.1\r\n" + HOST + b'Cookie: penstock-{port}="\\377;;==\r\n\r\n', {200, 401}),
    "a bearer of nothing": (b"GET /api/overview HTTP/1.1\r\n" + HOST + b"Authorization: Bearer\r\n\r\n", {200, 401}),
    "ten thousand questions": (b"GET /?" + b"a=b&" * 3_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {200, 400, 401}),
    "names that are asked for": (
        b"GET /metrics?" + b"name[]=x&" * 1_500 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        {200, 401},
    ),
    "another host": (b"GET /api/overview HTTP/1.1\r\nHost: evil.example\r\n\r\n", {200, 421}),
    "a thousand requests at once": ((b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n") * 1_000, {200, 401}),
}


class Attacked:
    """A server of this process, at a port."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token

    def send(self, request: bytes) -> bytes:
        """Everything that comes back until the connection is closed; what is over `SECONDS` the caller notices."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            heard = b""
            try:
                connection.sendall(request.replace(b"{port}", str(self.port).encode()))
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    heard += piece
            except OSError:
                pass
            return heard

    def is_well(self) -> bool:
        asked = f"GET /api/overview HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
        return self.send(asked.encode() + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with Dashboard([definition(tmp_path_factory.mktemp("attacked"))]) as served:
        attacked = Attacked(served.port, served.token)
        wait_for(attacked.is_well, "the first look at the pipelines")
        yield attacked


@pytest.fixture(scope="module")
def metrics() -> Iterator[Attacked]:
    exposition = Exposition("orders")
    yield Attacked(exposition.serve("127.0.0.1", 0), "none")
    exposition.close()


@pytest.fixture(params=["metrics", "dashboard"])
def server(request: pytest.FixtureRequest) -> Attacked:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Attacked)
    return found


def check(server: Attacked, request: bytes, allowed: set[int]) -> None:
    began = time.monotonic()
    heard = server.send(request)
    assert time.monotonic() - began < SECONDS
    if heard:
        status = int(heard.split(b" ", 2)[1])
        assert status in allowed, heard[:300]
    for told in (SECRET, server.token, "root:x:", "class Dashboard", "Traceback"):
        assert told.encode() not in heard or server.token == told == "none"


@pytest.mark.parametrize("request_name", REQUESTS)
def test_hostile_request_ends_in_a_status_or_a_close_and_the_server_is_well(
    server: Attacked, request_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    request, allowed = REQUESTS[request_name]
    check(server, request, allowed)
    assert server.is_well()
    # A stranger writes no log.
    assert capfd.readouterr().err == ""


def test_mutated_requests_end_in_a_status_or_a_close(server: Attacked) -> None:
    chance = random.Random(19)
    seeds = [request for request, _ in REQUESTS.values() if len(request) < 2_000]
    for _ in range(300):
        request = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(request) + 1)
            request[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        check(server, bytes(request) + b"\r\n\r\n", {200, 400, 401, 404, 405, 421, 431})
    assert server.is_well()


def test_head_has_a_bound(server: Attacked) -> None:
    """More than a browser sends, and no more than that is read."""
    padding = b"X: " + b"a" * (http_server.MOST_HEAD_BYTES // 2) + b"\r\n"
    fits = server.send(b"GET / HTTP/1.1\r\n" + HOST + padding + b"Connection: close\r\n\r\n")
    assert int(fits.split(b" ", 2)[1]) in (200, 401)
    padding = b"X: " + b"a" * (http_server.MOST_HEAD_BYTES * 64)
    refused = server.send(b"GET / HTTP/1.1\r\n" + HOST + padding)
    assert not refused or int(refused.split(b" ", 2)[1]) in (400, 431)
