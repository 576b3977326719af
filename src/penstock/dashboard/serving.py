"""The dashboard as a server on this machine: in a thread of its own, beside a run or alone."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from penstock.dashboard.guarding import Guard
from penstock.dashboard.routes import Pages
from penstock.dashboard.watching import Watcher
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
