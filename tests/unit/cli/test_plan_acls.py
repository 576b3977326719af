"""`penstock plan --acls`: rights that can be copied, without a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app

FILE = """
name: orders
source:
  type: kafka
  brokers: nowhere:9092
  topics: [orders]
  security: {ca_file: not_there.pem, mechanism: SCRAM-SHA-512, username: me, password: "${env:WORD}"}
decode: {format: json, schema: "order_id BIGINT"}
sinks: [{name: out, type: kafka, topic: clean}]
checkpoint: c
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WORD", "hunter2")
    monkeypatch.setenv("COLUMNS", "40")
    (tmp_path / "orders.yaml").write_text(FILE)
    return str(tmp_path / "orders.yaml")


def test_rights_are_printed_whole_in_a_narrow_terminal_and_as_commands(file: str) -> None:
    done = CliRunner().invoke(app, ["plan", file, "--acls"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["operation", "resource", "name", "pattern", "why"]
    assert lines[3].split()[:4] == ["Write", "topic", "clean", "literal"]
    assert lines[-1] == (
        "kafka-acls.sh --bootstrap-server nowhere:9092 --command-config admin.properties --add "
        "--allow-principal User:me --operation Write --transactional-id orders/out/ --resource-pattern-type prefixed"
    )
    assert "hunter2" not in done.output


def test_rights_for_programs_are_each_whole(file: str) -> None:
    done = CliRunner().invoke(app, ["plan", file, "--acls", "--json"])
    told = json.loads(done.output)
    assert told["pipeline"] == "orders"
    assert told["rights"][0] == {
        "brokers": "nowhere:9092",
        "principal": "User:me",
        "operation": "Read",
        "resource": "topic",
        "name": "orders",
        "pattern": "literal",
        "reason": "the source reads it",
    }
