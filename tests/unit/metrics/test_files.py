"""The dashboard and the alert rules that ship: checked by Prometheus' own tool, over figures that there are."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.debian import program
from tests.unit.metrics.test_prometheus import everything
from typer.testing import CliRunner

from penstock.cli.metrics import app
from penstock.errors import MissingError
from penstock.metrics.prometheus import Exposition

FILES = Path(str(files("penstock.metrics") / "files"))
RULES = FILES / "alerts.rules.yaml"
EXPECTED = Path(__file__).with_name("alerts.rules.test.yaml")


def promtool(*words: str) -> str:
    done = subprocess.run(
        [str(program("promtool", package="prometheus")), *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def exported() -> set[str]:
    """The names of the series of a pipeline that has told everything."""
    exposition = Exposition("orders")
    everything(exposition)
    names = {sample.name for family in exposition.registry.collect() for sample in family.samples}
    return names | {"penstock_batch_seconds"}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FILES / "grafana.json").read_text())
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def test_rules_are_accepted_by_prometheus() -> None:
    assert "SUCCESS: 10 rules found" in promtool("check", "rules", str(RULES))


def test_rules_fire_on_what_they_are_for_and_on_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(EXPECTED.read_text().replace("[RULES]", f"[{RULES}]"))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_rules_are_each_tested_healthy() -> None:
    rules = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    healthy = {case["alertname"] for case in yaml.safe_load(EXPECTED.read_text())["tests"][0]["alert_rule_test"]}
    assert healthy == rules


def test_rules_and_dashboard_name_only_figures_that_there_are() -> None:
    written = " ".join([RULES.read_text(), *expressions()])
    assert set(re.findall(r"\bpenstock_[a-z_]+", written)) <= exported()


def test_dashboard_shows_every_figure() -> None:
    shown = set(re.findall(r"\bpenstock_[a-z_]+", " ".join(expressions())))
    assert exported() - shown == {"penstock_batch_seconds", "penstock_batch_seconds_sum"}


def test_dashboard_expressions_are_accepted_by_prometheus(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(file))


def test_dashboard_is_one_that_grafana_can_import() -> None:
    body = dashboard()
    assert (body["uid"], body["title"]) == ("penstock", "Penstock")
    variables = {variable["name"]: variable for variable in body["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["pipeline"]["definition"] == "label_values(penstock_up, pipeline)"
    panels = body["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["title"] and panel["targets"]
    assert all('pipeline=~"$pipeline"' in expr for expr in expressions())


def test_export_writes_both_files_and_keeps_what_was_changed(tmp_path: Path) -> None:
    def export(*words: str) -> Any:
        return CliRunner().invoke(app, ["export", str(tmp_path / "out"), *words])

    assert "would write" in export("--dry-run").output
    assert not (tmp_path / "out").exists()
    assert export().exit_code == 0
    rules = tmp_path / "out" / "alerts.rules.yaml"
    assert {file.name for file in rules.parent.iterdir()} == {"alerts.rules.yaml", "grafana.json"}
    assert rules.read_text() == RULES.read_text()
    assert export().exit_code == 0
    rules.write_text("mine")
    refused = export()
    assert isinstance(refused.exception, MissingError) and refused.exception.code == "FILE_EXISTS"
    assert rules.read_text() == "mine"
    assert "alerts.rules.yaml.bak" in export("--force").output.replace("\n", "")
    rules.write_text("mine again")
    export("--force")
    assert rules.with_name("alerts.rules.yaml.bak").read_text() == "mine"
    assert rules.with_name("alerts.rules.yaml.bak1").read_text() == "mine again"
    assert rules.read_text() == RULES.read_text()


PIPELINE = """\
name: orders
source: {type: kafka, brokers: localhost:9092, topics: [orders]}
decode: {format: raw}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""


def show(folder: Path, metrics: str, *words: str) -> Any:
    file = folder / "orders.yaml"
    file.write_text(PIPELINE + metrics)
    return CliRunner().invoke(app, ["show", str(file), *words])


def test_show_prints_the_figures_of_the_endpoint(tmp_path: Path) -> None:
    exposition = Exposition("orders")
    everything(exposition)
    port = exposition.serve("127.0.0.1", 0)
    try:
        asked = json.loads(show(tmp_path, f"metrics: {{port: {port}}}", "--json").output)
        told = show(tmp_path, f"metrics: {{port: {port}, host: 0.0.0.0}}").output
    finally:
        exposition.close()
    figures = {(one["name"], *one["labels"].values()): one["value"] for one in asked["figures"]}
    assert figures["penstock_rows_in_total", "orders"] == 100
    assert re.search(r"penstock_quarantined_total +code JSON_BROKEN +7", told)


@pytest.mark.parametrize(
    ("metrics", "code"),
    [("", "METRICS_OFF"), ("metrics: {port: 0}", "METRICS_OFF"), ("metrics: {port: 1}", "METRICS_SILENT")],
)
def test_show_without_an_endpoint_says_what_is_missing(tmp_path: Path, metrics: str, code: str) -> None:
    error = show(tmp_path, metrics).exception
    assert isinstance(error, MissingError) and error.code == code
