"""The report of the soak: it passes only where everything holds, and says what does not."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.services.running import wait_for
from tests.soak.flat import HANDLES, HEAP, MEGABYTE, MEMORY, Curve, Flatness, judge
from tests.soak.report import TOGETHER, Held, Met, Report
from tests.soak.watch import (
    SPARK_POOLS,
    Sample,
    curves_of,
    handles_by_kind,
    longest_quiet,
    outside_pools,
    thread_names,
)

CALM = {"appends": 4.0, "merges": 5.0}


def level(measure: str = HANDLES, value: float = 90) -> Flatness:
    times = [float(second) for second in range(120)]
    return judge(Curve("driver python", measure, times, [value] * 120), 60)


def good() -> Report:
    return Report(
        seed=11,
        asked_minutes=30,
        minutes=30.2,
        rate=200,
        rows=360_000,
        batches={"appends": 400, "merges": 300},
        met=[
            Met("SIGKILL driver", "driver", 5, 0, {"appends": 21.0, "merges": 24.4}, recovered=True),
            Met("SIGKILL driver", "driver", 99, 0, {"appends": 30.6, "merges": 18.0}, recovered=True),
            Met(TOGETHER, "SIGKILL broker and S3 slow", 150, 9, CALM, recovered=True),
        ],
        held=[Held("appends", "delta", 359_640, 0, 0, 0)],
        curves=[level(), level(MEMORY, 400 * MEGABYTE)],
        starts=3,
        finished=True,
    )


def test_report_everything_holds_passes() -> None:
    report = good()
    assert report.passed
    page = report.as_markdown()
    assert "# Soak: passed" in page
    assert "| seed | 11 |" in page
    assert "| SIGKILL driver | 2 | 31 s |" in page
    assert page.index("SIGKILL driver") < page.index(f"| {TOGETHER} | 1 | 5 s |")
    assert "| appends | delta | 359,640 | 0 | 0 | 0 |" in page
    assert "| driver python | memory | 400 MB | 400 MB | 400 MB | +0 MB | 119 s | flat |" in page


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"held": [Held("appends", "files", 9, 1, 0, 0)]}, "appends.files: 1 lost, 0 twice, 0 unknown"),
        ({"held": [Held("merges", "pg", 9, 0, 2, 0)]}, "merges.pg: 0 lost, 2 twice, 0 unknown"),
        ({"held": [Held("merges", "pg", 9, 0, 0, 3)]}, "merges.pg: 0 lost, 0 twice, 3 unknown"),
        ({"problems": ["asked to stop, the driver ended with 1"]}, "asked to stop, the driver ended with 1"),
        ({"finished": False}, "the soak did not come to its end"),
        (
            {"met": [Met("S3 slow", "S3", 1, 2, CALM, recovered=False)]},
            "S3 slow (S3): not every pipeline went on by itself",
        ),
        (
            {"curves": [replace(level(), verdict="rising", last=150)]},
            "driver python: handles rose from 90 to 150 in 119 s",
        ),
        (
            {"curves": [replace(level(), verdict="too short")]},
            "driver python: handles cannot be judged by 120 samples in 119 s",
        ),
    ],
)
def test_report_one_thing_wrong_fails_and_says_it(change: dict[str, Any], told: str) -> None:
    report = replace(good(), **change)
    assert not report.passed
    assert report.wrong == [told]
    assert "# Soak: FAILED" in report.as_markdown()
    assert f"- {told}" in report.as_markdown()


def test_report_written_has_both_forms(tmp_path: Path) -> None:
    good().write(tmp_path / "out")
    body = json.loads((tmp_path / "out/soak.json").read_text())
    assert body["passed"] is True
    assert (body["seed"], body["rows"], body["met"][0]["kind"]) == (11, 360_000, "SIGKILL driver")
    assert (tmp_path / "out/soak.md").read_text() == good().as_markdown()


def test_report_broken_off_at_once_is_a_page_still() -> None:
    page = Report(seed=1, asked_minutes=3, problems=["it was interrupted"], left_out=["links that are cut: x"])
    assert "- it was interrupted" in page.as_markdown()
    assert "- links that are cut: x" in page.as_markdown()


def test_longest_quiet_counts_from_the_fault_to_the_end() -> None:
    assert longest_quiet([1, 2, 3], 2.5, 10) == 7
    assert longest_quiet([1, 9], 0, 10) == 8
    assert longest_quiet([], 4, 10) == 6
    assert longest_quiet([11, 0.5], 1, 10) == 9


def test_curves_of_a_role_are_those_of_its_last_process() -> None:
    first = [Sample(float(at), "driver jvm", (7, 1.0), 900, 90, 9) for at in range(5)]
    last = [Sample(float(at), "driver jvm", (8, 5.0), 100, 10, 1) for at in range(5, 9)]
    other = [Sample(6.5, "driver python", (9, 5.0), 1, 1, 1)]
    memory, handles, threads = curves_of("driver jvm", [*first, *last, *other])
    assert memory.values == [100] * 4
    assert (handles.values, threads.values, handles.times) == ([10] * 4, [1] * 4, [5, 6, 7, 8])
    assert all(not curve.values for curve in curves_of("executor jvm", last))


def test_threads_of_a_pool_count_from_its_bound_on() -> None:
    full = [f"subquery-{n}" for n in range(SPARK_POOLS["subquery-"])]
    assert outside_pools(["java", "GC Thread#0", *full]) == 2
    assert outside_pools(["java", "GC Thread#0", *full, "subquery-16", "subquery-17"]) == 4
    assert outside_pools(f"kafka-admin-{n}" for n in range(30)) == 30


def test_threads_are_counted_by_their_names() -> None:
    # Threads of libraries end at any time, also between the two counts.
    same = lambda: len(list(thread_names(os.getpid()))) == psutil.Process().num_threads()  # noqa: E731
    wait_for(same, "two equal counts", 10)


def test_handles_are_told_by_ports_and_folders(tmp_path: Path) -> None:
    before = handles_by_kind(psutil.Process())
    with (
        (tmp_path / "held").open("w"),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        more = handles_by_kind(psutil.Process()) - before
    assert more[f"in {tmp_path}"] == 1
    # Clients of other tests may still come and go.
    assert more["socket LISTEN"] >= 1 and more["socket ESTABLISHED to a port of the moment"] >= 1


def test_report_tells_the_handles_that_are_more() -> None:
    page = replace(good(), more_handles={"driver jvm": ["9 in /lake", "2 socket LISTEN"]}).as_markdown()
    assert "Handles of driver jvm, more than at first: 9 in /lake, 2 socket LISTEN" in page


def test_judge_a_heap_that_keeps_a_megabyte_a_batch_is_rising() -> None:
    times = [10.0 * number for number in range(40)]
    keeps = Curve("driver jvm", HEAP, times, [200 * MEGABYTE + at / 5 * MEGABYTE for at in times])
    assert judge(keeps, 60).verdict == "rising"
    assert judge(Curve("driver jvm", HEAP, times, [200 * MEGABYTE] * 40), 60).flat
