"""The reference pages are what the code says now, and links between the pages lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_WRITTEN = """
import json
import reference
print(json.dumps(reference.pages()))
"""


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The pages as the code would write them, in a process of its own: the generator imports by its folder."""
    command = [sys.executable, "-c", _WRITTEN]
    printed = subprocess.run(command, cwd=ROOT / "docs", check=True, capture_output=True, text=True, timeout=60).stdout
    pages: dict[str, str] = json.loads(printed)
    return pages


def test_reference_pages_are_what_the_code_says(written: dict[str, str]) -> None:
    stored = {file.name: file.read_text() for file in (ROOT / "docs/reference").glob("*.md")}
    changed = sorted(name for name in stored.keys() | written.keys() if stored.get(name) != written.get(name))
    assert changed == [], "run: make docs"


def test_reference_names_every_key_and_every_command(written: dict[str, str]) -> None:
    assert "| `on_data_loss` | `fail`, `record` | `fail` |" in written["pipeline-file.md"]
    assert "## `penstock run`" in written["command-line.md"]
    assert "| `SINK_TOKEN_MISMATCH` | 4 |" in written["errors.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
