"""`penstock diagnose` as a person meets it, with no broker to be asked."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.batches import finished
from tests.unit.ops.diagnosis.evidences import config

from penstock.cli.status import diagnose, show_diagnosis
from penstock.metrics.history import history_of
from penstock.ops.diagnosis import Cause, Diagnosis


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline with a backlog behind small batches."""
    pipeline = config(tmp_path, source={"max_offsets": 100, "options": {"socket.timeout.ms": "300"}})
    history = history_of(pipeline.checkpoint)
    for number in range(5):
        began = datetime.now(UTC) - timedelta(seconds=5 - number)
        figures = {"seconds": 0.2, "waited": 0.1, "offsets": 100, "rows_in": 100, "rows_out": 100, "lag": 9_000}
        history.add(finished(number, started_at=began, **figures))
    return tmp_path / "orders.yaml"


def test_diagnose_prints_the_cause_its_evidence_and_the_change(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnose(file)
    printed = capsys.readouterr().out
    assert "orders: 1 likely cause\n" in printed
    assert "1. batches are limited to 100 offsets, and end after 0.2 s  CAP_LOW" in printed
    assert "change: remove source.max_offsets (100)" in printed
    assert "the brokers could not be looked at: BROKER_UNREACHABLE" in printed


def test_diagnose_json_has_causes_with_evidence_and_change(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnose(file, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"pipeline", "at", "causes", "idle", "looked", "notes"}
    [cause] = found["causes"]
    assert cause.keys() == {"code", "weight", "summary", "evidence", "change"}
    assert cause["code"] == "CAP_LOW"


def test_diagnose_of_a_healthy_pipeline_says_what_was_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    show_diagnosis(Diagnosis("orders", datetime.now(UTC), (), ("table [out]: 1 files",), ("no run",)))
    assert capsys.readouterr().out == "orders: nothing is slow or stuck\ntable [out]: 1 files\nno run\n"


def test_diagnose_of_a_pipeline_that_does_not_run_says_so_before_anything_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_diagnosis(Diagnosis("orders", datetime.now(UTC), (), idle="not running; 5 offsets wait"))
    assert capsys.readouterr().out == "orders: not running; 5 offsets wait\n"
    cause = Cause("SLOW_SINK", 0.8, "sink out is slow", ("1 s of 2 s",), "a nearer one")
    show_diagnosis(Diagnosis("orders", datetime.now(UTC), (cause,), idle="not running; 5 offsets wait"))
    assert capsys.readouterr().out.startswith("orders: 1 likely cause\nnot running; 5 offsets wait\n\n1. sink out")


def test_diagnose_numbers_several_causes(capsys: pytest.CaptureFixture[str]) -> None:
    cause = Cause("SLOW_SINK", 0.8, "sink [out] is slow", ("1 s of 2 s",), "sinks[0].options: {a: b}")
    show_diagnosis(Diagnosis("orders", datetime.now(UTC), (cause, cause)))
    printed = capsys.readouterr().out
    assert "2 likely causes, most likely first" in printed
    assert "2. sink [out] is slow  SLOW_SINK\n   1 s of 2 s\n   change: sinks[0].options: {a: b}\n" in printed


def test_diagnose_needs_no_spark() -> None:
    script = "import sys, penstock.ops.diagnosis, penstock.cli.status; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
