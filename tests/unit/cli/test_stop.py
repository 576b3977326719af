"""`penstock stop` of a folder: a wrong file does not keep the others running."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.cli.main import app

FILE = """\
name: orders
source: {type: kafka, brokers: "localhost:9092", topics: [orders]}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""


def test_stop_of_a_folder_with_a_wrong_file_asks_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("[" * 100_000)
    (tmp_path / "orders.yaml").write_text(FILE)
    done = CliRunner().invoke(app, ["stop", str(tmp_path)])
    assert done.exit_code == 2
    assert "orders: " in done.output and "nested more than 40 levels deep" in done.output


def test_stop_of_a_run_that_still_runs_after_the_timeout_is_to_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(FILE)
    presence = Presence(str(tmp_path / "checkpoints/orders"))
    with checkpoint_lock(str(tmp_path / "checkpoints/orders")):
        presence.begin(RunFacts(pipeline="orders", doing="running", batch_id=4))
        done = CliRunner().invoke(app, ["stop", str(tmp_path / "orders.yaml"), "--timeout", "500ms"])
        assert done.exit_code == 75
        assert "STOP_TIMED_OUT stopping orders: still running after" in done.output
        assert "penstock status FILE" in done.output
        assert presence.stop_asked()
