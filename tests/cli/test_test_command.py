"""`penstock test`: what a person and a machine see of cases that pass and cases that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from tests.cli.command import PENSTOCK, command, penstock

Write = Callable[..., Path]

CASES = """\
# kept
cases:
  - name: rounding   # and this
    messages:
      - value: {order_id: 1, amount: 1.5}
      - value: {order_id: 2, amount: 2.5}   # two
      - value: '{"order_id":'
    expect:
      sinks:
        out:
          - {order_id: 1, amount: 1.5}
          - {order_id: 2, amount: 2.0}
          - {order_id: 3, amount: 0}
      # a comment that goes
      quarantine: [{code: MALFORMED_JSON}]

  # before the second
  - name: second
    messages: [{value: {order_id: 7, amount: null}}]
  - {name: third, messages: [{value: {order_id: 8}}], expect: {sinks: {out: []}}}
"""


@pytest.fixture
def cases(write: Write, tmp_path: Path) -> Path:
    write()
    file = tmp_path / "orders.test.yaml"
    file.write_text(CASES)
    return file


def test_test_failing_case_prints_expected_against_seen(cases: Path, tmp_path: Path) -> None:
    done = penstock("test", "orders.yaml", "--case", "rounding", folder=tmp_path)
    assert (done.returncode, done.stderr) == (4, "")
    first, verdict, *lines, total = done.stdout.splitlines()
    assert first == "orders.test.yaml  direct lane: no transforms"
    assert verdict.startswith("  FAIL  rounding  ")
    assert [line.rstrip() for line in lines] == [
        "        sink out: 1 as expected, 1 different, 1 missing",
        "                     order_id  amount",
        "        as expected  1         1.5",
        "        expected     2         2.0",
        "        seen         2         ! 2.5",
        "        missing      3         0",
    ]
    assert total.startswith("1 case: 1 failed, ")


def test_test_all_pass_exits_with_nothing_wrong(cases: Path, tmp_path: Path) -> None:
    cases.write_text(CASES.replace("2.0", "2.5").replace("          - {order_id: 3, amount: 0}\n", ""))
    done = command("test", "orders.test.yaml", "--case", "rounding", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("1 case: all passed, ")


def test_test_update_writes_what_is_seen_and_keeps_the_rest(cases: Path, tmp_path: Path) -> None:
    done = command("test", "orders.yaml", "--update", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrote the actual results into orders.test.yaml: rounding, second, third" in done.stdout
    assert (
        cases.read_text()
        == """\
# kept
cases:
  - name: rounding   # and this
    messages:
      - value: {order_id: 1, amount: 1.5}
      - value: {order_id: 2, amount: 2.5}   # two
      - value: '{"order_id":'
    expect:
      sinks:
        out:
          - {order_id: 1, amount: 1.5}
          - {order_id: 2, amount: 2.5}
      quarantine:
        - {code: MALFORMED_JSON}

  # before the second
  - name: second
    messages: [{value: {order_id: 7, amount: null}}]
    expect:
      sinks:
        out:
          - {order_id: 7, amount: null}
  - {name: third, messages: [{value: {order_id: 8}}], expect: {sinks: {out: [{order_id: 8, amount: null}]}}}
"""
    )
    before = cases.stat().st_mtime_ns
    assert command("test", "orders.yaml", "--update", folder=tmp_path).returncode == 0
    assert cases.stat().st_mtime_ns == before, "what passes is not written again"


def test_test_as_json_and_junit_tell_the_same(cases: Path, tmp_path: Path) -> None:
    done = command("test", "orders.yaml", "--json", "--junit", "reports/junit.xml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (4, "")
    told = json.loads(done.stdout)
    assert (told["passed"], [file["lane"] for file in told["files"]]) == (False, ["direct"])
    first, second, third = told["files"][0]["cases"]
    assert [case["passed"] for case in (first, second, third)] == [False, False, False]
    assert [(row["kind"], row["columns"]) for row in first["tables"][0]["rows"]] == [
        ("same", []),
        ("differs", ["amount"]),
        ("missing", []),
    ]
    assert second["notes"] == ["nothing is expected yet: --update records the actual results"]
    [suite] = Xml.parse(tmp_path / "reports/junit.xml").getroot()
    assert {name: suite.get(name) for name in ("name", "tests", "failures")} == {
        "name": "orders",
        "tests": "3",
        "failures": "3",
    }
    failure = suite[0].find("failure")
    assert failure is not None and failure.text is not None
    assert "amount: expected 2.0, seen 2.5" in failure.text


def test_test_without_a_case_file_shows_how_to_begin(write: Write, tmp_path: Path) -> None:
    write()
    done = command("test", "orders.yaml", folder=tmp_path)
    assert done.returncode == 3
    told = done.stderr.splitlines()
    assert told[0] == "CASE_FILE_MISSING orders.test.yaml: no cases for orders.yaml"
    skeleton = "\n".join(line.removeprefix("  ") for line in told[3:7]) + "\n"
    assert skeleton == (
        "cases:\n  - name: a good message\n    messages:\n      - {value: {order_id: 1, amount: 1.5}}\n"
    )
    (tmp_path / "orders.test.yaml").write_text(skeleton)
    assert command("test", "orders.yaml", "--update", folder=tmp_path).returncode == 0
    assert "{order_id: 1, amount: 1.5}\n" in (tmp_path / "orders.test.yaml").read_text()


def test_test_wrong_case_file_is_told_with_its_place(cases: Path, tmp_path: Path) -> None:
    cases.write_text("cases: [{name: a, mesages: []}]")
    done = command("test", "orders.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('orders.test.yaml:1:19 cases[0].mesages: unknown key "mesages"\n')


def test_test_unknown_case_is_told_with_those_there_are(cases: Path, tmp_path: Path) -> None:
    done = command("test", "orders.yaml", "--case", "fourth", folder=tmp_path)
    assert done.returncode == 3
    assert "cases: rounding, second, third" in done.stderr


def test_test_watch_runs_again_on_save_and_ends_on_interrupt(cases: Path, tmp_path: Path) -> None:
    words = [PENSTOCK, "test", "orders.yaml", "--case", "third", "--watch"]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    watching = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    try:
        lines = iter(watching.stdout.readline, "")
        assert any("1 failed" in line for line in lines)
        assert any("waiting for a change" in line for line in lines)
        deadline = time.monotonic() + 30
        cases.write_text(CASES.replace("out: []", "out: [{order_id: 8}]"))
        assert any("changed: orders.test.yaml" in line for line in lines)
        assert any("all passed" in line for line in lines)
        assert any("waiting for a change" in line for line in lines)
        assert time.monotonic() < deadline
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    finally:
        watching.kill()
