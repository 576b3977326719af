"""What the crash runs need, and their figures: a table at the end of the session.

`PENSTOCK_CRASH_TABLE=docs/guarantees.md` keeps it in that page as well, where all tests have passed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.crash.cluster import Brokers
from tests.crash.figures import TABLES, Figures, HostFigures, lines, update
from tests.crash.state_cases import StateCase
from tests.crash.state_trial import StateTrial, new_state_trial
from tests.crash.traps import MASTER
from tests.crash.trial import Trial, new_trial
from tests.hosts.faults import FAULTS
from tests.postgres import PostgresServer, running_server

from penstock.devstack import DevStack
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

_KINDS: dict[str, type[Figures | HostFigures]] = {"figures": Figures, "host figures": HostFigures}
_found: list[Figures | HostFigures] = []
_PAGE = "PENSTOCK_CRASH_TABLE"


@pytest.fixture(scope="session", autouse=True)
def runs_on(master: str | None) -> None:
    """Where the runs have their tasks; those of a test that names a master in its file go there."""
    if master is not None:
        os.environ[MASTER] = master


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three brokers; a record counts as written when two have it."""
    folder = tmp_path_factory.mktemp("brokers")
    with DevStack(folder, java=find_java().executable, classpath=broker_classpath(), brokers=3) as stack:
        yield Brokers(stack)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One that has on disk what it has answered."""
    with running_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The address of a database of the test's own."""
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Makes a trial with some targets. Without `topics` it is on the broker of the whole session."""
    made: list[Trial] = []

    def make(*targets: Any, topics: Any = None, **settings: Any) -> Trial:
        if any(target.type == "postgres" for target in targets):
            settings.setdefault("database", None)
            settings["database"] = settings["database"] or request.getfixturevalue("database")
        topics = topics or request.getfixturevalue("topics")
        made.append(new_trial(request.node.name, tmp_path, topics, targets, _reporter(request.node), **settings))
        return made[-1]

    yield make
    for one in made:
        one.crashes.end_all()
        if one.reader is not None:
            one.reader.close()


@pytest.fixture
def state_trial(
    request: pytest.FixtureRequest, tmp_path: Path, topics: Any, database: str
) -> Iterator[Callable[[StateCase], StateTrial]]:
    """Makes a trial of steps with state, into every kind of target, on the broker of the whole session."""
    made: list[StateTrial] = []

    def make(case: StateCase) -> StateTrial:
        made.append(new_state_trial(request.node.name, tmp_path, topics, case, database, _reporter(request.node)))
        return made[-1]

    yield make
    for one in made:
        one.crashes.end_all()


def _reporter(test: pytest.Item) -> Callable[[Figures | HostFigures], None]:
    """Attaches figures to the report of a test, which also reaches the controller of several workers."""

    def report(one: Figures | HostFigures) -> None:
        kind = next(kind for kind, made in _KINDS.items() if isinstance(one, made))
        test.user_properties.append((kind, asdict(one)))

    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _found.extend(_KINDS[kind](**values) for kind, values in report.user_properties if kind in _KINDS)  # type: ignore[arg-type]


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if not _found:
        return
    made = [table for table in TABLES if lines(table, _found)]
    terminalreporter.section("crash runs")
    for table in made:
        terminalreporter.write_line(table.of(lines(table, _found)))
    # The page has the figures of local runs.
    if (page := os.environ.get(_PAGE)) and config.getoption("--master") == "local":
        if exitstatus == 0:
            for table in made:
                update(config.rootpath / page, table, _found, _is_known)
        else:
            terminalreporter.write_line(f"{page} is left as it is: not every test passed")


def _is_known(run: str) -> bool:
    """Whether there still is such a run: a test, or a fault between hosts."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    return f"def {run.partition('[')[0]}(" in tests or run in map(str, FAULTS)
