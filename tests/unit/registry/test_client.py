"""The client against a server that answers as it is told: what no healthy registry does."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.registry import RegistryClient, RegistrySettings, client_of
from penstock.registry import client as client_module

SCHEMA = {"schema": '"string"'}


class ScriptedServer(ThreadingHTTPServer):
    """Gives the answers of `script` one after the other, the last one again and again: status, and body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.script: list[tuple[int, Any]] = [(200, SCHEMA)]
        self.headers: dict[str, str] = {}
        self.hold_seconds = 0.0
        self.asked: list[dict[str, Any]] = []
        self.connections: list[int] = []

    def handle_error(self, *_which: Any) -> None:
        """A client that hung up is what some tests are about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answering(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        server.asked.append({"path": self.path, **self.headers})
        server.connections.append(self.client_address[1])
        time.sleep(server.hold_seconds)
        status, body = server.script.pop(0) if len(server.script) > 1 else server.script[0]
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(sent)), **server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield made
        made.shutdown()


def failure_of(client: RegistryClient) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        client.schema(1)
    return caught.value


@pytest.mark.parametrize("status", [408, 429, 503])
def test_answer_that_passes_is_tried_again_and_then_taken(server: ScriptedServer, status: int) -> None:
    server.script = [(status, b"busy"), (status, b"busy"), (200, SCHEMA)]
    found = RegistryClient(RegistrySettings(server.url, retries=2)).schema(1)
    assert found is not None
    assert (found.kind, found.text) == ("AVRO", '"string"')
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [429, 500])
def test_answer_that_stays_bad_is_transient_after_the_retries(server: ScriptedServer, status: int) -> None:
    server.script = [(status, b"busy")]
    server.headers = {"Retry-After": "3600"}
    failure = failure_of(RegistryClient(RegistrySettings(server.url, retries=1)))
    assert isinstance(failure, TransientError)
    assert failure.code == "REGISTRY_UNREACHABLE"
    assert str(status) in failure.context["cause"]
    assert len(server.asked) == 2


def test_registration_is_tried_again_as_well(server: ScriptedServer) -> None:
    server.script = [(503, b""), (200, {"id": 7})]
    assert RegistryClient(RegistrySettings(server.url, retries=1)).register("s", "AVRO", '"int"') == 7


def test_registry_that_is_not_there_is_transient() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    failure = failure_of(RegistryClient(RegistrySettings(f"http://u:sesame@127.0.0.1:{port}", retries=1)))
    assert failure.code == "REGISTRY_UNREACHABLE"
    assert "refused" in failure.context["cause"]
    assert "sesame" not in str(failure)


def test_registry_that_does_not_answer_in_time_is_transient(server: ScriptedServer) -> None:
    server.hold_seconds = 3
    failure = failure_of(RegistryClient(RegistrySettings(server.url, timeout=0.2, retries=1)))
    assert failure.code == "REGISTRY_UNREACHABLE"
    assert "timed out" in failure.context["cause"]


@pytest.mark.parametrize("status", [401, 403])
def test_registry_that_does_not_let_in_is_not_asked_again(server: ScriptedServer, status: int) -> None:
    server.script = [(status, {"error_code": status, "message": "no"})]
    failure = failure_of(RegistryClient(RegistrySettings(server.url, username="u", password="sesame")))
    assert isinstance(failure, MissingError)
    assert failure.code == "REGISTRY_NOT_AUTHORIZED"
    assert "sesame" not in str(failure)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>not found</html>"),
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
        (404, {"error_code": 0, "message": "no such path"}),
        (404, []),
        (200, b"<html>please log in</html>"),
        (200, {"unexpected": 1}),
        (200, [1]),
        (200, {"schema": "x", "schemaType": "XML"}),
        (200, {"schema": "x", "references": [{"name": "n"}]}),
        (200, b'{"schema": "x", "references": [{"name": "n", "subject": "s", "version": 1e999}]}'),
        (200, b'{"schema": "\\ud800"}'),
        (200, {"schema": {"type": "int"}}),
        (200, {"schema": "x", "schemaType": ["AVRO"]}),
    ],
)
def test_answer_that_no_registry_gives_is_never_an_unknown_id(server: ScriptedServer, status: int, body: Any) -> None:
    server.script = [(status, body)]
    assert failure_of(RegistryClient(RegistrySettings(server.url))).code == "REGISTRY_NOT_THERE"


def test_unknown_id_is_asked_for_again_and_a_found_one_is_not(server: ScriptedServer) -> None:
    server.script = [(404, {"error_code": 40403, "message": "Schema not found"})] * 2 + [(200, SCHEMA)]
    client = RegistryClient(RegistrySettings(server.url))
    assert client.schema(1) is client.schema(1) is None
    assert client.schema(1) is client.schema(1) is not None
    assert len(server.asked) == 3


def test_cache_that_is_full_lets_the_oldest_go(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CACHED_SCHEMAS", 2)
    client = RegistryClient(RegistrySettings(server.url))
    for schema_id in (1, 2, 3):
        client.schema(schema_id)
    assert [client.known(schema_id) is None for schema_id in (1, 2, 3)] == [True, False, False]


def test_token_is_sent_whatever_a_netrc_file_says(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    RegistryClient(RegistrySettings(server.url, token="abc")).schema(1)
    assert server.asked[0]["Authorization"] == "Bearer abc"


def test_answer_packed_from_more_than_memory_should_hold_is_not_unpacked(server: ScriptedServer) -> None:
    server.script = [(200, gzip.compress(b'{"schema": "' + b"a" * (64 * 2**20) + b'"}', 6))]
    server.headers = {"Content-Encoding": "gzip"}
    tracemalloc.start()
    try:
        failure = failure_of(RegistryClient(RegistrySettings(server.url)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert failure.code == "REGISTRY_NOT_THERE"
    assert failure.context["it answered"] == "status 200, more than 16 MiB"
    assert peak < 48 * 2**20
    server.script, server.headers = [(200, SCHEMA)], {}
    assert RegistryClient(RegistrySettings(server.url)).schema(1) is not None


def test_answer_nested_without_end_is_that_of_no_registry(server: ScriptedServer) -> None:
    server.script = [(200, b"[" * 200_000)]
    assert failure_of(RegistryClient(RegistrySettings(server.url))).code == "REGISTRY_NOT_THERE"


def test_url_with_a_slash_at_its_end_or_none_asks_for_the_same(server: ScriptedServer) -> None:
    for url in (f"{server.url}/api", f"{server.url}/api/"):
        RegistryClient(RegistrySettings(url)).schema(1)
    assert [each["path"] for each in server.asked] == ["/api/schemas/ids/1"] * 2


def test_url_that_is_none_is_refused() -> None:
    for url in ("registry:8081", "ftp://127.0.0.1/x", "http://"):
        assert failure_of(RegistryClient(RegistrySettings(url))).code == "REGISTRY_NOT_THERE", url


def test_connection_is_kept_between_questions_but_not_across_a_fork(server: ScriptedServer) -> None:
    settings = RegistrySettings(server.url)
    client = client_of(settings)
    client.schema(1)
    client.schema(2)
    child = os.fork()
    if child == 0:
        good = (
            client.schema(3) is not None and client_of(settings) is not client and client_of(settings).known(1) is None
        )
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.schema(4)
    first, second, forked, last = server.connections
    assert first == second == last != forked


def test_client_that_was_closed_goes_on_with_a_new_connection(server: ScriptedServer) -> None:
    client = RegistryClient(RegistrySettings(server.url))
    client.schema(1)
    client.close()
    client.schema(2)
    assert len(set(server.connections)) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(server: ScriptedServer, status: int) -> None:
    server.script = [(status, b""), (200, SCHEMA)]
    server.headers = {"Location": f"{server.url}/elsewhere"}
    failure = failure_of(RegistryClient(RegistrySettings(server.url, username="u", password="sesame")))
    assert failure.code == "REGISTRY_NOT_THERE"
    assert "redirect" in failure.context["it answered"]
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"],
    ids=["status", "headers", "body"],
)
def test_answer_that_comes_byte_by_byte_ends_with_the_time_out(start: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def drip() -> None:
            while not stop.is_set():
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    try:
                        connection.sendall(start)
                        while not stop.wait(0.05):
                            connection.sendall(b"H")
                    except OSError:
                        pass

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        try:
            settings = RegistrySettings(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.5, retries=1)
            failure = failure_of(RegistryClient(settings))
        finally:
            stop.set()
        assert failure.code == "REGISTRY_UNREACHABLE"
        assert time.monotonic() - began < 4
