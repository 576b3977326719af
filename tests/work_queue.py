"""A plugin of the test run: deals files to workers, ends what the run has started, and prints what the run took.

With `-n` (pytest-xdist) all files are one queue. A worker that is free takes the file with the longest recorded time;
a server that it runs already counts for a file, and one that another worker runs counts against it. A file that
takes more than a worker's share of the run is dealt by its test functions. `--record-durations` writes
`tests/durations.json` anew; `--shorter-than` leaves out the tests that took longer when that was last done.

Every process of a run carries the run's id in its environment. What is left at the end, after Ctrl-C, or when a worker
has crashed, is found by that id and killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).with_name("durations.json")
SLOWEST = 20
RUN_ID = "PENSTOCK_TEST_RUN"

SERVERS = {
    "spark": 60.0,
    "stack": 5.0,
    "registry": 6.0,
    "postgres": 2.0,
    "s3": 2.0,
    "azure": 3.0,
    "hdfs": 8.0,
    "cluster": 10.0,
}
"""The fixtures that start a server, each with the CPU seconds that a second one costs. A new JVM is slow at first."""

_SPLIT_SECONDS = 120.0
"""A shorter file stays whole: a second worker would first have to start what the file needs."""
_SLOW_SECONDS = 0.1
"""A test that takes at least this long is recorded on its own."""
_ONE_WORKER = frozenset({"tests/model/test_model.py"})
"""Files with a test that reads what the tests before it have found."""


class Recorded(TypedDict):
    """What `durations.json` says about a file; `seconds` without the start of servers; `slow` are single tests."""

    seconds: float
    servers: list[str]
    slow: dict[str, float]


def recorded_durations() -> dict[str, Recorded]:
    """By the path of the file."""
    found: dict[str, Recorded] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return found


class LongestFirst(LoadScopeScheduling):
    """One queue of files for all workers."""

    def __init__(self, config: pytest.Config, log: Any, durations: dict[str, Recorded]) -> None:
        super().__init__(config, log)
        self._durations = durations
        self._split: dict[str, int] = {}
        self._running: defaultdict[Any, set[str]] = defaultdict(set)

    def schedule(self) -> None:
        if self.collection is None:
            self._split = self._files_to_split(next(iter(self.registered_collections.values())))
        super().schedule()

    def remove_node(self, node: Any) -> str | None:
        """As the base does, except that a test that has crashed its worker is not run again."""
        units = self.assigned_work.pop(node)
        crashed = next(((unit, test) for unit in units.values() for test, done in unit.items() if not done), None)
        if crashed is None:
            return None
        unit, test = crashed
        unit[test] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.nodes:
            self._reschedule(other)
        return test

    def _files_to_split(self, tests: list[str]) -> dict[str, int]:
        """The files that take more than a worker's share, and how many functions they have."""
        functions = {test.partition("[")[0] for test in tests}
        count = Counter(function.partition("::")[0] for function in functions)
        seconds = {file: self._durations[file]["seconds"] for file in count if file in self._durations}
        share = max(_SPLIT_SECONDS, sum(seconds.values()) / self.numnodes)
        return {file: count[file] for file, took in seconds.items() if took > share and file not in _ONE_WORKER}

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid.partition("[")[0] if file in self._split else file

    def _assign_work_unit(self, node: Any) -> None:
        scope = max(self.workqueue, key=lambda scope: self._rank(scope, node))
        self._running[node].update(self._recorded(scope)["servers"])
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if self.workqueue and not node.shutting_down and self._is_left_to_others(node):
            node.shutdown()
        else:
            super()._reschedule(node)

    def _is_left_to_others(self, node: Any) -> bool:
        """Whether all that is left needs Spark, which others run, and takes them no longer than one more would cost."""
        running = [other for other, servers in self._running.items() if "spark" in servers]
        left = [self._recorded(scope) for scope in self.workqueue]
        return (
            bool(running)
            and node not in running
            and all("spark" in one["servers"] for one in left)
            and sum(one["seconds"] for one in left) <= SERVERS["spark"] * len(running)
        )

    def _rank(self, scope: str, node: Any) -> float:
        recorded = self._recorded(scope)
        here = self._running[node]
        elsewhere = {name for other, running in self._running.items() if other is not node for name in running}
        counts = {name: 1 if name in here else -1 for name in here | elsewhere}
        return recorded["seconds"] + sum(SERVERS[name] * counts.get(name, 0) for name in recorded["servers"])

    def _recorded(self, scope: str) -> Recorded:
        file = scope.partition("::")[0]
        if file not in self._durations:
            return Recorded(seconds=float(len(self.workqueue[scope])), servers=[], slow={})
        recorded = self._durations[file]
        return {**recorded, "seconds": recorded["seconds"] / self._split.get(file, 1)}


class RunReport:
    """Adds up what the tests took, in the process that reports them, and ends what they have left."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._tests: Counter[str] = Counter()
        self._servers: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._tests[report.nodeid] += max(0.0, report.duration - getattr(report, "server_seconds", 0.0))
        self._servers[report.nodeid.partition("::")[0]].update(getattr(report, "servers", ()))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            end_processes(f"{os.environ[RUN_ID]}-{node.gateway.id}")

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if self._tests and (config.getoption("numprocesses", None) or config.getoption("--record-durations")):
            terminalreporter.section(f"slowest {SLOWEST} tests")
            for test, seconds in self._tests.most_common(SLOWEST):
                terminalreporter.write_line(f"{seconds:7.1f} s  {test}")
            terminalreporter.line("")
            terminalreporter.write_line(
                f"{(time.monotonic() - self._began) / 60:.1f} minutes, {core_seconds() / 60:.1f} core-minutes"
            )
        if config.getoption("--record-durations"):
            self._record(config.rootpath)

    def pytest_unconfigure(self) -> None:
        end_processes(os.environ[RUN_ID])

    def _record(self, root: Path) -> None:
        files: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for test, seconds in self._tests.items():
            file, _, name = test.partition("::")
            files[file][name] = seconds
        recorded = {file: known for file, known in recorded_durations().items() if (root / file).exists()}
        for file, tests in files.items():
            slow = {name: round(took, 1) for name, took in sorted(tests.items()) if took >= _SLOW_SECONDS}
            servers = sorted(self._servers[file])
            recorded[file] = Recorded(seconds=round(sum(tests.values()), 1), servers=servers, slow=slow)
        DURATIONS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def core_seconds() -> float:
    """Of this process and of all that ended below it and were waited for: an orphan is not counted."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def end_processes(run_id: str) -> list[psutil.Process]:
    """Kill the processes of a run, or of one worker of it, but not this one; those that there were."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            carried = process.environ().get(RUN_ID, "")
            if process.pid != os.getpid() and (carried == run_id or carried.startswith(f"{run_id}-")):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=10)
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help=f"write {DURATIONS.name} anew, after whole files")
    parser.addoption("--shorter-than", type=float, metavar="SECONDS", help="leave out tests recorded as slower")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        os.environ[RUN_ID] += f"-{worker['workerid']}"
        # Workers start with COLUMNS=80 where there is no terminal. A test that minds the width sets its own.
        os.environ.pop("COLUMNS", None)
    else:
        os.environ[RUN_ID] = uuid.uuid4().hex
        config.pluginmanager.register(RunReport(), "run-report")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    return LongestFirst(config, log, recorded_durations())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    limit = config.getoption("--shorter-than")
    if limit is None:
        return
    durations = recorded_durations()
    slower = {f"{file}::{name}" for file, known in durations.items() for name, s in known["slow"].items() if s > limit}
    # A file whose last test reads what the others have found runs whole or not at all.
    whole = {test.partition("::")[0] for test in slower} & _ONE_WORKER
    left_out = [item for item in items if item.nodeid in slower or item.nodeid.partition("::")[0] in whole]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def servers_of(item: pytest.Item) -> set[str]:
    """The servers that a test takes. One that runs on Spark by a mark of tests/sessions.py does not name it."""
    callspec = getattr(item, "callspec", None)
    by_mark = {"spark"} if callspec is not None and callspec.params.get("session") == "spark" else set()
    return (SERVERS.keys() & set(getattr(item, "fixturenames", ()))) | by_mark


_starts: list[float] = []
"""The seconds that servers took to start in this phase of a test."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    began = time.monotonic()
    result = yield
    if fixturedef.scope == "session" and fixturedef.argname in SERVERS:
        _starts.append(time.monotonic() - began)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Report the start of a server apart: it belongs to the run, not to the test that comes first."""
    report: Any = yield
    report.server_seconds = sum(_starts)
    report.servers = sorted(servers_of(item))
    _starts.clear()
    return report
