from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.cache import cache_home


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


def test_cache_home_by_default_is_below_the_home() -> None:
    assert cache_home() == Path("/home/someone/.cache/penstock")


def test_cache_home_with_xdg_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert cache_home() == Path("/var/cache/me/penstock")


def test_cache_home_with_relative_xdg_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_home() == Path("/home/someone/.cache/penstock")


def test_cache_home_named_outright_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    monkeypatch.setenv("PENSTOCK_HOME", "~/own")
    assert cache_home() == Path("/home/someone/own")
