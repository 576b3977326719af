"""`penstock simulate` as a person meets it: no broker, no JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.batches import finished
from tests.unit.ops.diagnosis.evidences import config
from typer.testing import CliRunner

from penstock.cli.simulate import simulate
from penstock.errors import MissingError
from penstock.metrics.history import RunStarted, history_of

COST = ("--row-cost", "10us", "--fixed-cost", "1s")
app = typer.Typer()
app.command()(simulate)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    config(tmp_path)
    return tmp_path / "orders.yaml"


@pytest.fixture
def measured(tmp_path: Path, file: Path) -> Path:
    """A pipeline that ran on two cores: a second a batch, and 10 microseconds of a core a row."""
    history = history_of(config(tmp_path).checkpoint)
    history.add(RunStarted("direct", partitions=20, cores=2))
    for number, offsets in enumerate((10_000, 100_000, 1_000_000, 2_000_000)):
        facts = {"offsets": offsets, "seconds": 1 + offsets / 2 * 1e-5, "bytes_in": offsets * 200, "slots": 2}
        history.add(finished(number, **facts))
    return file


def test_simulate_measured_pipeline_says_from_what_and_what_comes_of_it(measured: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            str(measured),
            "--rate",
            "500k",
            "--burst",
            "10x:60s",
            "--for",
            "30 minutes",
            "--executors",
            "10",
            "--cores",
            "2",
        ],
    )
    assert done.exit_code == 0
    assert "cost: 1.00 s per batch, and 10.0 microseconds of CPU time per row" in done.stdout
    assert "measured on 4 batches of this pipeline, on 2 cores" in done.stdout
    assert "partitions: 20; large ones are split" in done.stdout
    assert "5,000,000 per second for 1 min from 5 min" in done.stdout
    assert "█" in done.stdout
    assert "20 cores handle 1,900,000 records per second" in done.stdout
    assert "after the burst: a batch then read the whole backlog" in done.stdout
    assert "cores to sustain 500,000 per second: 6" in done.stdout


def test_simulate_one_core_is_told_as_one(file: Path) -> None:
    done = CliRunner().invoke(app, [str(file), "--rate", "200k", "--cores", "1", "--partitions", "2", *COST])
    assert "1 core handles 95,000 records per second; the load is 200,000: the lag grows without limit" in done.stdout


def test_simulate_json_has_assumptions_and_series(measured: Path) -> None:
    done = CliRunner().invoke(app, [str(measured), "--rate", "1,000", "--for", "10 minutes", "--json"])
    told = json.loads(done.stdout)
    assert told["pipeline"] == "orders"
    assert told["asked"]["cores"] == 2 and told["asked"]["partitions"] == 20
    assert told["caught_up_seconds"] is not None and told["series"]


def test_simulate_pipeline_that_never_ran_asks_for_a_run_or_a_cost(file: Path) -> None:
    done = CliRunner().invoke(app, [str(file), "--rate", "1000"])
    assert isinstance(done.exception, MissingError)
    assert done.exception.code == "COST_UNKNOWN"
    assert "--row-cost" in str(done.exception) and "penstock run orders.yaml --available-now" in str(done.exception)
    assert CliRunner().invoke(app, [str(file), "--rate", "1000", "--for", "2 minutes", *COST]).exit_code == 0


def test_simulate_cost_by_options_is_said_to_be_a_guess_where_it_is(file: Path) -> None:
    done = CliRunner().invoke(app, [str(file), "--rate", "1000", "--for", "2 minutes", "--row-cost", "10us"])
    assert "set by options, not measured, and without --fixed-cost: 0.5 s is a guess" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rate", "-5"], "is not a number >= 0"),
        (["--rate", "many"], "write 500000, 500k or 0.5M"),
        (["--rate", "5", "--burst", "10 times"], "such as 10x:60s"),
        (["--rate", "5", "--burst", "10x:60"], "the unit is missing"),
        (["--rate", "5", "--burst", "10x:2 hours"], "use a longer --for"),
        (["--rate", "5", "--for", "30 days"], "at most 7 days"),
        (["--rate", "5", "--hot", "150%"], "is not a share"),
        (["--rate", "5", "--executors", "3"], "cores of each machine"),
        (["--rate", "5", "--row-cost", "fast"], "is not a time above 0"),
    ],
)
def test_simulate_option_that_makes_no_sense_is_refused_with_an_example(
    file: Path, options: list[str], told: str
) -> None:
    done = CliRunner().invoke(app, [str(file), *COST, *options], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert told in done.stderr


def test_simulate_missing_file_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(tmp_path / "none.yaml"), "--rate", "5", *COST])
    assert done.exit_code != 0 and "none.yaml" in str(done.exception)


def test_simulate_needs_no_spark_and_no_kafka_client() -> None:
    script = (
        "import sys, penstock.ops.simulate, penstock.cli.simulate_text, penstock.cli.simulate\n"
        "sys.exit(bool({'pyspark', 'confluent_kafka', 'deltalake'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
