"""Pipelines at a glance, with no broker to be asked: what the checkpoint, the quarantine and the backups tell."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import backups_of, make_backup
from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.cli.main import app
from penstock.config.files import pipeline_files
from penstock.ops.status import PipelineStatus, status_of
from penstock.quarantine import QUARANTINE_SCHEMA

FILE = """\
name: {name}
source: {{type: kafka, brokers: "127.0.0.1:1", topics: [orders], options: {{socket.timeout.ms: 300}}}}
decode: {{format: json, schema: "order_id BIGINT NOT NULL"}}
quarantine: {{table: lake/bad}}
sinks: [{{name: out, type: delta, path: lake/orders}}]
checkpoint: checkpoints/{name}
"""
OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"orders":{"0":10}}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline whose batch 0 is committed, and whose batch 1 has begun."""
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.format(name="orders"))
    checkpoint = tmp_path / "checkpoints/orders"
    written = {"metadata": '{"id":"11111111-2222-3333-4444-555555555555"}', "commits/0": "v1\n{}"}
    for name, text in {**written, "offsets/0": OFFSETS, "offsets/1": OFFSETS.replace("10", "20")}.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    return path


def codes(status: PipelineStatus) -> list[str]:
    return sorted(one.code for one in status.warnings)


def test_status_of_a_pipeline_whose_broker_is_away_still_tells_the_rest(file: Path) -> None:
    now = datetime.now(UTC)
    rows = [("orders", now), ("orders", now - timedelta(days=2)), ("others", now), ("orders.replay-7", now)]
    bad = [{"pipeline": name, "batch_id": 1, "quarantined_at": at} for name, at in rows]
    empty = dict.fromkeys(QUARANTINE_SCHEMA.names)
    fixed = {"stage": "decode", "code": "X", "message": "m", "topic": "orders", "partition": 0, "offset": 1}
    table = pa.Table.from_pylist([{**empty, **fixed, "timestamp": now, **row} for row in bad], schema=QUARANTINE_SCHEMA)
    write_deltalake(file.parent / "lake/bad", table)
    checkpoint = str(file.parent / "checkpoints/orders")
    made = make_backup(SparkCheckpoint(checkpoint), backups_of(checkpoint), "orders")
    found = status_of(file)
    assert (found.state, found.batch_id, found.open_batch, found.lag) == ("not running", 0, 1, None)
    assert found.quarantined is not None
    assert (found.quarantined.records, found.quarantined.exact) == (2, True)
    assert found.backup_at == made.created_at
    assert found.batch_at is not None and now - found.batch_at < timedelta(minutes=1)
    assert codes(found) == ["BROKER_UNREACHABLE"]


def test_status_of_a_run_tells_where_it_is_and_which_batch_is_open_too_long(file: Path) -> None:
    checkpoint = file.parent / "checkpoints/orders"
    long_ago = time.time() - 3600
    os.utime(checkpoint / "offsets/1", (long_ago, long_ago))
    assert "BATCH_OPEN_LONG" not in codes(status_of(file))
    with checkpoint_lock(str(checkpoint)):
        run = Presence(str(checkpoint))
        run.begin(RunFacts(pipeline="orders", doing="waiting to retry: SINK_CONFLICT", batch_id=0))
        found = status_of(file)
        run.beat(RunFacts(pipeline="orders", doing="running", stalled="the open batch has shown no progress"))
        stalled = status_of(file)
        run.end("DATA_LOSS")
    assert found.state == "running"
    assert found.run is not None and found.run.holder == f"process {os.getpid()} on {socket.gethostname()}"
    assert codes(found) == ["BATCH_OPEN_LONG", "BROKER_UNREACHABLE", "SINK_CONFLICT"]
    assert codes(stalled) == ["BATCH_OPEN_LONG", "BATCH_STALLED", "BROKER_UNREACHABLE"]
    found = status_of(file)
    assert (found.state, codes(found)) == ("failed", ["BROKER_UNREACHABLE", "DATA_LOSS"])


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda folder: (folder / "metadata").unlink(), "CHECKPOINT_METADATA_LOST"),
        (lambda folder: (folder / "offsets/1").write_text(""), "CHECKPOINT_FILE_BROKEN"),
        (lambda folder: (folder / "metadata").write_bytes(b"\xff\xfe"), "CHECKPOINT_FILE_BROKEN"),
    ],
)
def test_status_of_a_damaged_checkpoint_has_the_code_of_what_blocks_a_run(
    file: Path, damage: Callable[[Path], Any], code: str
) -> None:
    damage(file.parent / "checkpoints/orders")
    assert code in codes(status_of(file))


def test_status_of_several_files_tells_a_wrong_one_in_its_line(file: Path) -> None:
    (file.parent / "wrong.yaml").write_text("name: wrong\n")
    (file.parent / "orders.test.yaml").write_text("cases: []\n")
    assert [path.name for path in pipeline_files([file.parent])] == ["orders.yaml", "wrong.yaml"]
    done = CliRunner().invoke(app, ["status", str(file.parent), str(file.parent / "none.yaml"), "--json"])
    orders, wrong, missing = json.loads(done.stdout)
    assert done.exit_code == 2
    assert (orders["pipeline"], orders["running"], orders["last_batch"], orders["error"]) == ("orders", False, 0, None)
    assert wrong["error"]["code"] == missing["error"]["code"] == "INVALID_DEFINITION"
    done = CliRunner().invoke(app, ["status", str(file)])
    assert done.exit_code == 0
    assert "BROKER_UNREACHABLE" in done.stdout.splitlines()[1]


def test_status_of_a_pipeline_whose_certificates_cannot_be_read_still_tells_who_runs_it(file: Path) -> None:
    text = file.read_text().replace("options:", "security: {tls: true, ca_file: gone.pem}, options:")
    file.write_text(text)
    checkpoint = str(file.parent / "checkpoints/orders")
    with checkpoint_lock(checkpoint):
        Presence(checkpoint).begin(RunFacts(pipeline="orders", batch_id=0))
        found = status_of(file)
    assert found.error is None and found.state == "running"
    assert codes(found)
