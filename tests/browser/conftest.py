"""Chromium, started once for each file of tests, and pages in it that must not complain or ask another host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.debian import program

PATIENCE = 30
"""Seconds that a page has to show something: the machine may be busy with other tests."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = program("chromium", "google-chrome", package="chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        # Root has no sandbox, and a small /dev/shm fills up.
        found = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a link in a new browser profile; at the end of the test no page may have complained or called elsewhere.

    A complaint that contains `expected` is part of the test.
    """
    contexts: list[Any] = []
    wrong: list[str] = []

    def open_page(
        url: str, hash_path: str = "", width: int = 1280, height: int = 800, expected: str = "\n", **settings: Any
    ) -> Any:
        host = urlsplit(url).netloc
        context = browser.new_context(
            viewport={"width": width, "height": height}, locale="en-US", timezone_id="UTC", **settings
        )
        context.set_default_timeout(PATIENCE * 1000)
        contexts.append(context)
        page = context.new_page()

        def complained(said: Any) -> None:
            if said.type in ("error", "warning") and expected not in said.text:
                wrong.append(said.text)

        page.on("console", complained)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if urlsplit(asked.url).netloc == host else wrong.append(asked.url))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error(`refused ${e.violatedDirective}`))"
        )
        page.goto(url + hash_path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
