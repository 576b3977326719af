"""Pages of commands, run as they stand there: what is typed behind a `$`, what it must print, and how it must end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from tests.services.running import wait_for

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.presence import find_run
from penstock.cli.main import main
from penstock.config import load
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

_BLOCK = re.compile(r"^```console\n(.*?)^```$|^<!-- then: (\S+) -->$", re.MULTILINE | re.DOTALL)
_SIZES = ("B", "kB", "MB")
_EXITS = re.compile(r"\s+# exits (\d+)$")


@dataclass
class Typed:
    """One command of a page; or what the test does at this place, unseen by those who read the page."""

    line: str
    exit_code: int = 0
    printed: list[str] = field(default_factory=list)
    happens: str | None = None


def commands_of(page: Path) -> list[Typed]:
    """The commands in the blocks marked `console`, with the lines that stand under each."""
    found: list[Typed] = []
    for block, happens in _BLOCK.findall(page.read_text()):
        if happens:
            found.append(Typed("", happens=happens))
        for line in block.splitlines():
            if line.startswith("$ "):
                exits = _EXITS.search(line)
                found.append(Typed(_EXITS.sub("", line[2:]), int(exits[1]) if exits else 0))
            elif line.strip():
                found[-1].printed.append(line)
    return found


def missing_line(printed: list[str], shown: list[str]) -> str | None:
    """The first line of the page that was not printed in its turn.

    A word with a digit stands for any such word, a unit of sizes for any other, `...` for anything, and blanks for any
    blanks.
    """
    at = 0
    for line in shown:
        pattern = re.compile(r"\s+".join(map(_word, line.split())))
        while at < len(printed) and not pattern.search(printed[at]):
            at += 1
        if at == len(printed):
            return line
        at += 1
    return None


def _word(word: str) -> str:
    if word == "...":
        return ".*"
    if word in _SIZES:
        return f"(?:{'|'.join(_SIZES)})"
    # What is around the digits counts: `lag=7` is `lag=123`, and never `rows=123`.
    return re.sub(
        r"[0-9a-f]{8}\\-[0-9a-f\\-]{27,}|(?:\d[\d.,:]*)", r"[0-9a-fA-F.,:-]+", re.escape(word).replace(r"\.", ".")
    )


class Folder:
    """The folder that the pages speak of: the pipeline's file, its topic, and what runs there."""

    def __init__(self, path: Path, topics: Any, session: Any) -> None:
        self.path, self.topics, self.session = path, topics, session
        # The pages speak of days that are long over.
        self.topic = topics.create(2, "runbook", **{"retention.ms": "-1"})
        self._sent = 0
        self._stop: StopRequest | None = None
        self._thread: threading.Thread | None = None

    @property
    def file(self) -> Path:
        return self.path / "orders.yaml"

    def remake_topic(self) -> None:
        """Delete the topic, and make one of the same name."""
        self.topics.create_again(self.topic, 2)

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def send(self, count: int, when: datetime | None = None, **changed: Any) -> None:
        """Orders of some time, with some of their columns as given."""
        moment = when or datetime.now(UTC)
        orders = []
        for _ in range(count):
            at = (moment + timedelta(milliseconds=self._sent)).isoformat()
            order = {"order_id": self._sent, "customer_id": f"c-{self._sent % 50:02}", "amount": 9.5, "event_time": at}
            orders.append({**order, **changed})
            self._sent += 1
        more = {"timestamp": int(when.timestamp() * 1000)} if when is not None else {}
        self.topics.send(self.topic, orders, **more)

    def drain(self) -> None:
        """Run the pipeline until nothing waits."""
        run(load(self.file), RunOptions(available_now=True), session=self.session)

    def start(self) -> None:
        """Run the pipeline beside the test, as a service would."""
        config, self._stop = load(self.file), StopRequest()
        failed: list[BaseException] = []

        def carry() -> None:
            try:
                run(config, stop=self._stop, session=self.session)
            except BaseException as error:
                failed.append(error)

        self._thread = threading.Thread(target=carry)
        self._thread.start()

        def running() -> bool:
            assert not failed, failed
            now = find_run(config.checkpoint)
            return now.running and now.note is not None and now.note.facts.doing == "running"

        wait_for(running, "the run to begin")

    def await_batch(self, number: int) -> None:
        """Until what runs has committed a batch."""
        wait_for(lambda: SparkCheckpoint(load(self.file).checkpoint).last_committed() == number, f"batch {number}")

    def end(self) -> None:
        """Stop what runs."""
        if self._thread is not None and self._stop is not None:
            self._stop.ask()
            self._thread.join(60)

    def type(self, line: str) -> tuple[int, list[str]]:
        """Run a command; its exit code and what it printed, the topic named as the pages do."""
        words = shlex.split(re.sub(r"\borders(?=[\[:]\d)", self.topic, line))
        if words[:2] == ["penstock", "run"] and "--available-now" not in words:
            try:
                self.start()
            except PenstockError as error:
                return error.exit_code, self._named(str(error))
            return 0, []
        if words[0] != "penstock":
            done = subprocess.run(line, shell=True, cwd=self.path, capture_output=True, text=True, check=False)
            return done.returncode, self._named(done.stdout + done.stderr)
        printed, code = StringIO(), 0
        with _as_typed(words), redirect_stdout(printed), redirect_stderr(printed):
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return code, self._named(printed.getvalue())

    def _named(self, text: str) -> list[str]:
        return text.replace(self.topic, "orders").replace(f"{self.path}/", "").splitlines()


@contextmanager
def _as_typed(words: list[str]) -> Iterator[None]:
    """As if they were this process's own; a command sets signals as it likes."""
    argv, handlers = sys.argv, {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = argv
        for number, handler in handlers.items():
            signal.signal(number, handler)


def folder_for(pages: Path, path: Path, topics: Any, session: Any) -> Folder:
    """A fresh folder with the file of the pages, and a topic of its own."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "orders.yaml").write_text((pages / "orders.yaml").read_text())
    made = Folder(path, topics, session)
    os.environ["ORDERS_BROKERS"], os.environ["ORDERS_TOPIC"] = topics.brokers, made.topic
    return made
