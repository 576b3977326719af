"""The audit of the locks reads both of them, and is skipped with a message where it cannot ask."""

from __future__ import annotations

import http.server
import importlib.util
import json
import threading
import urllib.error
from collections.abc import Iterator
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


@pytest.fixture
def osv(audit: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """A server that answers as OSV does; it knows an advisory for each package in the set."""
    advised: set[str] = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            found = [{"vulns": [{"id": "GHSA-1"}]} if one["package"]["name"] in advised else {} for one in asked]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": found}).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(audit, "OSV", f"http://127.0.0.1:{server.server_port}")
        yield advised
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("name", "code"), [("pyspark", 1), ("org.postgresql:postgresql", 0), ("other", 0)])
def test_audit_fails_over_a_package_and_tells_of_a_jar(
    audit: Any, osv: set[str], capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    osv.add(name)
    assert audit.main() == code
    assert (f"{name} " in capsys.readouterr().out) == (name != "other")


def test_audit_leaves_out_what_was_accepted(audit: Any, osv: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    osv.add("pyspark")
    monkeypatch.setattr(audit, "ACCEPTED", {"GHSA-1": "not reached"})
    assert audit.main() == 0
