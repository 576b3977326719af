"""A definition costs little to read, whatever is in it: sizes and depths have bounds, and nothing is quadratic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.config import InvalidDefinition, load
from penstock.config.ddl import read_columns

FILE = """\
name: orders
source: {{type: kafka, brokers: "localhost:9092", topics: [orders]}}
decode: {{format: json, {schema}}}
transforms: [{{where: "{where}"}}]
sinks: [{{name: out, type: delta, path: lake}}]
checkpoint: checkpoint
"""


@contextmanager
def at_once(seconds: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def refusal(tmp_path: Path, schema: str = 'schema: "id BIGINT"', where: str = "id > 0") -> str:
    file = tmp_path / "orders.yaml"
    file.write_text(FILE.format(schema=schema, where=where))
    with pytest.raises(InvalidDefinition) as raised:
        load(file)
    return str(raised.value)


def test_columns_by_the_thousand_are_read_at_once() -> None:
    with at_once(3):
        assert len(read_columns(", ".join(f"c{number} INT" for number in range(5000)))) == 5000


@pytest.mark.parametrize(
    "where", ["(" * 5000 + "id" + ")" * 5000 + " = 1", "NOT " * 20_000 + "true", "CASE WHEN true THEN " * 3000]
)
def test_expression_that_is_nested_without_end_is_refused(tmp_path: Path, where: str) -> None:
    with at_once(10):
        assert "transforms[0].where" in refusal(tmp_path, where=where)


def test_schema_file_without_end_is_refused(tmp_path: Path) -> None:
    with at_once(3):
        assert "the schema file is larger than 1,048,576 bytes" in refusal(tmp_path, "schema_file: /dev/zero")


def test_secret_file_without_end_is_refused(tmp_path: Path) -> None:
    with at_once(3):
        assert "larger than" in refusal(tmp_path, 'schema: "${file:/dev/zero}"')
