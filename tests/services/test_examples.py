"""Every pipeline file under examples/ runs, in a copy of its folder, and its targets hold what its README says.

Its cases, where it has some, pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.committed import committed
from tests.orders import drain
from tests.tables import read_table

from penstock.config import load
from penstock.ops.cases.reports import failure_lines
from penstock.ops.cases.run import FileResult, SparkWhenNeeded, run_file
from penstock.ops.schema import plan_schema_check

pytestmark = pytest.mark.services
EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = sorted(EXAMPLES.glob("*/*.test.yaml"))
FILES = sorted(set(EXAMPLES.glob("*/*.yaml")) - set(CASES))
BROKERS = ("ORDERS_BROKERS", "CHANGES_BROKERS", "FORMATS_BROKERS", "SHOP_BROKERS")
DATABASES = ("CHANGES_DB", "SHOP_DB")
Values = Callable[[Path, Any], list[Any]]
"""Given the example's folder and the broker: the values of one column."""


def delta(table: str, column: str) -> Values:
    return lambda folder, _: read_table(folder / table).column(column).to_pylist()


def iceberg(table: str, column: str) -> Values:
    def read(folder: Path, _: Any) -> list[Any]:
        warehouse = folder / "lake/iceberg"
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
        found: list[Any] = catalog.load_table(table).scan(selected_fields=(column,)).to_arrow().column(0).to_pylist()
        return found

    return read


def parquet(path: str, column: str) -> Values:
    return lambda folder, _: ds.dataset(folder / path).to_table([column], use_threads=False).column(0).to_pylist()


def lines(path: str, column: str) -> Values:
    return lambda folder, _: pl.scan_ndjson(f"{folder / path}/**/*.jsonl.gz").collect()[column].to_list()


def topic(name: str) -> Values:
    return lambda _, stack: [message.key() for message in committed(stack.bootstrap, name)]


def postgres(table: str, column: str) -> Values:
    def read(_folder: Path, _stack: Any) -> list[Any]:
        with psycopg.connect(os.environ[DATABASES[0]]) as database:
            return [row[0] for row in database.execute(f"SELECT {column} FROM {table}").fetchall()]

    return read


STATEFUL = {
    "transforms/metrics.yaml": "a window is emitted when its time has passed",
    "transforms/join.yaml": "a payment within the hour is joined at once",
    "transforms/visits.yaml": "a visit ends with the fifth order, and another with half an hour of silence",
}
"""Those that need Spark, and a case of each that stands for the others: `make long` has all cases, and runs them."""


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def tried(files: list[Path]) -> pytest.MarkDecorator:
    """The files as parameters of a test, those that need Spark in `make long` only."""
    params = [(file, name_of(file)) for file in files]
    return pytest.mark.parametrize(
        "file", [pytest.param(file, id=name, marks=[pytest.mark.long] * (name in STATEFUL)) for file, name in params]
    )


TARGETS: dict[str, list[tuple[Values, int, int]]] = {
    "orders/orders.yaml": [
        (delta("lake/orders", "order_id"), 990, 990),
        (delta("lake/orders_quarantine", "code"), 4, 4),
    ],
    "formats/avro.yaml": [
        (delta("lake/avro", "order_id"), 1_000, 1_000),
        (delta("lake/avro", "city"), 1_000, 3),
        (delta("lake/avro_quarantine", "code"), 4, 4),
    ],
    "formats/protobuf.yaml": [
        (delta("lake/protobuf", "order_id"), 333, 333),
        (delta("lake/protobuf", "day"), 333, 4),
        (delta("lake/protobuf_quarantine", "code"), 1, 1),
    ],
    "formats/two_topics.yaml": [
        (delta("lake/two_orders", "order_id"), 1_000, 1_000),
        (delta("lake/two_payments", "order_id"), 160, 160),
        (delta("lake/two_quarantine", "topic"), 5, 2),
    ],
    "sinks/merge.yaml": [(delta("lake/merge", "order_id"), 950, 950)],
    "sinks/iceberg.yaml": [(iceberg("shop.changes", "order_id"), 1_350, 1_000)],
    "sinks/kafka.yaml": [(topic("changes.clean"), 1_350, 1_000)],
    "sinks/postgres.yaml": [(postgres("public.orders", "order_id"), 940, 940)],
    "sinks/parquet.yaml": [(parquet("lake/files", "order_id"), 1_350, 1_000)],
    "sinks/jsonl.yaml": [(lines("lake/lines", "order_id"), 1_350, 1_000)],
    "sinks/three.yaml": [
        (delta("lake/three", "order_id"), 940, 940),
        (iceberg("shop.three", "order_id"), 1_350, 1_000),
        (topic("changes.large"), 99, 99),
    ],
    "transforms/enrich.yaml": [
        (topic("shop.enriched"), 991, 991),
        (delta("lake/enrich_quarantine", "code"), 15, 2),
    ],
    "transforms/metrics.yaml": [
        (postgres("public.metrics", "window_start"), 51, 17),
        (postgres("public.metrics", "city"), 51, 3),
        (delta("lake/metrics_quarantine", "code"), 5, 1),
    ],
    "transforms/join.yaml": [
        (iceberg("shop.paid", "order_id"), 1_001, 1_001),
        (iceberg("shop.paid", "method"), 1_001, 3),
    ],
    "transforms/visits.yaml": [
        (delta("lake/visits", "orders"), 204, 2),
    ],
}
"""For each file what it makes: how to read the values of a column, how many there are, and how many of them differ."""


@pytest.fixture(scope="module")
def filled(stack: Any, request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Fills the topics of an example by its own script, once: the files of a folder share them."""
    done: set[str] = set()

    def fill(folder: Path) -> None:
        if folder.name not in done:
            done.add(folder.name)
            options = []
            if folder.name == "formats":
                options = ["--brokers", stack.bootstrap, "--registry", request.getfixturevalue("registry").url]
            environment = {**os.environ, **dict.fromkeys(BROKERS, stack.bootstrap)}
            subprocess.run(
                [sys.executable, "produce.py", *options], cwd=folder, env=environment, check=True, timeout=60
            )

    return fill


def session_for(file: Path, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("spark" if name_of(file) in STATEFUL else "session")


@tried(FILES)
def test_example_run_its_targets_hold_what_it_says(
    file: Path,
    tmp_path: Path,
    stack: Any,
    filled: Callable[[Path], None],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / file.parent.name
    shutil.copytree(file.parent, folder)
    for name in BROKERS:
        monkeypatch.setenv(name, stack.bootstrap)
    if "FORMATS_REGISTRY" in file.read_text():
        monkeypatch.setenv("FORMATS_REGISTRY", request.getfixturevalue("registry").url)
    if "type: postgres" in file.read_text():
        server = request.getfixturevalue("postgres")
        address = server.url(server.create_database())
        for name in DATABASES:
            monkeypatch.setenv(name, address)
    filled(folder)
    drain(folder / file.name, session_for(file, request))
    for values_of, count, distinct in TARGETS[name_of(file)]:
        values = values_of(folder, stack)
        assert (len(values), len(set(values))) == (count, distinct)


@tried([cases.with_name(cases.name.replace(".test.yaml", ".yaml")) for cases in CASES])
def test_example_cases_pass(file: Path, request: pytest.FixtureRequest) -> None:
    require_passed(run_file(file, SparkWhenNeeded(session_for(file, request))))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * ("join" not in name)) for name in STATEFUL]
)
def test_example_with_state_passes_a_case(spark: Any, name: str) -> None:
    require_passed(run_file(EXAMPLES / name, SparkWhenNeeded(spark), [STATEFUL[name]]))


def require_passed(done: FileResult) -> None:
    assert [line for case in done.cases if not case.passed for line in (case.case.name, *failure_lines(case))] == []


def test_example_whose_producer_moves_on_has_the_new_column(
    tmp_path: Path,
    session: Any,
    stack: Any,
    registry: Any,
    filled: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "formats"
    shutil.copytree(EXAMPLES / "formats", folder)
    monkeypatch.setenv("FORMATS_BROKERS", stack.bootstrap)
    monkeypatch.setenv("FORMATS_REGISTRY", registry.url)
    filled(folder)
    file = folder / "avro.yaml"
    drain(file, session)
    options = ["--later", "--brokers", stack.bootstrap, "--registry", registry.url]
    subprocess.run([sys.executable, "produce.py", *options], cwd=folder, check=True, timeout=60)
    found = plan_schema_check(load(file))
    assert [finding.text for finding in found.findings if finding.level == "changes"] == ["add column channel STRING"]
    drain(file, session)
    channels = delta("lake/avro", "channel")(folder, stack)
    assert (len(channels), channels.count(None), channels.count("SHOP")) == (1_100, 1_000, 50)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_example_is_known_to_this_test_and_to_its_readme(file: Path) -> None:
    assert TARGETS.get(name_of(file)), f"say in TARGETS what {file.name} makes"
    assert file.name in (file.parent / "README.md").read_text()
