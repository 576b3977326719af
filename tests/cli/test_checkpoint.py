"""`penstock checkpoint show`, `verify` and `repair`, as a person sees them; the brokers are away."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cli.command import command, penstock
from tests.committing import commit
from tests.spark_checkpoint import QUERY, put, write_checkpoint, write_state

from penstock.model import BatchToken, OffsetRange
from penstock.sinks.delta import DeltaSink

PIPELINE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:1", topics: [orders], options: {socket.timeout.ms: "300"}}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
sinks:
  - {name: out, type: delta, path: lake/orders}
checkpoint: cp
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batch 2 began three minutes ago; the table has it, Spark has not committed it."""
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    write_checkpoint(tmp_path / "cp", [{0: 5}, {0: 10}, {0: 15}], committed=1, watermark=1767226200000)
    write_state(tmp_path / "cp", 2)
    began = time.time() - 155  # three, rounded, for the next 55 seconds too
    os.utime(tmp_path / "cp/offsets/2", (began, began))
    sink = DeltaSink("orders", "out", str(tmp_path / "lake/orders"))
    sink.prepare(pa.schema([pa.field("order_id", pa.int64())]))
    for batch in range(3):
        commit(sink, BatchToken("orders", QUERY, batch, (OffsetRange("orders", 0, batch * 5, batch * 5 + 5),)), [])
    return tmp_path


def test_show_tells_everything_that_is_known_without_the_brokers(folder: Path) -> None:
    done = penstock("checkpoint", "show", "orders.yaml", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    (away,) = [line for line in lines if line.startswith("note: no lag: listing topics: no answer from the brokers")]
    lines.remove(away)
    assert lines == [
        f"orders  {folder}/cp",
        f"  query       {QUERY}",
        "  formats     offsets v1, commits v1, sources v1, state RocksDB 5",
        "  batches     2 started, 1 committed",
        "  open        batch 2 started 3 min ago and has not committed; no run is active: the next run repeats it",
        "  running     no",
        "  watermark   2026-01-01T00:10:00Z",
        "    partition  committed  open to  log end  lag",
        "    orders[0]         10       15        -    -",
        "  state       dedupeWithinWatermark: 2 partitions, 84 B in 4 files",
        "  sink        out  batch 2  agrees",
        "the checkpoint and the sinks agree",
    ]


def test_show_as_json_and_one_batch(folder: Path) -> None:
    done = command("checkpoint", "show", "orders.yaml", "--json", folder=folder)
    body = json.loads(done.stdout)
    assert (body["begun"], body["committed"], body["open"]["batch"], body["agree"]) == (2, 1, 2, True)
    assert [(p["committed"], p["begun"], p["lag"]) for p in body["partitions"]] == [(10, 15, None)]
    assert [(s["name"], s["batch"], s["agrees"]) for s in body["sinks"]] == [("out", 2, True)]
    done = command("checkpoint", "show", "orders.yaml", "--batch", "1", "--json", folder=folder)
    body = json.loads(done.stdout)
    assert (body["committed"], body["ranges"]) == (
        True,
        [{"topic": "orders", "partition": 0, "start": 5, "end": 10}],
    )
    done = command("checkpoint", "show", "orders.yaml", "--batch", "9", folder=folder)
    assert done.returncode == 3
    assert done.stderr.startswith("BATCH_UNKNOWN")


def test_verify_and_repair_tell_the_finding_and_the_way_out(folder: Path) -> None:
    put(folder / "cp/commits/1", "")
    (folder / "cp/.state.tmp").write_text("")
    (folder / "cp/state/0/1/2.changelog").unlink()
    done = command("checkpoint", "verify", "orders.yaml", folder=folder)
    assert (done.returncode, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"orders  {folder}/cp: batch 1 committed, batch 2 begun"
    at = lines.index(f"CHECKPOINT_FILE_BROKEN checkpoint {folder}/cp: commits/1 cannot be used")
    assert lines[at + 1 : at + 4] == [
        "  found: it is empty",
        "  Spark reads this file when it starts, and stops at it.",
        "  way out: penstock checkpoint repair orders.yaml",
    ]
    heads = [line.split()[0] for line in lines[1:-1] if not line.startswith(" ")]
    assert heads == ["CHECKPOINT_FILE_BROKEN", "STATE_MISSING", "BROKER_UNREACHABLE", "CHECKPOINT_STRAY_FILES"]
    assert "checkpoint restore" not in done.stdout, "there is no backup to restore"
    assert lines[-1] == "3 findings that block a run"

    done = command("checkpoint", "repair", "orders.yaml", "--dry-run", folder=folder)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.returncode, lines[1], lines[3]) == (0, "  would remove .state.tmp", "  would remove commits/1")
    done = command("checkpoint", "repair", "orders.yaml", folder=folder)
    lines = done.stdout.splitlines()
    assert done.returncode == 3
    assert lines[1].startswith(f"  backup      the old files are kept in {folder}/cp-backups/")
    assert f"STATE_MISSING checkpoint {folder}/cp: the state that the next batch needs is incomplete" in lines
    assert not (folder / "cp/commits/1").exists()
