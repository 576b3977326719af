"""What `penstock submit` hands on to the run that a cluster starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from penstock.cli.main import app

PIPELINE = {
    "name": "orders",
    "source": {"type": "kafka", "brokers": "kafka:9092", "topics": ["orders"]},
    "decode": {"format": "json", "schema": "order_id BIGINT"},
    "sinks": [{"name": "out", "type": "delta", "path": "s3://lake/orders"}],
    "checkpoint": "s3://lake/checkpoints/orders",
}


@pytest.mark.parametrize(
    ("given", "handed_on"),
    [
        ([], []),
        (["--available-now", "--give-up-after", "60"], ["--available-now", "--give-up-after", "60"]),
        (["--resume-from-table", "--give-up-after", "300"], ["--resume-from-table"]),
        (["--stalled-after", "60"], ["--stalled-after", "60"]),
    ],
)
def test_submit_rendered_hands_the_options_of_the_run_on(
    given: list[str], handed_on: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(yaml.safe_dump(PIPELINE))
    words = ["submit", str(file), "--master", "k8s://https://cluster:6443", "--deploy-mode", "cluster"]
    done = CliRunner().invoke(app, [*words, "--image", "orders:1", "--render", str(tmp_path / "out"), *given])
    assert done.exit_code == 0, done.output
    [application] = yaml.safe_load_all((tmp_path / "out/spark-application.yaml").read_text())
    _, _, *options = application["spec"]["arguments"]
    assert options == ["--log-format", "json", *handed_on]


def test_submit_secret_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(yaml.safe_dump(PIPELINE))
    words = ["submit", str(file), "--master", "yarn", "--deploy-mode", "cluster", "--render", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--conf", "spark.hadoop.fs.s3a.secret.key=hunter2"])
    assert done.exit_code == 2
    assert "hunter2" not in done.output and not (tmp_path / "out").exists()
