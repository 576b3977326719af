"""A real server of Azure's blobs on loopback, in a process of its own: Azurite, a program for Node.js.

Before it stands a layer that starts a listing where `startFrom` says, which Azure does and Azurite does not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from html import unescape
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from tests.debian import skip_for
from tests.services.running import wait_for

from penstock.devstack.processes import free_ports, is_free

AZURITE = "azurite@3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"a key that is for the tests of this project alone").decode()
_LISTED = re.compile(rb"<(Blob|BlobPrefix)><Name>([^<]*)</Name>.*?</\1>", re.DOTALL)
_VERSION = "2021-08-06"
_numbers = itertools.count()


class AzureServer:
    """The server as tests see it. A bucket is what Azure calls a container."""

    def __init__(self, port: int) -> None:
        self.port = port

    def bucket(self) -> str:
        """A new one."""
        name = f"bucket-{next(_numbers)}-{time.time_ns() % 10**9}"
        at = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
        path = f"/{ACCOUNT}/{name}"
        # Twice the account: once as the owner of what is signed, and once because here it is part of the path.
        signed = f"PUT{12 * chr(10)}x-ms-date:{at}\nx-ms-version:{_VERSION}\n/{ACCOUNT}{path}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": at,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        }
        url = f"http://127.0.0.1:{self.port}{path}?restype=container"
        with urlopen(Request(url, method="PUT", headers=headers), timeout=20):
            return name

    def uri(self, bucket: str, path: str) -> str:
        """A place in a bucket as a pipeline file names it."""
        return f"abfss://{bucket}@{ACCOUNT}.dfs.core.windows.net/{path}"

    def arrow(self) -> Any:
        """Arrow's own client."""
        from pyarrow.fs import AzureFileSystem

        at = {f"{side}_storage_{what}": value for side in ("blob", "dfs") for what, value in self._where.items()}
        return AzureFileSystem(ACCOUNT, account_key=KEY, **at)

    def keys(self, bucket: str) -> list[str]:
        """Every key of a bucket."""
        fs, root = self.storage.filesystem(f"abfss://{bucket}")
        return [path.removeprefix(f"{root}/") for path in fs.find(root)]

    @property
    def section(self) -> dict[str, Any]:
        """`storage:` of a pipeline file."""
        return {"options": self._options | {"azure_storage_account_key": "${env:TEST_AZURE_KEY}"}}

    @property
    def storage(self) -> Any:
        """The same for a part alone."""
        from penstock.storage import Storage

        return Storage(options=tuple((self._options | {"azure_storage_account_key": KEY}).items()))

    @property
    def _where(self) -> dict[str, str]:
        return {"authority": f"127.0.0.1:{self.port}", "scheme": "http"}

    @property
    def _options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "allow_http": "true",
        }


class Layer(BaseHTTPRequestHandler):
    """Hands a request on as it is, for the signature holds, and cuts the head off a listing."""

    protocol_version = "HTTP/1.1"
    behind: ClassVar[int]

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        other = HTTPConnection("127.0.0.1", self.behind, timeout=60)
        try:
            other.request(self.command, self.path, body, dict(self.headers))
            answer = other.getresponse()
            told = answer.read()
        finally:
            other.close()
        start = parse_qs(urlsplit(self.path).query).get("startFrom")
        if start is not None:
            told = _LISTED.sub(lambda found: found[0] if unescape(found[2].decode()) >= start[0] else b"", told)
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", size or str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _hand_on  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def serve(port: int) -> None:
    """The layer before a server at a port, until the process is ended; its own port is the first line printed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("To", (Layer,), {"behind": port}))
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def _layer_before(port: int) -> Iterator[int]:
    command = [sys.executable, "-m", "tests.azure_server", str(port)]
    # In a process of its own: a client that waits for an answer may hold this one's lock.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def running_azure(folder: Path) -> Iterator[AzureServer]:
    """A server of one's own, ended at the end."""
    [port] = free_ports(1)
    command = [_program(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    with (folder / "azurite.log").open("wb") as log:
        accounts = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
        process = subprocess.Popen(
            [*command, "--skipApiVersionCheck"], stdout=log, stderr=log, cwd=folder, env=accounts
        )
    try:
        wait_for(lambda: not is_free(port) or process.poll() is not None, "Azurite")
        assert process.poll() is None, (folder / "azurite.log").read_text()
        with _layer_before(port) as before:
            yield AzureServer(before)
    finally:
        process.kill()
        process.wait()


def _program() -> str:
    home = Path(sys.prefix) / "azurite"
    program = home / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        where = os.path.relpath(home)
        skip_for("Azurite is not installed", f"npm install --no-fund --no-audit --prefix {where} {AZURITE}")
    return str(program)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
