"""Every pipeline file under examples/ runs, in a copy of its folder, and its tables hold what its README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tables import read_table

from penstock.config import load
from penstock.runtime.run import RunOptions, run

pytestmark = pytest.mark.services
EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*/*.yaml"))
TABLES = {"orders": {"lake/orders": ("order_id", 990, 990), "lake/orders_quarantine": ("code", 4, 4)}}
"""For each table that `examples/NAME/NAME.yaml` makes: a column, its values, and how many of them differ."""


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, stack: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipeline file in a copy of its folder, with its topic filled by the example's own script."""
    source: Path = request.param
    folder = tmp_path / source.parent.name
    shutil.copytree(source.parent, folder)
    monkeypatch.setenv(f"{source.stem.upper()}_BROKERS", stack.bootstrap)
    subprocess.run([sys.executable, "produce.py"], cwd=folder, env=dict(os.environ), check=True, timeout=60)
    return folder / source.name


@pytest.mark.parametrize("example", FILES, indirect=True, ids=lambda file: file.stem)
def test_example_run_its_tables_hold_what_it_says(example: Path, spark: Any) -> None:
    run(load(example), RunOptions(available_now=True), session=spark)
    for table, (column, count, distinct) in TABLES[example.stem].items():
        values = read_table(example.parent / table).column(column)
        assert (table, len(values), len(values.unique())) == (table, count, distinct)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_example_folder_is_known_to_this_test(file: Path) -> None:
    assert file.stem == file.parent.name
    assert TABLES.get(file.stem), f"say in TABLES what {file.name} makes"
    assert (file.parent / "README.md").exists()
