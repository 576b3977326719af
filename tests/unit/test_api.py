"""`import penstock`: light, and typed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import penstock
from penstock.config import InvalidDefinition

FILE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:9", topics: [orders], options: {socket.timeout.ms: 500}}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("line", ["import penstock", "import penstock; penstock.load(sys.argv[1]).validate()"])
def test_import_and_load_bring_in_nothing_heavy(file: Path, line: str) -> None:
    heavy = "('pyspark', 'pyarrow', 'confluent_kafka', 'deltalake', 'pandas')"
    probe = f"import sys; {line}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version_is_that_of_the_package() -> None:
    assert penstock.__version__ == version("penstock")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = penstock.lode


def test_load_takes_text_and_paths_and_gives_the_definition(file: Path) -> None:
    assert penstock.load(str(file)).config == penstock.load(file).config
    assert penstock.load(file).config.name == "orders"


def test_load_bad_file_raises_with_every_problem(file: Path) -> None:
    file.write_text(FILE.replace("topics", "topcis").replace("path:", "paht:"))
    with pytest.raises(InvalidDefinition) as raised:
        penstock.load(file)
    assert len(raised.value.problems) >= 2


def test_validate_after_an_edit_sees_the_edit(file: Path) -> None:
    pipeline = penstock.load(file)
    pipeline.validate()
    file.write_text(FILE.replace("topics", "topcis"))
    with pytest.raises(InvalidDefinition):
        pipeline.validate()
    assert pipeline.config.name == "orders"


def test_plan_broker_away_tells_it_and_the_lane(file: Path) -> None:
    plan = penstock.load(file).plan()
    assert plan.lane == "direct"
    assert [problem.code for problem in plan.problems] == ["BROKER_UNREACHABLE"]
    assert not (file.parent / "lake").exists(), "a plan writes nothing"
