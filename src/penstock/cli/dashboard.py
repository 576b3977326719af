"""`penstock dashboard`: a web page of the pipelines, served on this machine until Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import Json, files_in
from penstock.cli.render import err, out
from penstock.errors import MissingError
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.dashboard import Dashboard

_PORT = 9500
_PORTS = 100
_WAKE_SECONDS = 0.2
TOKEN_VARIABLE = "PENSTOCK_DASHBOARD_TOKEN"


def dashboard(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="The pipeline files, or a folder with *.yaml files. By default those in this folder.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"The port; defaults to {_PORT} or the next free one.", show_default=False),
    ] = None,
    open_it: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open it in a browser; default on a terminal with a display."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="The login token; defaults to a new one. The variable keeps it off the command line.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show pipelines in a browser: flows, lag, batches, quarantine, checkpoint, diagnosis. Ctrl-C ends it.

    It is reachable from this machine only, with its token only, and changes nothing.
    """  # fmt: skip
    chosen = files_in(files or [Path()], ": penstock dashboard FILE...\nor make one: penstock init")
    served = _start(chosen, port, token)
    try:
        _announce(served, len(chosen), as_json)
        with opened_in_browser(served.url, open_it if open_it is not None else not as_json and has_display()):
            # With polars loaded, a Ctrl-C does not interrupt a wait without a timeout.
            while not threading.Event().wait(_WAKE_SECONDS):
                continue
    except KeyboardInterrupt:
        pass
    finally:
        served.stop()
    if served.busy:
        # Do not wait for a broker or a table that does not answer; nothing was written.
        sys.stdout.flush()
        os._exit(0)


def _start(files: list[Path], port: int | None, token: str | None) -> Dashboard:
    from penstock.dashboard import Dashboard

    wanted = [port] if port is not None else [*range(_PORT, _PORT + _PORTS), 0]
    for number in wanted:
        served = Dashboard(files, port=number, token=token)
        try:
            served.start()
        except MissingError as error:
            if error.code != "PORT_TAKEN" or number == wanted[-1]:
                raise
            continue
        if port is None and served.port != _PORT:
            err.print(f"port {_PORT} is in use: using {served.port}")
        return served
    raise AssertionError("unreachable")


def _announce(served: Dashboard, files: int, as_json: bool) -> None:
    if as_json:
        body = {"url": served.url, "token": served.token, "port": served.port, "pipelines": list(served.pipelines)}
        print(json.dumps(body), flush=True)
        return
    out.print(f"{counted(files, 'pipeline')}: {escape(served.url)}")
    err.print("Ctrl-C ends it")


@contextmanager
def opened_in_browser(url: str, wanted: bool) -> Iterator[None]:
    """Open a link through a page that only this user can read, and that is removed at the end.

    The browser's command line, visible to every user of the machine, then has the path of the page and not the token.
    """
    if not wanted:
        yield
        return
    import webbrowser
    from html import escape as escaped
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="penstock-dashboard-") as folder:
        page = Path(folder) / "open.html"
        page.touch(0o600)
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escaped(url)}">')
        webbrowser.open(page.as_uri())
        yield


def has_display() -> bool:
    """Whether a browser could be opened for the user."""
    shown = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return shown and sys.stdout.isatty()
