"""Idle, slow and endless connections to the metrics port and the dashboard: they take no descriptor from the run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.unit.dashboard.pipelines import definition

DESCRIPTORS = 1024
FLOOD = 1100
CLOSED_WITHIN = 8.0
SERVERS = ("metrics", "dashboard")


class Servers:
    """Both servers, in a process that may open `DESCRIPTORS` files."""

    def __init__(self, folder: Path) -> None:
        definition(folder)
        script = Path(__file__).with_name("http_servers.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(DESCRIPTORS), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told = self._line()

    def ask(self) -> dict[str, Any]:
        """How many descriptors the process has open, and whether it can open one more."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def connect(self, server: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.told[server]), timeout=10)

    def get(self, server: str) -> int:
        """The status of the request that each server is for."""
        path = "/metrics" if server == "metrics" else "/api/overview"
        headers = {"Authorization": f"Bearer {self.told['token']}"}
        return requests.get(f"http://127.0.0.1:{self.told[server]}{path}", headers=headers, timeout=15).status_code

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    started = Servers(tmp_path_factory.mktemp("servers"))
    yield started
    started.end()


def await_closed(connection: socket.socket, began: float) -> None:
    """Until the server closes the connection, whatever it says before."""
    connection.settimeout(max(0.1, began + CLOSED_WITHIN - time.monotonic()))
    with suppress(ConnectionError):
        while connection.recv(65536):
            continue


def test_idle_connections_beyond_the_cap_leave_descriptors_and_the_newest_request_is_answered(
    servers: Servers,
) -> None:
    with ExitStack() as idle:
        connections = [idle.enter_context(servers.connect(server)) for server in SERVERS for _ in range(FLOOD)]
        held = servers.ask()
        assert held["can_open"] and held["open"] < DESCRIPTORS / 2, held
        assert [servers.get(server) for server in SERVERS] == [200, 200]
        last = time.monotonic()
        for connection in connections:
            await_closed(connection, last)
    assert servers.ask()["can_open"]


SLOW = {
    "nothing": b"",
    "a head without an end": b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "a body without an end": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
    "a chunk without an end": b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nF",
    "expect": b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("server", SERVERS)
def test_slow_requests_one_byte_at_a_time_are_closed_in_time(servers: Servers, server: str) -> None:
    """All at once, since each of them waits for the server's patience to end."""
    began = time.monotonic()
    with ExitStack() as stack:
        open_ = {name: stack.enter_context(servers.connect(server)) for name in SLOW}
        for name, connection in open_.items():
            connection.sendall(SLOW[name])
            connection.settimeout(0.5 / len(SLOW))
        while open_ and time.monotonic() < began + CLOSED_WITHIN:
            open_ = {name: connection for name, connection in open_.items() if not _is_closed(connection)}
    assert not open_, f"still open after {CLOSED_WITHIN:g} s: {[*open_]}"


def _is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; if not, it gets one byte more."""
    try:
        if not connection.recv(65536):
            return True
    except TimeoutError:
        pass
    except ConnectionError:
        return True
    try:
        connection.sendall(b"a")
    except TimeoutError:
        pass
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("server", SERVERS)
def test_client_that_never_reads_its_answers_is_closed(servers: Servers, server: str) -> None:
    path = "/metrics" if server == "metrics" else "/assets/app.js"
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{servers.told[server]}\r\n\r\n".encode()
    began = time.monotonic()
    with servers.connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        while time.monotonic() < began + 5 * CLOSED_WITHIN:
            try:
                connection.sendall(request * 50)
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("its answers are still kept for it")


def test_closed_connections_leave_no_descriptors(servers: Servers) -> None:
    before = servers.ask()["open"]
    for _ in range(200):
        servers.connect("metrics").close()
    deadline = time.monotonic() + 10
    while servers.ask()["open"] > before + 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
