"""What the dashboard answers: the page, its assets, the overview, the details, and both as they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.dashboard.guarding import ASSETS
from penstock.dashboard.pipeline_watch import PipelineWatch
from penstock.dashboard.watching import Watcher

_EVERY = 1.0
_PING = 15.0
_FIRST_LOOK = 10.0
_SMALLEST_PACKED = 1000
_JSON = "application/json"


class Pages:
    """The answers over one watcher. `over` ends the streams."""

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
        await self._looked()
        return Response(self._watcher.overview.text, media_type=_JSON)

    async def pipeline(self, request: Request) -> Response:
        """One pipeline. What is dear is looked at from now on, and is there when it is asked for again."""
        watch = self._watcher.watches.get(request.path_params["id"])
        if watch is None:
            return PlainTextResponse("no such pipeline\n", 404)
        await self._looked()
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
        await self._looked()
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

    async def _looked(self) -> None:
        """Until every file has been looked at once; a moment at the start."""
        if not self._watcher.ready.is_set():
            await run_in_threadpool(self._watcher.ready.wait, _FIRST_LOOK)


async def _nothing() -> AsyncIterator[str]:
    return
    yield
