"""What the crash runs need, and their figures: a table at the end of the session.

`PENSTOCK_CRASH_TABLE=docs/guarantees.md` keeps it in that page as well, where all tests have passed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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
from tests.postgres import PostgresServer

from penstock.devstack import DevStack
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

_FIGURES = pytest.StashKey[list[Figures | HostFigures]]()
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
        name, figures = request.node.name, request.config.stash.setdefault(_FIGURES, [])
        made.append(new_trial(name, tmp_path, topics, targets, figures.append, **settings))
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
        figures = request.config.stash.setdefault(_FIGURES, [])
        made.append(new_state_trial(request.node.name, tmp_path, topics, case, database, figures.append))
        return made[-1]

    yield make
    for one in made:
        one.crashes.end_all()


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    figures = config.stash.get(_FIGURES, [])
    if not figures:
        return
    made = [table for table in TABLES if lines(table, figures)]
    terminalreporter.section("crash runs")
    for table in made:
        terminalreporter.write_line(table.of(lines(table, figures)))
    # The page has the figures of local runs.
    if (page := os.environ.get(_PAGE)) and config.getoption("--master") == "local":
        if exitstatus == 0:
            for table in made:
                update(config.rootpath / page, table, figures, _is_known)
        else:
            terminalreporter.write_line(f"{page} is left as it is: not every test passed")


def _is_known(run: str) -> bool:
    """Whether there still is such a run: a test, or a fault between hosts."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    return f"def {run.partition('[')[0]}(" in tests or run in map(str, FAULTS)
