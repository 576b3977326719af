"""Every file under `tests/definitions`: the valid ones load, the invalid ones give exactly the text beside them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config import InvalidDefinition, load

DEFINITIONS = Path(__file__).parents[2] / "definitions"
INVALID = sorted((DEFINITIONS / "invalid").glob("*.yaml"))
VALID = sorted((DEFINITIONS / "valid").glob("*.yaml"))
SECRETS = ("hunter2", "many words")
"""As they stand in files, and what the environment gives for a reference."""
WITH_SECRETS = [file for file in INVALID if re.search(b"hunter2|PENSTOCK_TEST_WORD", file.read_bytes())]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_WORD", SECRETS[1])
    monkeypatch.setenv("PENSTOCK_TEST_NUMBER", "5000")
    monkeypatch.delenv("PENSTOCK_TEST_NOT_SET", raising=False)


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_load_invalid_file_gives_exact_message(
    file: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(InvalidDefinition) as raised:
        load(Path(file.name))
    golden(file.with_suffix(".expected"), f"{raised.value}\n")


@pytest.mark.parametrize("file", WITH_SECRETS, ids=lambda file: file.stem)
def test_load_invalid_file_never_shows_a_secret(file: Path) -> None:
    with pytest.raises(InvalidDefinition) as raised:
        load(file)
    shown = f"{raised.value} {raised.value!r} {raised.value.problems!r}"
    assert not [secret for secret in SECRETS if secret in shown]


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_load_valid_file_loads(file: Path) -> None:
    assert load(file).file == file


def test_definitions_folders_are_complete() -> None:
    assert len(INVALID) >= 45
    assert len(VALID) >= 10
    assert len(WITH_SECRETS) >= 25
    expected = {file.stem for file in (DEFINITIONS / "invalid").glob("*.expected")}
    assert expected == {file.stem for file in INVALID}


def test_load_ten_problems_file_gives_ten_problems_in_file_order() -> None:
    with pytest.raises(InvalidDefinition) as raised:
        load(DEFINITIONS / "invalid" / "ten_problems_at_once.yaml")
    problems = raised.value.problems
    assert len(problems) == 10
    places = [(problem.line, problem.column) for problem in problems]
    assert places == sorted(set(places))
