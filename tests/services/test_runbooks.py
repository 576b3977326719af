"""Every command of the runbooks, in order, against a real broker and the real fault that the page is about."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.services.runbooks import Folder, commands_of, folder_for, missing_line
from tests.tables import read_table

import penstock.assembly.starting as starting
from penstock.cli.render import err, out

PAGES = Path(__file__).parents[2] / "docs" / "runbooks"


def behind(folder: Folder) -> None:
    """More waits than the cap of a batch lets through for a long time."""
    folder.edit("start: earliest", "start: earliest\n  max_offsets: 100")
    folder.edit("every: 10 seconds", "every: 200 ms")
    folder.send(30_000)
    folder.start()
    folder.await_batch(4)


def damaged_checkpoint(folder: Folder) -> None:
    """The machine lost its power while a batch began: the file of its offsets has no content."""
    folder.send(300)
    folder.drain()
    assert folder.type("penstock checkpoint backup orders.yaml")[0] == 0
    folder.send(200)
    folder.drain()
    (folder.path / "checkpoints/orders/offsets/2").write_bytes(b"")
    folder.send(100)


def checkpoint_deleted(folder: Folder) -> None:
    """Somebody tidied up."""
    folder.send(50)
    shutil.rmtree(folder.path / "checkpoints/orders")


def last_tuesday_again(folder: Folder) -> None:
    """For some days the file left out a customer; it is put right, and those days are not."""
    monday = datetime(2026, 1, 26, 12, tzinfo=UTC)
    right = folder.file.read_text()
    folder.edit("  - name: rules", "  - where: \"customer_id <> 'c-07'\"\n  - name: rules")
    for day in range(4):
        folder.send(200, monday + timedelta(days=day))
    folder.drain()
    folder.file.write_text(right)
    folder.start()


def rubbish_for_an_hour(folder: Folder) -> None:
    """A proxy's error page instead of orders, and refunds that nobody had announced."""
    folder.send(500)
    folder.topics.send(folder.topic, [b"<html>502 Bad Gateway</html>"] * 20)
    folder.send(30, amount=-12.5)
    folder.drain()


def slower_every_day(folder: Folder) -> None:
    """Many small batches, each with its own files."""
    folder.edit("start: earliest", "start: earliest\n  max_offsets: 40")
    folder.send(480)
    folder.drain()
    folder.edit("\n  max_offsets: 40", "")


def topic_recreated(folder: Folder) -> None:
    """The topic is deleted and made again, and grows past the offsets of the checkpoint."""
    folder.send(300)
    folder.drain()
    folder.remake_topic()
    folder.send(500)


CAUSES: dict[str, Callable[[Folder], None]] = {
    "behind": behind,
    "damaged-checkpoint": damaged_checkpoint,
    "last-tuesday-again": last_tuesday_again,
    "rubbish-for-an-hour": rubbish_for_an_hour,
    "slower-every-day": slower_every_day,
    "topic-recreated": topic_recreated,
}
"""For each page what goes wrong before its first command."""

HAPPENS: dict[str, Callable[[Folder], None]] = {"checkpoint-deleted": checkpoint_deleted}
"""What goes wrong later on a page, where it says `<!-- then: ... -->`."""

HOLDS: dict[str, dict[str, int]] = {
    "behind": {"lake/orders": 30_000},
    "damaged-checkpoint": {"lake/orders": 650},
    "last-tuesday-again": {"lake/orders": 788, "lake/tuesday": 200},
    "rubbish-for-an-hour": {"lake/orders": 530},
    "slower-every-day": {"lake/orders": 480},
    "topic-recreated": {"lake/orders": 800},
}
"""The rows of the tables when all has been typed, none twice."""


@pytest.fixture
def folder(tmp_path: Path, topics: Any, session: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """The folder of the pages. Commands that need Spark take the session that is there, and leave it open."""
    for name in ("ORDERS_BROKERS", "ORDERS_TOPIC"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(starting, "start_session", lambda *_, **__: session)
    monkeypatch.setattr(starting, "stop_session", lambda _: None)
    for console in (out, err):
        monkeypatch.setattr(console, "_width", 220)
    made = folder_for(PAGES, tmp_path / "orders", topics, session)
    monkeypatch.chdir(made.path)
    yield made
    made.end()


# Every page on the stand-in; on Spark in `make long`.
ON_SPARK = [pytest.param(page, "spark", marks=pytest.mark.long) for page in sorted(CAUSES)]


@pytest.mark.parametrize(
    ("page", "session"), [*((page, "local") for page in sorted(CAUSES)), *ON_SPARK], indirect=["session"]
)
def test_runbook_followed_word_for_word_leads_out(page: str, folder: Folder) -> None:
    CAUSES[page](folder)
    for typed in commands_of(PAGES / f"{page}.md"):
        if typed.happens is not None:
            HAPPENS[typed.happens](folder)
            continue
        code, printed = folder.type(typed.line)
        assert code == typed.exit_code, (typed.line, printed)
        missing = missing_line(printed, typed.printed)
        assert missing is None, (typed.line, missing, printed)
    for table, rows in HOLDS[page].items():
        ids = read_table(folder.path / table).column("order_id").to_pylist()
        assert (len(ids), len(set(ids))) == (rows, rows)


def test_runbooks_all_have_a_cause_and_stand_in_the_list() -> None:
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    assert pages == CAUSES.keys() == HOLDS.keys()
    listed = set(re.findall(r"\]\(([\w-]+)\.md\)", (PAGES / "README.md").read_text()))
    assert listed == pages


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_runbook_has_no_command_that_this_test_would_not_run(page: Path) -> None:
    outside = re.sub(r"^```console\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^\s*\$ ", outside, re.MULTILINE)
    assert page.stem == "README" or all(f"## {part}" in outside for part in PARTS)


PARTS = ("What you see", "Why", "What to do", "How to know that it is over")
