"""The dashboard as a server on this machine, in a thread of its own, with or without a run in this process."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.dashboard.watcher import PipelineWatch, Watcher
from penstock.errors import DefinitionError, MissingError
from penstock.metrics.http_server import HttpServer, bind

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")


class Dashboard:
    """A web page of some pipelines: read only, for whoever has the token. It never takes a lock or writes a file."""

    def __init__(self, files: Sequence[Path], host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        if token is not None and not _TOKEN.fullmatch(token):
            raise DefinitionError(
                "TOKEN_UNUSABLE",
                "the token of the dashboard has 16 to 200 letters, digits or . _ ~ -",
                hint="leave it out for a new one at each start",
            )
        self.host, self.port = host, port
        self.token = token or secrets.token_urlsafe(24)
        self._watcher = Watcher(files)
        self._server: HttpServer | None = None
        self._pages: Pages | None = None

    @property
    def url(self) -> str:
        """The link that opens it."""
        return f"http://{self.host}:{self.port}/?token={self.token}"

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The ids of the pipelines."""
        return tuple(self._watcher.watches)

    @property
    def busy(self) -> bool:
        """Whether something is still being asked that may not answer; nothing depends on it."""
        return self._watcher.busy

    def follow(self, files: Sequence[Path]) -> None:
        """Show these pipelines from now on."""
        self._watcher.follow(files)

    def start(self) -> str:
        """Serve; gives the link. Raises where the port is taken."""
        listener = self._bind()
        self.port = int(listener.getsockname()[1])
        self._server = HttpServer(listener, self._app, "penstock-web")
        self._watcher.start()
        return self.url

    def stop(self) -> None:
        """End at once: open streams end too."""
        self._watcher.stop()
        if self._server is not None and self._pages is not None:
            self._server.close(self._pages.over.set)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _bind(self) -> socket.socket:
        try:
            return bind(self.host, self.port)
        except OSError as error:
            raise MissingError(
                "PORT_TAKEN",
                f"listening at {self.host}:{self.port}: {error.strerror}",
                hint="name another port: --port PORT",
            ) from None

    def _app(self) -> Guard:
        pages = self._pages = Pages(self._watcher)
        hosts = frozenset(f"{name}:{self.port}" for name in {"127.0.0.1", "localhost", self.host})
        # Cookies know no ports: two dashboards must not overwrite each other's.
        return Guard(pages.app(), hosts, self.token, f"penstock-{self.port}")


_EVERY = 1.0
_PING = 15.0
_FIRST_POLL_SECONDS = 10.0
_SMALLEST_PACKED = 1000
_JSON = "application/json"


class Pages:
    """The page, its assets, the overview, the details, and both as they change. `over` ends the streams."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.over = asyncio.Event()

    def app(self) -> Starlette:
        """The application. Events are not packed: a browser would wait for more of them."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Mount("/assets", StaticFiles(directory=ASSETS, check_dir=False)),
                Route("/api/overview", self.overview),
                Route("/api/pipelines/{id}", self.pipeline),
                Route("/api/events", self.events),
            ],
            middleware=[Middleware(GZipMiddleware, minimum_size=_SMALLEST_PACKED, compresslevel=4)],
        )

    async def page(self, request: Request) -> Response:
        """The page itself: it asks for the rest."""
        return FileResponse(ASSETS / "index.html", headers={"cache-control": "no-cache"})

    async def overview(self, request: Request) -> Response:
        """All pipelines."""
        await self._ready()
        return Response(self._watcher.overview.text, media_type=_JSON)

    async def pipeline(self, request: Request) -> Response:
        """One pipeline. Expensive queries start now, and their results come with later requests."""
        watch = self._watcher.watches.get(request.path_params["id"])
        if watch is None:
            return PlainTextResponse("no such pipeline\n", 404)
        await self._ready()
        watch.watch()
        sent = watch.send()
        assert sent is not None
        return Response(sent.text, media_type=_JSON)

    async def events(self, request: Request) -> Response:
        """The overview and one pipeline as they change, until the page goes or the dashboard ends."""
        watch = self._watcher.watches.get(request.query_params.get("pipeline", ""))
        events = self._events(watch) if request.method == "GET" else _nothing()
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, watch: PipelineWatch | None) -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        await self._ready()
        shown, sent, quiet_since = 0, None, time.monotonic()
        while not self.over.is_set():
            pieces = []
            overview = self._watcher.overview
            if overview.version != shown:
                shown = overview.version
                pieces.append(f"event: overview\ndata: {overview.text}\n\n")
            if watch is not None:
                watch.watch()
                if (new := watch.send(sent)) is not None:
                    sent = new
                    pieces.append(f"event: detail\ndata: {new.text}\n\n")
            if not pieces and time.monotonic() - quiet_since >= _PING:
                pieces.append(": ping\n\n")
            if pieces:
                quiet_since = time.monotonic()
                yield "".join(pieces)
            try:
                await asyncio.wait_for(self.over.wait(), _EVERY)
            except TimeoutError:
                continue

    async def _ready(self) -> None:
        """Until every file has been read once; a moment at the start."""
        if not self._watcher.ready.is_set():
            await run_in_threadpool(self._watcher.ready.wait, _FIRST_POLL_SECONDS)


async def _nothing() -> AsyncIterator[str]:
    return
    yield


# Who may see the dashboard: a browser or a program on this machine that has the token. Nothing can be changed.
#
# The Host header is checked, so that no other site can reach in under a name of its own. The token comes once in the
# link and stays in a cookie that scripts cannot read and other sites do not send; programs send it as a header. The
# package's own assets hold no data, and are given to the page that says how to open the dashboard.

ASSETS = Path(__file__).parent / "assets"
_METHODS = ("GET", "HEAD")
_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_HOW = "open the dashboard by the link that `penstock dashboard` printed, or send: Authorization: Bearer TOKEN\n"


class Guard:
    """Lets requests through to the application, or answers them itself."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str, cookie: str) -> None:
        self._app, self._hosts, self._token, self._cookie = app, hosts, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        answer = self._answer(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (answer or self._app)(scope, receive, send_guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """The response of the guard itself; none if the request may pass."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("this is not the host that was asked for\n", 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("the dashboard only shows\n", 405, {"allow": ", ".join(_METHODS)})
        given = QueryParams(scope["query_string"]).get("token")
        if given is not None:
            return self._enter(headers) if self._is_token(given) else _locked(scope)
        if scope["path"].startswith("/assets/") or self._known(headers):
            return None
        return _locked(scope)

    def _enter(self, headers: Headers) -> Response:
        answer: Response = RedirectResponse("/", 303)
        if headers.get("sec-fetch-site") == "cross-site":
            # From the page that `penstock dashboard` opens: the cookie is only sent where this site itself leads.
            answer = HTMLResponse("", 200, {"refresh": "0; url=/"})
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return answer

    def _known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return kept is not None and self._is_token(kept.value)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def _locked(scope: Scope) -> Response:
    challenge = {"www-authenticate": "Bearer"}
    page = ASSETS / "locked.html"
    if scope["path"].startswith("/api/") or not page.is_file():
        return PlainTextResponse(_HOW, 401, challenge)
    return HTMLResponse(page.read_text(), 401, challenge)
