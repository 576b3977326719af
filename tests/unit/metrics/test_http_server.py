"""The bounds of the server that the metrics port and the dashboard share; `tests/hostile` attacks both."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from penstock.metrics import http_server
from penstock.metrics.http_server import HttpServer, bind


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture
def servers() -> Iterator[list[HttpServer]]:
    made = [HttpServer(bind("127.0.0.1", 0), lambda: hello, "test-web") for _ in range(3)]
    yield made
    for server in made:
        server.close()
        assert not server.alive


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def is_closed(connection: socket.socket, within: float) -> bool:
    connection.settimeout(within)
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_bounds_are_seconds_and_few_connections() -> None:
    assert 1 <= http_server.REQUEST_SECONDS <= 10 and 1 <= http_server.WRITE_SECONDS <= 10
    assert http_server.MOST_CONNECTIONS <= 64 and http_server.MOST_HEAD_BYTES <= 16 * 1024


def test_connection_beyond_the_cap_takes_the_place_of_the_one_that_waits_longest(servers: list[HttpServer]) -> None:
    with ExitStack() as open_ones:
        made = [open_ones.enter_context(connect(servers[0])) for _ in range(http_server.MOST_CONNECTIONS + 1)]
        assert is_closed(made[0], 5)
        assert not is_closed(made[1], 0.2) and not is_closed(made[-1], 0.2)
        assert requests.get(f"http://127.0.0.1:{servers[0].port}/", timeout=5).text == "hi"


def test_servers_of_a_process_share_an_eighth_of_its_descriptors(
    servers: list[HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (80, 80))
    with ExitStack() as open_ones:
        flood = [open_ones.enter_context(connect(servers[0])) for _ in range(30)]
        deadline = time.monotonic() + 5
        while (closed := sum(is_closed(one, 0.01) for one in flood)) < 20:
            assert time.monotonic() < deadline, closed
        # The others still answer, each with a few connections at once.
        for server in servers[1:]:
            for _ in range(3):
                open_ones.enter_context(connect(server))
            assert requests.get(f"http://127.0.0.1:{server.port}/", timeout=5).text == "hi"


def test_port_at_once_free_after_close(servers: list[HttpServer]) -> None:
    port = servers[0].port
    servers[0].close()
    with bind("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port
