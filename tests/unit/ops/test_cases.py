"""Cases run in this process: what is expected of rows, counts and stops, and `--update` on files of every shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import MissingError
from penstock.ops.cases.run import CaseResult, SparkWhenNeeded, run_file
from penstock.ops.cases.update import apply_update
from penstock.testing import Message, pipeline

PIPELINE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:9", topics: [orders]}
decode: {format: json, schema: "order_id BIGINT NOT NULL, note STRING, at TIMESTAMP, price DECIMAL(5, 2), data BINARY"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/out}]
checkpoint: checkpoints/orders
"""


def run(folder: Path, cases: str, text: str = PIPELINE) -> tuple[CaseResult, ...]:
    (folder / "orders.yaml").write_text(text)
    if cases:
        (folder / "orders.test.yaml").write_bytes(cases.encode())
    return run_file(folder / "orders.yaml", SparkWhenNeeded()).cases


def updated(folder: Path, cases: str) -> str:
    results = run(folder, cases)
    assert apply_update(folder / "orders.test.yaml", results)
    assert all(result.passed for result in run(folder, "")), (folder / "orders.test.yaml").read_text()
    return (folder / "orders.test.yaml").read_bytes().decode()


def test_stop_of_the_pipeline_fails_unless_it_is_expected(tmp_path: Path) -> None:
    case = "cases: [{{name: a, messages: [{{value: {}}}], expect: {}}}]"
    stopping = PIPELINE.replace("quarantine: {table: lake/bad}\n", "")
    [result] = run(tmp_path, case.format("'{'", "{sinks: {out: []}}"), stopping)
    assert (result.passed, result.error and result.error.code) == (False, "BAD_RECORD")
    assert result.notes[0].startswith("the pipeline stopped: BAD_RECORD orders[0] offset 0: MALFORMED_JSON")
    [result] = run(tmp_path, case.format("'{'", "{error: BAD_RECORD}"), stopping)
    assert result.passed
    [result] = run(tmp_path, case.format("{order_id: 1}", "{error: BAD_RECORD}"), stopping)
    assert result.notes == ("expected the pipeline to stop with BAD_RECORD, but it did not",)
    assert apply_update(tmp_path / "orders.test.yaml", run(tmp_path, case.format("'{'", "{error: X}"), stopping)) == []


def test_quarantine_that_is_left_out_must_be_empty(tmp_path: Path) -> None:
    [result] = run(tmp_path, "cases: [{name: a, messages: [{value: x}], expect: {sinks: {out: []}}}]")
    assert [(table.name, table.passed) for table in result.tables] == [("quarantine", False)]


def test_count_that_is_off_is_told(tmp_path: Path) -> None:
    [result] = run(tmp_path, "cases: [{name: a, messages: [], expect: {counts: {positive: 2}, state: 1}}]")
    assert result.notes == ("count of positive: expected 2, seen 0", "rows of state: expected 1, seen 0")


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_update_keeps_line_ends(tmp_path: Path, end: str) -> None:
    text = "cases:\n  - name: b\u00e4m\n    messages:\n      - value: |\n          {}\n"
    text = text.replace("\n", end) if end else text.rstrip("\n")
    written = updated(tmp_path, text)
    added = (
        "    expect:\n      sinks:\n        out: []\n      quarantine:\n        - {code: MISSING_FIELD, offset: 0}\n"
    )
    assert written.replace("\r\n", "\n").rstrip("\n") + "\n" == text.replace("\r\n", "\n").rstrip("\n") + "\n" + added
    assert written.count("\n") == (written.count("\r\n") if end == "\r\n" else written.count("\n"))
    assert ("\r" in written) == (end == "\r\n")


OUT = "expect:\n      sinks:\n        out:\n          - "


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("expect:\n      sinks: {out: []}   # why\n", f"{OUT}ROW   # why\n"),
        ("expect: {sinks: {out: [{note: x}]}} # why\n", f"{OUT}NOTE # why\n"),
        ("expect:\n", f"{OUT}ROW\n"),
        ('"expect" : ~\n', OUT.replace("expect", '"expect" ') + "ROW\n"),
        (
            f"{OUT}order_id: 2\n            note: >\n              a\n    exact: false\n",
            f"{OUT}BOTH\n    exact: false\n",
        ),
    ],
    ids=["block", "flow", "nothing", "null", "text over lines"],
)
def test_update_replaces_only_what_is_expected(tmp_path: Path, before: str, after: str) -> None:
    head = "cases:\n  - name: a\n    messages: [{value: {order_id: 1, note: yes it is}}]\n    "
    tail = "# the end\n"
    rows = {
        "ROW": "{order_id: 1, note: yes it is, at: null, price: null, data: null}",
        "NOTE": "{note: yes it is}",
        "BOTH": "{order_id: 1, note: yes it is}",
    }
    for name, row in rows.items():
        after = after.replace(name, row)
    assert updated(tmp_path, head + before + tail) == head + after + tail


def test_update_writes_every_type_so_that_it_is_read_back(tmp_path: Path) -> None:
    value = '{order_id: 1, note: "NO: # 1", at: "2026-01-31T08:00:00.5Z", price: "12.5", data: "/wA="}'
    written = updated(tmp_path, f"cases:\n  - name: a\n    messages: [{{value: {value}}}]\n")
    assert (
        "{order_id: 1, note: 'NO: # 1', at: '2026-01-31T08:00:00.500000Z', price: '12.50', data: '0xff00'}" in written
    )


def test_pipeline_from_python_takes_values_messages_and_batches(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    run = pipeline(tmp_path / "orders.yaml")
    result = run([{"order_id": 1}, b"{", None], [Message({"order_id": 2, "note": "x"}, key="k", partition=4)])
    assert [(row["order_id"], row["note"]) for row in result.sink("out")] == [(1, None), (2, "x")]
    assert "_penstock" not in result.sink("out")[0]
    assert [(bad["code"], bad["offset"]) for bad in result.quarantine] == [("MALFORMED_JSON", 1), ("TOMBSTONE", 2)]
    assert run([]).sink("out") == []


def test_fixture_finds_the_pipeline_beside_the_test(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "orders.yaml").write_text(PIPELINE)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing"]\n')
    (tmp_path / "test_orders.py").write_text(
        "def test_it(penstock_pipeline):\n"
        "    assert penstock_pipeline('orders.yaml')([{'order_id': 5}]).sink('out')[0]['order_id'] == 5\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert "1 passed" in done.stdout, done.stdout


def test_case_that_is_asked_for_and_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    (tmp_path / "orders.test.yaml").write_text("cases: [{name: a, messages: []}, {name: b, messages: []}]")
    assert [one.case.name for one in run_file(tmp_path / "orders.yaml", SparkWhenNeeded(), ["b"]).cases] == ["b"]
    with pytest.raises(MissingError) as raised:
        run_file(tmp_path / "orders.yaml", SparkWhenNeeded(), ["b", "c"])
    assert (raised.value.code, raised.value.context["cases"]) == ("CASE_MISSING", "a, b")
    assert "no case named c" in raised.value.summary
