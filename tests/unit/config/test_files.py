from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load
from penstock.config.files import files_behind, pipeline_files

FILE = """\
name: orders
source: {type: kafka, brokers: "localhost:9092", topics: [orders], options: {sasl.password: "${file:secrets/password}"}}
decode: {format: json, schema_file: columns.ddl}
sinks: [{name: out, type: delta, path: lake}]
checkpoint: checkpoint
"""


def test_pipeline_files_of_a_folder_are_its_yaml_without_cases_and_half_written_ones(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "a.test.yaml", "b.test.yml", ".#b.yaml", "notes.txt", "b.yaml~"):
        (tmp_path / name).touch()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "c.yaml").touch()
    assert [file.name for file in pipeline_files([tmp_path])] == ["a.yml", "b.yaml"]


def test_pipeline_files_named_twice_are_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert pipeline_files([Path("a.yaml"), tmp_path, tmp_path / "a.yaml"]) == [Path("a.yaml")]


def test_files_behind_a_pipeline_are_its_own_its_schema_and_those_it_refers_to(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "password").write_text("canary")
    (tmp_path / "columns.ddl").write_text("id BIGINT")
    (tmp_path / "orders.yaml").write_text(FILE)
    behind = files_behind(load(tmp_path / "orders.yaml"))
    assert behind == {tmp_path / "orders.yaml", tmp_path / "columns.ddl", tmp_path / "secrets" / "password"}
