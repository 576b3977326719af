"""What docs/scale.md computes is what `penstock simulate` says now, from the figures that the bench measured."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.simulate import simulate

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/scale.md").read_text()
FIXED = "--fixed-cost 270ms"
ROWS = re.findall(r"^\| ([^|]+) \| ([\d,]+) \| ([\d.]+) µs \| (\d+) \|$", PAGE, re.MULTILINE)

app = typer.Typer()
app.command()(simulate)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file of the page."""
    body = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert body is not None
    (tmp_path / "orders.yaml").write_text(body[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(options: str) -> str:
    done = CliRunner().invoke(app, shlex.split(options))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("folder")
def test_page_quotes_simulate_word_for_word() -> None:
    quoted = re.findall(r"```\n\$ penstock simulate (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert quoted
    for options, printed in quoted:
        assert said(options) == printed


@pytest.mark.usefixtures("folder")
def test_cores_of_every_pipeline_are_those_that_simulate_computes() -> None:
    assert len(ROWS) >= 5
    for pipeline, rate, cost, cores in ROWS:
        assert f"{2e6 / int(rate.replace(',', '')):.1f}" == cost, pipeline
        told = json.loads(
            said(f"orders.yaml --rate 500k --row-cost {cost}us {FIXED} --cores 2 --partitions 200 --json")
        )
        assert str(told["cores_to_hold"]) == cores, pipeline


def test_measured_costs_are_those_of_the_bench() -> None:
    curves = json.loads((ROOT / "bench/results/scale/results.json").read_text())["curves"]
    by_part = {curve["part"]: {point["size"]: point["cost"] for point in curve["points"]} for curve in curves}
    assert f"| {by_part['cores'][1]:,.0f} |" in PAGE
    assert ROWS[0][1] == f"{by_part['cores'][2]:,.0f}"
    for partitions, seconds in by_part["partitions"].items():
        assert f"| {partitions:,.0f} | {seconds:.2f} s |" in PAGE


def test_costs_of_commits_are_those_of_the_bench() -> None:
    for curve in json.loads((ROOT / "bench/results/commits/results.json").read_text())["curves"]:
        at = {point["size"]: f"{point['cost']:.2f}" for point in curve["points"]}
        shown = " | ".join([at[100], at[1_000], at.get(10_000, ""), f"{curve['exponent']:.2f}"])
        assert f"| {curve['name']} | {shown} |" in PAGE
