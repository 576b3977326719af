"""The audit of the locks reads both of them, and is skipped with a message where it cannot ask."""

from __future__ import annotations

import importlib.util
import urllib.error
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit_lock", ROOT / "tools/audit_lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_audit_asks_about_every_package_and_every_jar(audit: Any) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    packages = audit.locked_packages(lock)
    assert len(packages) == sum("==" in line and not line.startswith((" ", "#")) for line in lock.splitlines()) > 50
    assert {"package": {"ecosystem": "PyPI", "name": "pyspark"}, "version": "4.1.1"} in packages
    jars = audit.locked_jars((ROOT / "src/penstock/spark/jars.xml").read_text())
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13" in {jar["package"]["name"] for jar in jars}


def test_audit_without_a_network_is_skipped_and_says_so(
    audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(queries: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(audit, "ask", refuse)
    assert audit.main() == 0
    assert "skipped" in capsys.readouterr().out


def test_audit_with_an_advisory_fails(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ask", lambda queries: ["shop 1.0: https://osv.dev/vulnerability/X"])
    assert audit.main() == 1
