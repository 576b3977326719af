"""A real S3 server on loopback, in a process of its own: moto behind a layer that checks and, when told to, misbehaves.

The layer verifies signatures and regions as S3 does, makes conditional writes atomic, keeps a log of the requests, and
takes orders at `/_control`: to be slow, to answer 503, to cut a connection before a request is done or after it.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

ACCESS_KEY, SECRET_KEY, REGION = "penstock-tests", "a-key-for-tests-alone", "eu-test-1"
_CONTROL = "/_control"
_ACCOUNT = "123456789012"
_numbers = itertools.count()
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class Fault:
    """What to do to requests that match, so many times; `skip` are let through first."""

    act: str
    """`delay`, `error`, `drop` (cut before it is done), `swallow` (cut after it was done), `ignore` (the condition)."""
    header: str | None = None
    """Only requests with this header."""
    method: str = ".*"
    path: str = ".*"
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    status: int = 503
    code: str = "SlowDown"
    agent: str = ".*"
    """The client's name: `Hadoop`, `penstock`, ..."""

    def takes(self, method: str, path: str, agent: str, headers: Collection[str]) -> bool:
        if not (
            self.times > 0
            and (self.header is None or _variable(self.header) in headers)
            and re.fullmatch(self.method, method)
            and re.search(self.path, path)
            and re.search(self.agent, agent)
        ):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Layer:
    """Around moto's own application."""

    app: Wsgi
    faults: list[Fault] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    writing: threading.Lock = field(default_factory=threading.Lock)
    looking: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path, method = unquote(environ["PATH_INFO"]), environ["REQUEST_METHOD"]
        if path == _CONTROL:
            return self._control(environ, start)
        agent = environ.get("HTTP_USER_AGENT", "")
        entry = {
            "method": method,
            "path": path,
            "query": environ.get("QUERY_STRING", ""),
            "agent": agent,
            "if_none_match": environ.get("HTTP_IF_NONE_MATCH"),
            "if_match": environ.get("HTTP_IF_MATCH"),
        }
        with self.looking:
            self.log.append(entry)
            fault = next((one for one in self.faults if one.takes(method, path, agent, environ)), None)
        if fault is not None and fault.act == "delay":
            time.sleep(fault.seconds)
        elif fault is not None and fault.act == "error":
            entry["status"] = fault.status
            return _answer(environ, start, fault.status, fault.code)
        elif fault is not None and fault.act == "drop":
            return _cut(environ)
        wrong = _refused(environ)
        if wrong is not None:
            entry["status"] = wrong[0]
            return _answer(environ, start, *wrong)
        if fault is not None and fault.act == "ignore":
            assert fault.header is not None
            environ.pop(_variable(fault.header))
        told: list[Any] = []
        if method in ("PUT", "POST", "DELETE"):
            with self.writing:
                failed = _condition(environ, path)
                if failed is not None:
                    entry["status"] = failed[0]
                    return _answer(environ, start, *failed)
                body = b"".join(self.app(environ, lambda *given: told.append(given)))
        else:
            body = b"".join(self.app(environ, lambda *given: told.append(given)))
        if fault is not None and fault.act == "swallow":
            return _cut(environ)
        entry["status"] = int(str(told[-1][0]).split()[0])
        start(*told[-1][:2])
        return [body]

    def _control(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        asked = json.loads(environ["wsgi.input"].read(size) or b"{}")
        found: Any = {}
        with self.looking:
            if "bucket" in asked:
                _backend().create_bucket(asked["bucket"], REGION)
            if "fault" in asked:
                self.faults.append(Fault(**asked["fault"]))
            if asked.get("calm"):
                self.faults.clear()
            if asked.get("log"):
                found = list(self.log)
            if asked.get("forget"):
                self.log.clear()
            if "keys" in asked:
                found = sorted(_backend().get_bucket(asked["keys"]).keys)
            if "remove" in asked:
                bucket, _, key = asked["remove"].partition("/")
                _backend().delete_object(bucket, key)
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(found).encode()]


def _backend() -> Any:
    from moto.s3.models import s3_backends

    return s3_backends[_ACCOUNT]["aws"]


def _condition(environ: dict[str, Any], path: str) -> tuple[int, str] | None:
    """Whether a write asks for what is not so. S3 decides this and the write in one step; so does the lock here."""
    absent, same = environ.pop("HTTP_IF_NONE_MATCH", None), environ.pop("HTTP_IF_MATCH", None)
    if absent is None and same is None:
        return None
    bucket, _, key = path.lstrip("/").partition("/")
    held = _backend().get_bucket(bucket).keys.get(key)
    if absent is not None and held is not None:
        return 412, "PreconditionFailed"
    if same is not None:
        if held is None:
            return 404, "NoSuchKey"
        if held.etag.strip('"') != same.strip('"'):
            return 412, "PreconditionFailed"
    return None


def _refused(environ: dict[str, Any]) -> tuple[int, str] | None:
    """What S3 says of a request that is not signed as it should be."""
    given = re.match(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=(\w+)",
        environ.get("HTTP_AUTHORIZATION", ""),
    )
    if given is None:
        return 403, "AccessDenied"
    key, day, region, names, signature = given.groups()
    if key != ACCESS_KEY:
        return 403, "InvalidAccessKeyId"
    if region != REGION:
        return 400, "AuthorizationHeaderMalformed"
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or environ["PATH_INFO"]
    parts = urlsplit(raw)
    query = sorted((pair.partition("=")[0], pair.partition("=")[2]) for pair in parts.query.split("&") if pair)
    asked = "&".join(f"{_coded(name)}={_coded(value)}" for name, value in query)
    headers = "".join(f"{name}:{_header(environ, name)}\n" for name in names.split(";"))
    hashed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "UNSIGNED-PAYLOAD")
    canonical = "\n".join([environ["REQUEST_METHOD"], parts.path, asked, headers, names, hashed])
    scope = f"{day}/{region}/s3/aws4_request"
    stamp = environ.get("HTTP_X_AMZ_DATE", "")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signing = f"AWS4{SECRET_KEY}".encode()
    for part in (day, region, "s3", "aws4_request"):
        signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
    expected = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
    return None if hmac.compare_digest(expected, signature) else (403, "SignatureDoesNotMatch")


def _coded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")


def _variable(header: str) -> str:
    """The name of a header in the environment of a request."""
    return f"HTTP_{header.upper().replace('-', '_')}"


def _header(environ: dict[str, Any], name: str) -> str:
    own = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
    value = environ.get(own.get(name, _variable(name)), "")
    return re.sub(r"\s+", " ", value.strip())


def _answer(environ: dict[str, Any], start: Callable[..., Any], status: int, code: str) -> Iterable[bytes]:
    with_body = environ["REQUEST_METHOD"] != "HEAD"
    # What the client sends is read: it may not look for an answer before.
    if environ.get("wsgi.input_terminated"):
        environ["wsgi.input"].read()
    else:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    start(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body) * with_body))])
    return [body] if with_body else []


def _cut(environ: dict[str, Any]) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError("as told")


def serve() -> None:
    """Serve until the process is ended; the port is the first line that is printed."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            """Nothing."""

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    layer = Layer(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, layer, threaded=True, request_handler=Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


class S3Server:
    """The server as tests see it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def bucket(self) -> str:
        """A new bucket."""
        name = f"bucket-{next(_numbers)}-{time.time_ns() % 10**9}"
        self._say(bucket=name)
        return name

    def uri(self, bucket: str, path: str) -> str:
        """A place in a bucket as a pipeline file names it."""
        return f"s3://{bucket}/{path}"

    def arrow(self) -> Any:
        """Arrow's own client."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, endpoint_override=self.endpoint
        )

    def fault(self, act: str, **more: Any) -> None:
        """Have requests go wrong."""
        self._say(fault={"act": act, **more})

    def calm(self) -> None:
        """Have no more of them go wrong."""
        self._say(calm=True)

    def log(self) -> list[dict[str, Any]]:
        """The requests since the log was last forgotten."""
        found: list[dict[str, Any]] = self._say(log=True)
        return found

    def forget(self) -> None:
        self._say(forget=True)

    def keys(self, bucket: str) -> list[str]:
        """Every key of a bucket."""
        found: list[str] = self._say(keys=bucket)
        return found

    def remove(self, path: str) -> None:
        """Remove an object: `bucket/key`."""
        self._say(remove=path)

    @property
    def section(self) -> dict[str, Any]:
        """`storage:` of a pipeline file; the keys come from the environment."""
        return {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key": "${env:TEST_S3_ACCESS_KEY}",
            "secret_key": "${env:TEST_S3_SECRET_KEY}",
        }

    @property
    def storage(self) -> Any:
        """The same for a part alone."""
        from penstock.storage import Storage

        return Storage(self.endpoint, REGION, ACCESS_KEY, SECRET_KEY)

    def _say(self, **asked: Any) -> Any:
        request = Request(f"{self.endpoint}{_CONTROL}", json.dumps(asked).encode(), method="POST")
        with urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """A server of one's own, ended at the end."""
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server"],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=Path(__file__).parents[1],
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.strip().isdigit(), (folder / "s3.log").read_text()
        yield S3Server(int(line))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    serve()
