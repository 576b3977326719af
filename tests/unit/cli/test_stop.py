"""`penstock stop` of a folder: a wrong file does not keep the others running."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

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
