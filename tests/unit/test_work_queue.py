"""The queue that the tests are dealt from: longest first, near the servers that a file needs, and nothing left over."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from tests.work_queue import RUN_ID, LongestFirst, Recorded, end_processes


class Worker:
    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def file(seconds: float, *servers: str) -> Recorded:
    return Recorded(seconds=seconds, servers=list(servers), slow={})


def dealt(tests: list[str], durations: dict[str, Recorded]) -> tuple[LongestFirst, list[Worker]]:
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen", "popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    queue, workers = LongestFirst(config, None, durations), [Worker("gw0"), Worker("gw1")]
    for worker in workers:
        queue.add_node(worker)
        queue.add_node_collection(worker, tests)
    queue.schedule()
    return queue, workers


def finish(queue: LongestFirst, worker: Worker, test: int) -> None:
    queue.mark_test_complete(worker, test)


def test_queue_deals_the_longest_files_first_and_the_next_to_whoever_is_free() -> None:
    names = ["b.py", "c.py", "d.py", "a.py"]
    tests = [f"{name}::test_{number}" for name in names for number in range(3)]
    queue, (first, second) = dealt(tests, {"a.py": file(9), "b.py": file(7), "c.py": file(1), "d.py": file(3)})
    assert (first.given, second.given) == ([9, 10, 11], [0, 1, 2])
    finish(queue, second, 0)
    assert second.given[3:] == [6, 7, 8], "d.py, before the last two tests of b.py are done"
    finish(queue, first, 9)
    assert first.given[3:] == [3, 4, 5]


def test_queue_leaves_a_little_that_needs_spark_to_the_worker_that_runs_it() -> None:
    names = ["spark_1.py", "spark_2.py", "plain.py"]
    tests = [f"{name}::test_{number}" for name in names for number in range(3)]
    durations = {"spark_1.py": file(90, "spark"), "plain.py": file(80)}
    for left, expected in ((50, []), (70, [3, 4, 5])):
        queue, (first, second) = dealt(tests, {**durations, "spark_2.py": file(left, "spark")})
        assert (first.given, second.given) == ([0, 1, 2], [6, 7, 8])
        finish(queue, second, 6)
        assert second.given[3:] == expected
        assert second.shutting_down == (not expected)
    finish(queue, first, 0)


def test_queue_keeps_files_with_the_worker_that_runs_their_server() -> None:
    names = ["spark_1.py", "spark_2.py", "plain_1.py", "plain_2.py"]
    tests = [f"{name}::test_{number}" for name in names for number in range(3)]
    durations = {
        "spark_1.py": file(50, "spark"),
        "spark_2.py": file(12, "spark"),
        "plain_1.py": file(20),
        "plain_2.py": file(10),
    }
    queue, (with_spark, without) = dealt(tests, durations)
    assert (with_spark.given, without.given) == ([0, 1, 2], [6, 7, 8])
    finish(queue, without, 6)
    assert without.given[3:] == [9, 10, 11], "the shorter file, for which it need not start Spark"


def test_queue_splits_a_file_that_takes_more_than_the_share_of_a_worker() -> None:
    tests = ["big.py::test_a[1]", "big.py::test_a[2]", "big.py::test_b", "big.py::test_c", "small.py::test_d"]
    _, (first, second) = dealt(tests, {"big.py": file(300), "small.py": file(1)})
    assert sorted(first.given + second.given) == [0, 1, 2, 3, 4]
    assert first.given[:2] == [0, 1] and second.given[0] == 2


def test_queue_after_a_crash_gives_the_rest_to_another_worker_but_not_the_test_that_crashed() -> None:
    tests = ["a.py::test_0", "a.py::test_1", "a.py::test_2", "b.py::test_3", "b.py::test_4", "b.py::test_5"]
    queue, (first, second) = dealt(tests, {"a.py": file(9), "b.py": file(7)})
    finish(queue, first, 0)
    for test in (3, 4):
        finish(queue, second, test)
    second.shutting_down = False
    assert queue.remove_node(first) == "a.py::test_1"
    assert second.given == [3, 4, 5, 2]


def test_processes_of_a_run_are_ended_and_no_others() -> None:
    wait = [sys.executable, "-c", "input()"]
    ids = ["run", "run-gw1", "run-gw10", "running"]
    started = [
        subprocess.Popen(wait, stdin=subprocess.PIPE, env={**os.environ, RUN_ID: carried}, start_new_session=True)
        for carried in ids
    ]
    try:
        assert {process.pid for process in end_processes("run-gw1")} == {started[1].pid}
        assert {process.pid for process in end_processes("run")} == {started[0].pid, started[2].pid}
        assert started[3].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
