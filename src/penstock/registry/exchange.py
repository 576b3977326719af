"""One request to the registry and its response: credentials, TLS, timeouts, retries, and errors.

The result is the JSON of the response, or the registry's own refusal of the request, or an error that says whether to
try again. A registry that is unreachable, slow, overloaded or broken is transient; one that refuses the credentials is
not. The timeout is for all bytes of a response together. Redirects are not followed: credentials and schemas go to the
address in the file alone.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import Retry

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.registry.schemas import RegistrySettings

_HEADERS = {
    "Accept": "application/vnd.schemaregistry.v1+json, application/json",
    "Content-Type": "application/vnd.schemaregistry.v1+json",
    "User-Agent": "penstock",
}
_BUSY: Final = frozenset({408, 425, 429})
_LOCKED_OUT: Final = frozenset({401, 403, 407})
_LARGEST_ANSWER: Final = 16 * 2**20
"""Unpacked: a small answer may be packed from a very large one."""
_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The registry understood the request and refuses it: its own code (40403: no such schema), and its message."""

    status: int
    code: int
    message: str


class _Asked(threading.local):
    seconds = 0.0


_asked = _Asked()


def seconds_asked() -> float:
    """How long this thread has waited for responses so far, from all registries."""
    return _asked.seconds


class Exchange:
    """Asks one registry. Connections are kept, but never across a fork: a child makes its own."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self._session: requests.Session | None = None
        self._pid = 0

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a GET, or to a POST of `body`: JSON, or a `Refusal`.

        A POST is tried again as well: registering the same schema twice gives the same id.
        """
        url = f"{self.settings.url.rstrip('/')}{path}"
        # Given here, since the environment's bundle would win over one that the session has.
        verify = self.settings.authority
        began = time.perf_counter()
        try:
            with self._connected().request(
                "GET" if body is None else "POST",
                url,
                json=body,
                timeout=self.settings.timeout,
                verify=verify,
                stream=True,
                allow_redirects=False,
            ) as answer:
                text = self._body(answer)
        except OSError as error:
            raise self._failed(error) from None
        finally:
            _asked.seconds += time.perf_counter() - began
        return self._read(answer, text)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._session is not None and self._pid == os.getpid():
            self._session.close()
        self._session = None

    def _connected(self) -> requests.Session:
        if self._session is None or self._pid != os.getpid():
            self._session, self._pid = self._connect(), os.getpid()
        return self._session

    def _connect(self) -> requests.Session:
        session = requests.Session()
        session.headers.update(_HEADERS)
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        session.auth = _credentials(self.settings)
        session.cert = self.settings.certificate
        # TLS failures are "other": the next try would fail as this one did.
        tries = Retry(
            total=self.settings.retries,
            other=0,
            status_forcelist={*_BUSY, *range(500, 600)},
            allowed_methods=None,
            backoff_factor=_BACKOFF_SECONDS,
            backoff_max=_LONGEST_BACKOFF_SECONDS,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, _TimedAdapter(max_retries=tries))
        return session

    def _failed(self, error: OSError) -> PenstockError:
        fault = _tls_fault(error)
        if fault is not None or not isinstance(error, requests.RequestException):
            return MissingError(
                "REGISTRY_TLS",
                f"connecting to the schema registry at {self.settings.address}: the TLS handshake failed",
                context={"cause": fault or error, "ca_file": self.settings.ca_file or "the system's certificates"},
                hint="check registry.ca_file, the client certificate and its key, and that the URL says https or http "
                "as the registry does",
            )
        if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
            return self.not_a_registry(f"no URL that one can connect to ({type(error).__name__})")
        return self._unreachable(_words(error))

    def _body(self, answer: requests.Response) -> bytes:
        text = bytearray()
        for piece in answer.iter_content(2**16):
            text += piece
            if len(text) > _LARGEST_ANSWER:
                raise self.not_a_registry(f"status {answer.status_code}, more than {_LARGEST_ANSWER // 2**20} MiB")
        return bytes(text)

    def _read(self, answer: requests.Response, text: bytes) -> Any:
        if answer.status_code in _LOCKED_OUT:
            raise MissingError(
                "REGISTRY_NOT_AUTHORIZED",
                f"asking the schema registry at {self.settings.address}: it refuses the credentials",
                context={"it answered": answer.status_code, "it was shown": self.settings.credentials},
                hint="check the user and password, or the token, of the registry, and what they may read or write",
            )
        if answer.status_code in _BUSY or answer.status_code >= 500:
            raise self._unreachable(f"it answered {answer.status_code}")
        if 300 <= answer.status_code < 400:
            raise self.not_a_registry(f"status {answer.status_code}, a redirect, which is not followed")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise self.not_a_registry(f"status {answer.status_code}, not JSON") from None
        if answer.ok:
            return content
        code = content.get("error_code") if isinstance(content, dict) else None
        # Its own codes for what is not there are 40401 and on; a plain 404 comes from a wrong path or another server.
        if not isinstance(code, int) or (answer.status_code == 404 and code < 40400):
            raise self.not_a_registry(f"status {answer.status_code}, without a code of a registry")
        return Refusal(answer.status_code, code, str(content.get("message", ""))[:500])

    def _unreachable(self, why: str) -> TransientError:
        return TransientError(
            "REGISTRY_UNREACHABLE",
            f"asking the schema registry at {self.settings.address}: no answer",
            context={"cause": why, "tries": self.settings.retries + 1},
            hint="is the registry running, and is registry.url right? try: penstock dev status",
        )

    def not_a_registry(self, what: str) -> MissingError:
        """The error for an answer that no registry gives."""
        return MissingError(
            "REGISTRY_NOT_THERE",
            f"asking the schema registry at {self.settings.address}: the server does not have the Confluent API",
            context={"it answered": what},
            hint="check registry.url; Apicurio has this API under /apis/ccompat/v7",
        )


class _TimedReads(io.RawIOBase):
    """What a socket receives before a moment. A time-out of the socket is for one piece, and pieces may be bytes."""

    def __init__(self, received: io.RawIOBase, connection: socket.socket) -> None:
        self._received = received
        self._connection = connection
        self._seconds = connection.gettimeout()
        self._began = time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._seconds is not None:
            left = self._began + self._seconds - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the answer was not whole after {self._seconds:g} s")
            self._connection.settimeout(left)
        return self._received.readinto(buffer)

    def close(self) -> None:
        self._received.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """An answer whose status, headers and body come within the socket's time-out, which was set for this answer."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_TimedReads(self.fp.detach(), sock))


class _TimedConnection(HTTPConnection):
    response_class = _TimedResponse


class _TimedTlsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _TimedPool(HTTPConnectionPool):
    ConnectionCls = _TimedConnection


class _TimedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _TimedTlsConnection


class _TimedAdapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _TimedPool, "https": _TimedTlsPool}


class _Bearer(AuthBase):
    """As an object of its own, so that requests never puts what a .netrc file says in its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _credentials(settings: RegistrySettings) -> AuthBase | None:
    if settings.token is not None:
        return _Bearer(settings.token)
    if settings.username is not None:
        return HTTPBasicAuth(settings.username.encode(), (settings.password or "").encode())
    return None


def _tls_fault(error: BaseException) -> str | None:
    """The TLS failure somewhere below `error`; a connection that merely broke off is none."""
    below: list[object] = [error]
    while below:
        each = below.pop()
        if isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return str(each.reason or each)
        if isinstance(each, BaseException):
            below += [*each.args, getattr(each, "reason", None), each.__cause__]
    return None


def _words(error: requests.RequestException) -> str:
    """Why, without the URL, which may hold a password."""
    if isinstance(error, requests.exceptions.SSLError):
        # Under TLS 1.3 a server refuses a client's certificate only after the handshake, and may just hang up.
        return "the TLS connection was closed; the registry may require a client certificate, or another one"
    inner = error.args[0] if error.args else error
    reason = getattr(inner, "reason", None) or inner
    said = str(reason).rpartition(": ")[2] if isinstance(reason, Exception) else str(reason)
    return f"{type(error).__name__}: {said}"[:200]
