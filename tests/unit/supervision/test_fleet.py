"""A fleet with bad files in its folder: each is the state of its own pipeline, and the others run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import PipelineConfig
from penstock.errors import DefinitionError
from penstock.preflight.options import RunOptions, RunSummary
from penstock.supervision import fleet as fleet_module
from penstock.supervision import member as member_module
from penstock.supervision.fleet import run_fleet
from penstock.supervision.fleet_events import FleetOptions

GOOD = """\
name: {name}
source: {{type: kafka, brokers: "localhost:9092", topics: [orders]}}
decode: {{format: json, schema: "id BIGINT"}}
sinks: [{{name: out, type: delta, path: lake/{name}}}]
checkpoint: checkpoint/{name}
"""
EXITING = GOOD.format(name="exiting") + "transforms: [{map_arrow: {function: leaves.step, columns: id BIGINT}}]\n"
BAD = {
    "number.yaml": GOOD.format(name="0b_"),
    "deep.yaml": "[" * 500_000,
    "bytes.yaml": "\0\0",
    "exits.yaml": EXITING,
    "pattern.yaml": GOOD.format(name="pattern").replace("topics: [orders]", 'pattern: "' + "(" * 5000 + '"'),
}


class _Session:
    class sparkContext:  # noqa: N801 - Spark's own name
        class _gateway:  # noqa: N801 - Spark's own name
            proc = None


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def run(config: PipelineConfig, *others: Any) -> RunSummary:
        names.append(config.name)
        return RunSummary()

    monkeypatch.setattr(member_module, "run", run)
    monkeypatch.setattr(member_module, "own_session", lambda session, settings, pool: session)
    return names


def test_fleet_with_hostile_files_runs_the_good_ones(tmp_path: Path, ran: list[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.format(name=name))
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(1)\n")
    for name, text in BAD.items():
        (tmp_path / name).write_text(text)
    summary = run_fleet([tmp_path], FleetOptions(run=RunOptions(available_now=True)), session=_Session())
    assert sorted(ran) == ["one", "two"]
    errors = {name: outcome.error for name, outcome in summary.outcomes.items()}
    assert errors.pop("one") is errors.pop("two") is None
    assert len(errors) == len(BAD) and all(isinstance(error, DefinitionError) for error in errors.values()), errors


def test_fleet_file_that_breaks_the_loader_is_that_pipelines_state(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.format(name=name))
    load = fleet_module.load

    def breaking(file: Path) -> PipelineConfig:
        if file.name == "one.yaml":
            raise TypeError("a fault of the loader")
        return load(file)

    monkeypatch.setattr(fleet_module, "load", breaking)
    summary = run_fleet([tmp_path], FleetOptions(run=RunOptions(available_now=True)), session=_Session())
    [error] = [outcome.error for outcome in summary.outcomes.values() if outcome.error is not None]
    assert ran == ["two"] and error.code == "FILE_UNUSABLE" and "a fault of the loader" in error.summary
