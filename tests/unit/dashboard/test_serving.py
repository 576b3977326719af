"""The server itself: who is let in, what is answered, how streams live and end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.unit.dashboard.pipelines import (
    SECRET,
    ago,
    batch,
    checkpoint_of,
    committed,
    definition,
    lag,
    runs,
    write_history,
)

from penstock.checkpoint.lock import checkpoint_lock
from penstock.dashboard import Dashboard
from penstock.errors import DefinitionError, MissingError


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    file = definition(tmp_path_factory.mktemp("served"))
    committed(file, {0: 5})
    write_history(file, [batch(1, ago(3)), lag(ago(1), "orders", list(range(500)), [0] * 500)])
    with checkpoint_lock(str(checkpoint_of(file))):
        runs(file)
        with Dashboard([file]) as dashboard:
            yield dashboard


def get(dashboard: Dashboard, path: str, method: str = "GET", **headers: str) -> requests.Response:
    headers.setdefault("Authorization", f"Bearer {dashboard.token}")
    at = f"http://127.0.0.1:{dashboard.port}{path}"
    return requests.request(method, at, headers=headers, allow_redirects=False, timeout=10)


class Events:
    """Server-sent events, read from a socket as they come."""

    def __init__(self, dashboard: Dashboard, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", dashboard.port), timeout=30)
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{dashboard.port}", "Accept-Encoding: gzip"]
        lines += [f"Authorization: Bearer {dashboard.token}", "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        self._file = self._socket.makefile("rb")
        self.head = b"".join(iter(self._file.readline, b"\r\n")).decode().lower()

    def chunk(self) -> str | None:
        """The next piece; none at the end of the stream."""
        size = int(self._file.readline() or b"0", 16)
        body = self._file.read(size).decode() if size else None
        self._file.readline()
        return body

    def next(self) -> dict[str, Any]:
        """The next piece with events in it, by their names."""
        while (text := self.chunk()) is not None:
            found = [block.split("\n") for block in text.split("\n\n") if block.startswith("event: ")]
            if found:
                return {one[0][7:]: json.loads(one[1][6:]) for one in found}
        raise AssertionError("the stream has ended")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def events(dashboard: Dashboard, path: str) -> Iterator[Events]:
    stream = Events(dashboard, path)
    try:
        yield stream
    finally:
        stream.close()


def test_the_link_gives_a_cookie_that_scripts_and_other_sites_do_not_get(served: Dashboard) -> None:
    answer = requests.get(served.url, allow_redirects=False, timeout=10)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    name, value = cookie.partition(";")[0].split("=", 1)
    assert str(served.port) in name
    assert get(served, "/api/overview", Authorization="", Cookie=f"{name}={value}").status_code == 200
    assert get(served, "/api/overview", Authorization="", Cookie=f"{name}={value}x").status_code == 401
    assert get(served, "/api/overview", Authorization="", Cookie=f"other={value}").status_code == 401


@pytest.mark.parametrize("path", ["/", "/api/overview", "/api/pipelines/orders", "/api/events", "/nothing"])
def test_without_the_token_nothing_is_told_but_how_to_get_in(served: Dashboard, path: str) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic Og=="}):
        answer = get(served, path, **headers)
        assert answer.status_code == 401
        assert "penstock dashboard" in answer.text and served.token not in answer.text
    assert get(served, f"{path}?token=wrong").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "evil.example:{port}", ""])
def test_another_host_is_refused_even_with_the_token(served: Dashboard, host: str) -> None:
    for path in ("/", "/api/overview", "/assets/app.js", f"/?token={served.token}"):
        answer = get(served, path, Host=host.format(port=served.port))
        assert answer.status_code == 421 and "set-cookie" not in answer.headers


def test_both_names_of_this_machine_are_its_host(served: Dashboard) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert get(served, "/api/overview", Host=f"{host}:{served.port}").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_allowed(served: Dashboard, method: str) -> None:
    for path in ("/", "/api/overview", "/api/pipelines/orders", "/assets/app.js", "/nothing"):
        answer = get(served, path, method)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/nothing", "/api/", "/api/pipelines/nobody", "/assets/nothing.js",
                                  "/assets/../serving.py", "/assets/%2e%2e/serving.py", "/assets/"])  # fmt: skip
def test_what_is_not_there_is_not_found(served: Dashboard, path: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        head = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{served.port}\r\nAuthorization: Bearer {served.token}\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read().decode()
    assert answer.split()[1] == "404" and "class Dashboard" not in answer


@pytest.mark.parametrize("path", ["/", "/api/overview", "/api/pipelines/orders", "/api/events?pipeline=orders"])
def test_head_answers_as_get_does_without_a_body(served: Dashboard, path: str) -> None:
    answer = get(served, path, "HEAD")
    assert (answer.status_code, answer.content) == (200, b"")


def test_every_answer_has_the_headers_that_keep_others_out(served: Dashboard) -> None:
    for path, token in (("/", True), ("/api/overview", True), ("/assets/app.js", False), ("/", False), ("/no", True)):
        headers = get(served, path, **({} if token else {"Authorization": ""})).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers and "server" not in headers
        assert "no-" in headers["cache-control"] or path.startswith("/assets/")


def test_json_is_packed_and_holds_no_secret(served: Dashboard) -> None:
    answer = get(served, "/api/pipelines/orders")
    assert (answer.headers["content-encoding"], answer.headers["content-type"]) == ("gzip", "application/json")
    assert len(answer.json()["heat"]["partitions"]) == 500
    overview = get(served, "/api/overview")
    assert overview.json()["pipelines"][0]["state"] == "running"
    assert not any(secret in answer.text + overview.text for secret in (SECRET, served.token, "sasl"))


def test_events_begin_with_everything_and_are_not_packed(served: Dashboard) -> None:
    with events(served, "/api/events?pipeline=orders") as stream:
        assert "200 ok" in stream.head and "text/event-stream" in stream.head and "gzip" not in stream.head
        assert stream.chunk() == "retry: 2000\n\n"
        first = stream.next()
    assert first["overview"]["pipelines"][0]["id"] == "orders"
    assert first["detail"]["id"] == "orders" and first["detail"]["heat"]["append"] is False


def test_events_of_a_pipeline_that_is_not_there_are_the_overview_alone(served: Dashboard) -> None:
    with events(served, "/api/events?pipeline=nobody") as stream:
        assert set(stream.next()) == {"overview"}


def test_events_tell_many_browsers_of_a_change_and_only_the_new_columns(tmp_path: Path) -> None:
    file = definition(tmp_path)
    write_history(file, [lag(ago(9), "orders", [10, 20], [0, 0])])
    with Dashboard([file]) as dashboard:
        streams = [Events(dashboard, "/api/events?pipeline=orders") for _ in range(12)]
        for stream in streams:
            stream.next()
        write_history(file, [lag(ago(0), "orders", [17, 20], [0, 0])])
        for stream in streams:
            while (detail := stream.next().get("detail")) is None or not detail["heat"]["columns"]:
                continue
            assert (detail["heat"]["append"], detail["heat"]["columns"], detail["lag"]) == (True, [[17, 20]], 37)
            stream.close()


def test_events_of_a_quiet_pipeline_are_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dashboard.serving._PING", 0.0)
    with Dashboard([definition(tmp_path)]) as dashboard, events(dashboard, "/api/events") as stream:
        stream.next()
        while (piece := stream.chunk()) is not None and piece.startswith("event:"):
            continue
        assert piece == ": ping\n\n"


def test_a_dashboard_that_is_stopped_ends_its_open_streams_at_once(tmp_path: Path) -> None:
    dashboard = Dashboard([definition(tmp_path)])
    dashboard.start()
    streams = [Events(dashboard, "/api/events") for _ in range(5)]
    for stream in streams:
        stream.next()
    dashboard.stop()
    for stream in streams:
        while stream.chunk() is not None:
            continue
        stream.close()
    with pytest.raises(requests.ConnectionError):
        get(dashboard, "/api/overview")
    assert dashboard._server is not None and not dashboard._server.alive


def test_a_browser_that_goes_leaves_the_others_alone(served: Dashboard) -> None:
    with events(served, "/api/events?pipeline=orders") as stays:
        for _ in range(3):
            Events(served, "/api/events?pipeline=orders").close()
        assert stays.next()
    assert get(served, "/api/overview").status_code == 200


def test_a_port_that_is_taken_is_told(served: Dashboard, tmp_path: Path) -> None:
    with pytest.raises(MissingError) as raised:
        Dashboard([definition(tmp_path)], port=served.port).start()
    assert raised.value.code == "PORT_TAKEN"


@pytest.mark.parametrize("token", ["short", "has spaces in its middle", 'quote"and;semicolon-in-it', "x" * 300])
def test_a_token_that_a_cookie_or_a_link_could_not_hold_is_refused(token: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        Dashboard([], token=token)
    assert raised.value.code == "TOKEN_UNUSABLE" and token not in str(raised.value)


def test_each_dashboard_has_a_token_of_its_own() -> None:
    assert len({Dashboard([]).token for _ in range(20)}) == 20
    assert len(Dashboard([]).token) >= 32
