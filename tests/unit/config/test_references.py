from pathlib import Path

import pytest

from penstock.config.files import fill_references, literal_part
from penstock.config.yaml_source import read_document


def filled(tmp_path: Path, text: str) -> object:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    source = read_document(file)
    fill_references(source, tmp_path)
    assert source.problems == []
    return source.data["a"]


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_A", "one")
    monkeypatch.setenv("PENSTOCK_EMPTY", "")
    monkeypatch.setenv("PENSTOCK_REFERENCE", "${env:PENSTOCK_A}")
    monkeypatch.delenv("PENSTOCK_NONE", raising=False)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${env:PENSTOCK_A}", "one"),
        ("x-${env:PENSTOCK_A}-${env:PENSTOCK_A}", "x-one-one"),
        ("${env:PENSTOCK_NONE:-two}", "two"),
        ("${env:PENSTOCK_EMPTY:-two}", "two"),
        ("${env:PENSTOCK_EMPTY}", ""),
        ("${env:PENSTOCK_NONE:-}", ""),
        ("${env:PENSTOCK_NONE:-host:9092}", "host:9092"),
        ("$${env:PENSTOCK_A}", "${env:PENSTOCK_A}"),
        ("${env:PENSTOCK_REFERENCE}", "${env:PENSTOCK_A}"),
        ("$5 {x}", "$5 {x}"),
    ],
)
def test_fill_references_written_value_becomes(tmp_path: Path, written: str, value: str) -> None:
    assert filled(tmp_path, f"a: '{written}'") == value


def test_fill_references_file_is_relative_to_the_pipeline_and_loses_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    assert filled(tmp_path, "a: [{b: '${file:secret}'}]") == [{"b": "s3cret"}]


def test_literal_part_keeps_only_what_the_file_says() -> None:
    assert literal_part("u:${env:P}@h/${env:D:-db}") == "u:@h/db"
