"""A real schema registry for the tests, and a door of TLS and credentials in front of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.devstack import Registry
from penstock.devstack.processes import free_ports
from penstock.devstack.servers import await_registry, start_registry
from penstock.spark.jars import registry_jar
from penstock.spark.java import find_java


class RegistryServer:
    """One registry on a port of its own.

    Subjects, versions and ids survive `kill` and `restart`, since its store is a file that is written through; what
    is lost is every connection. The global compatibility is NONE: an incompatible version is refused only under a
    subject that was given another one with `compatibility`.
    """

    def __init__(self, folder: Path) -> None:
        self._java, self._jar = find_java().executable, registry_jar()
        self._place = Registry(folder=folder, port=free_ports(1)[0])
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count()

    @property
    def url(self) -> str:
        """The base URL of the Confluent API; the same for its whole life."""
        return self._place.url

    @property
    def log(self) -> str:
        return self._place.log.read_text(errors="replace") if self._place.log.exists() else ""

    def start(self) -> None:
        self._process = start_registry(self._java, self._jar, self._place)
        try:
            await_registry(self._place, self._process)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL; nothing happens where it is gone already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def restart(self) -> None:
        """On the same port, with every schema that it had, whether it still runs or was killed."""
        self.kill()
        self.start()

    def subject(self, name: str = "s") -> str:
        """A subject that nobody has."""
        return f"{name}-{os.getpid()}-{next(self._names)}-value"

    def compatibility(self, subject: str, level: str) -> None:
        """Have the registry refuse versions of `subject` that are not compatible in this way."""
        requests.put(f"{self.url}/config/{subject}", json={"compatibility": level}, timeout=30).raise_for_status()


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[RegistryServer]:
    server = RegistryServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, as files; signed by itself, so it is its own authority."""

    file: Path
    key: Path


def make_certificate(folder: Path, name: str) -> Certificate:
    """For 127.0.0.1, valid for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    made.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


@contextlib.contextmanager
def guarded(
    url: str, authorization: str | None = None, own: Certificate | None = None, client: Certificate | None = None
) -> Iterator[str]:
    """The URL of a server that passes requests on to `url` if they carry the header, behind TLS and a client check."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != authorization:
                self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {"Content-Type": self.headers.get("Content-Type", "")}
            passed = requests.request(self.command, f"{url}{self.path}", data=body, headers=headers, timeout=30)
            self._answer(passed.status_code, passed.content)

        do_POST = do_GET  # noqa: N815

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    if own is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.file, own.key)
        if client is not None:
            context.load_verify_locations(client.file)
            context.verify_mode = ssl.CERT_REQUIRED
        # The handshake is left to the thread of the connection.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_which: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'https' if own else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
