"""Whatever is done to a file, loading it gives a pipeline or problems that lie inside the file: never a crash."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config import InvalidDefinition, PipelineConfig, load

VALID = Path(__file__).parents[2] / "definitions" / "valid"
TEXTS = [
    (VALID / f"{name}.yaml").read_text()
    for name in (
        "every_transform",
        "every_sink",
        "assigned_partitions",
        "by_topic_with_routes",
        "kafka_encodes_avro_and_protobuf",
    )
]

odd_scalars = [None, True, 0, -1, 1.5, "", " ", "x", "_penstock", "${env:NO_SUCH}", "$${x}", "a >", "10 seconds"]
odd_lists = [[], ["x"], [None], [[]], [{"where": ""}, {}, "x"], ["_penstock"]]
odd_mappings = [{}, {"x": 1}, {"x": None}, {"keys": []}, {"expr": "x"}]
odd_values = st.sampled_from([*odd_scalars, *odd_lists, *odd_mappings])


def check(file: Path, text: str) -> None:
    file.write_text(text)
    try:
        config = load(file)
    except InvalidDefinition as error:
        assert error.problems
        lines = text.split("\n")
        for problem in error.problems:
            assert 1 <= problem.line <= len(lines) + 1
            assert 1 <= problem.column <= max(map(len, lines)) + 1
            assert not re.search(r"pydantic|Input should|sqlglot|<class|NoneType", str(problem)), problem
    else:
        assert isinstance(config, PipelineConfig)


def paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in paths(inner, (*path, key)))]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_WORD", "many words")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_load_file_with_odd_values_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    tree = yaml.safe_load(data.draw(st.sampled_from(TEXTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([path for path in paths(tree) if path]))
        holder = tree
        for part in path[:-1]:
            holder = holder[part]
        value = deepcopy(data.draw(odd_values))
        if isinstance(holder, dict) and data.draw(st.booleans()):
            holder[f"{path[-1]}{data.draw(st.sampled_from(['s', '_', 'xyz']))}"] = holder.pop(path[-1])
        else:
            holder[path[-1]] = value
    check(tmp_path / "pipeline.yaml", yaml.safe_dump(tree, sort_keys=False))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_load_file_with_broken_text_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        until = at + data.draw(st.integers(0, 8))
        text = text[:at] + data.draw(st.text(alphabet="\t\n \"':-[]{}&*!|>%@`#a0é${", max_size=3)) + text[until:]
    check(tmp_path / "pipeline.yaml", text)
