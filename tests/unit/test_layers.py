"""The import contracts hold, and each of them can break: a planted import in a copy of the source is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
]

# The contract, the package that breaks it, and how.
VIOLATIONS = [
    ("Layers", "decoders", "import penstock.assembly"),
    ("Layers", "sinks", "import penstock.transforms"),
    ("Layers", "assembly", "import penstock.preflight"),
    ("Layers", "preflight", "import penstock.engine"),
    ("Layers", "engine", "import penstock.supervision"),
    ("Layers", "devstack", "import penstock.spark"),
    ("Layers", "model", "import penstock.config"),
    ("What runs in a task", "readers", "import pyspark"),
    ("What runs in a task", "decoders", "import typer"),
    ("What runs in a task", "transforms", "import penstock.spark.session"),
    ("What runs in a task", "quarantine", "import pyspark"),
    ("What runs in a task", "sinks", "import pyspark"),
    ("A pipeline file", "config", "import pyspark"),
    ("A pipeline file", "config", "import confluent_kafka"),
    ("A pipeline file", "config", "import deltalake"),
    ("A checkpoint", "checkpoint", "import pyspark"),
    ("The dev stack", "devstack", "import typer"),
    ("The contracts and the model", "model", "import pydantic"),
    ("Only the command line", "ops", "import typer"),
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_contracts_on_the_tree_as_it_is_are_kept(copy: Path) -> None:
    linted = lint(copy)
    assert linted.returncode == 0, linted.stdout


def test_contracts_each_have_a_planted_violation() -> None:
    planted = {start for start, _, _ in VIOLATIONS}
    assert all(any(name.startswith(start) for start in planted) for name in CONTRACTS)


def test_contracts_with_a_planted_violation_break(copy: Path) -> None:
    planted = {}
    for number, (start, package, line) in enumerate(VIOLATIONS):
        file = copy / "src" / "penstock" / package / f"planted_{number}.py"
        file.write_text(f"{line}\n")
        planted[file] = (next(name for name in CONTRACTS if name.startswith(start)), f"penstock.{package}.{file.stem}")
    try:
        linted = lint(copy)
    finally:
        for file in planted:
            file.unlink()
    assert linted.returncode == 1
    _, *parts = re.split(r"\n(.+)\n-+\n", linted.stdout)
    broken = dict(zip(parts[::2], parts[1::2], strict=True))
    for contract, module in planted.values():
        assert f" {module} -> " in broken[contract], f"{contract}: {module}\n{linted.stdout}"


def test_package_outside_every_layer_breaks_the_layers(copy: Path) -> None:
    stray = copy / "src" / "penstock" / "stray.py"
    stray.write_text('"""In no layer."""\n')
    try:
        assert lint(copy).returncode == 1
    finally:
        stray.unlink()
