"""`penstock dashboard` as a process: what it prints, where it listens, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.cli.command import command as within
from tests.services.running import wait_for
from tests.unit.dashboard.pipelines import SECRET, ago, committed, definition, lag, write_history

from penstock.cli.dashboard import TOKEN_VARIABLE

TOKEN = "a-token-of-ones-own-1234"
_COMMAND = """
import sys, typer
from penstock.cli.dashboard import dashboard
from penstock.cli.signals import interrupt_on_sigterm
from penstock.cli.render import show_error
from penstock.errors import PenstockError
interrupt_on_sigterm()
try:
    typer.run(dashboard)
except PenstockError as error:
    show_error(error)
    sys.exit(error.exit_code)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", _COMMAND, *words]


@contextmanager
def running(folder: Path, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command with `--json`, and what it printed."""
    process = subprocess.Popen(
        command(*words, "--json", "--no-open"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_dashboard_of_this_folder_is_served_until_a_signal_ends_it(tmp_path: Path, number: int) -> None:
    for name in ("orders", "returns"):
        file = definition(tmp_path, name)
        # Brokers that take connections and never answer: what is asked of them is not waited for.
        file.write_text(file.read_text().replace('"300"', '"60000"').replace("'300'", "'60000'"))
        committed(file, {0: 5})
        write_history(file, [lag(ago(1), name, [9], [4])])
    with running(tmp_path, "--port", "0") as (process, told):
        assert told["pipelines"] == ["orders", "returns"] and told["token"] in told["url"]
        session = requests.Session()
        session.get(told["url"], timeout=10)
        answer = session.get(told["url"].partition("?")[0] + "api/overview", timeout=10)
        assert {one["id"]: one["lag"] for one in answer.json()["pipelines"]} == {"orders": 5, "returns": 5}
        watched = session.get(told["url"].partition("?")[0] + "api/events?pipeline=orders", stream=True, timeout=10)
        assert next(watched.iter_lines()) == b"retry: 2000"
        process.send_signal(number)
        # Far sooner than the brokers would be given up.
        assert process.wait(10) == 0
        assert process.stderr is not None and process.stderr.read() == ""


def test_dashboard_takes_its_token_from_the_environment(tmp_path: Path) -> None:
    definition(tmp_path)
    with running(tmp_path, "orders.yaml", "--port", "0", **{TOKEN_VARIABLE: TOKEN}) as (_, told):
        assert told["token"] == TOKEN
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = requests.get(f"http://127.0.0.1:{told['port']}/api/pipelines/orders", headers=headers, timeout=10)
        assert answer.json()["name"] == "orders" and SECRET not in answer.text


def test_dashboard_whose_port_is_taken_takes_the_next_and_says_so(tmp_path: Path) -> None:
    definition(tmp_path)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 9500))
            taken.listen()
        except OSError:
            pass  # Somebody else has it: as good.
        with running(tmp_path) as (process, told):
            assert 9500 < told["port"] < 9600
            process.terminate()
            process.wait(10)
            assert process.stderr is not None
            assert f"port 9500 is in use: using {told['port']}" in process.stderr.read()
        asked = within("dashboard", "--port", "9500", folder=tmp_path)
    assert asked.returncode == 3 and "PORT_TAKEN" in asked.stderr


def test_dashboard_without_pipelines_says_the_way_out(tmp_path: Path) -> None:
    none = within("dashboard", folder=tmp_path)
    assert none.returncode == 3 and "NO_PIPELINES" in none.stderr and "penstock init" in none.stderr
    missing = within("dashboard", "nowhere.yaml", folder=tmp_path)
    assert missing.returncode == 3 and "nowhere.yaml" in missing.stderr


def test_browser_is_opened_by_a_private_page_and_no_command_line_holds_the_token(tmp_path: Path) -> None:
    """`BROWSER` names a program that notes its command line and what it is led to."""
    definition(tmp_path)
    noted, browser = tmp_path / "noted", tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport json, os, sys, urllib.parse\n"
        "path = urllib.parse.unquote(urllib.parse.urlsplit(sys.argv[-1]).path)\n"
        "modes = [os.stat(p).st_mode & 0o777 for p in (path, os.path.dirname(path))] if os.path.isfile(path) else []\n"
        "page = open(path).read() if modes else ''\n"
        f"with open({str(noted)!r} + '.part', 'w') as file:\n"
        "    json.dump({'words': sys.argv, 'page': page, 'modes': modes, 'path': path}, file)\n"
        f"os.rename({str(noted)!r} + '.part', {str(noted)!r})\n"
    )
    browser.chmod(0o755)
    process = subprocess.Popen(
        command("--json", "--open"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": str(browser), TOKEN_VARIABLE: TOKEN},
    )
    try:
        wait_for(noted.is_file, "the browser", 30)
        seen = json.loads(noted.read_text())
        assert not [word for word in seen["words"] if TOKEN in word]
        assert TOKEN in seen["page"] and seen["modes"] == [0o600, 0o700]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert not Path(seen["path"]).exists()
    finally:
        process.kill()
        process.communicate()
