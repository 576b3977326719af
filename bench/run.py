"""`make bench`: the job as a blog would write it against `penstock run`, on one broker, interleaved and repeated.

A wrong table fails the bench; a target that is missed is reported, and nothing more.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backlog import run_backlog
from burst import FULL, QUICK, run_burst
from burst_report import write_burst
from caught_up import RATE, run_caught_up
from charts import draw_backlog, draw_caught_up
from commits import run_commits
from formats import run_formats
from growth import Curve
from growth_report import write_curves
from jobs import time_validate
from machine import machine_facts
from maintenance import run_maintenance, write_results
from overhead import run_overhead
from overhead_report import write_overhead
from pipelines import COUNTS, run_pipelines
from pipelines_report import write_pipelines
from processes import BenchError
from redrive import run_redrive, write_redrive
from replay import run_replay, write_replay
from report import profile_text, results_text
from scale import run_scale
from sinks import SINKS, run_sinks
from summary import Results, targets
from transforms import CASES, run_transforms

from penstock.devstack import DevStack
from penstock.errors import PenstockError
from penstock.spark.jars import broker_classpath, registry_jar
from penstock.spark.java import find_java

_ROOT = Path(__file__).parent.parent
_BEGAN = time.monotonic()
_PARTS = ("backlog", "caught-up", "sinks", "formats", "transforms")


def main() -> int:
    """Run the parts that were asked for and write the results."""
    asked = _options()
    # One way out for both: the context managers below end what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if asked.only in _APART:
            _APART[asked.only](asked)
            return 0
        results = _measure(asked)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (BenchError, PenstockError) as error:
        print(error, file=sys.stderr)
        return 1
    _write(results, asked.out)
    for target in targets(results):
        say(f"{target.verdict:11}  {target.what}: {target.found}, wanted {target.wanted}")
    return 0


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.monotonic() - _BEGAN:7.1f} s  {text}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    parser.add_argument(
        "--rows",
        type=int,
        help="events in the backlog and for each sink (2,000,000), in each format and for the transforms (1,000,000)",
    )
    parser.add_argument(
        "--repeat", type=int, help="repetitions of every job (backlog 3, caught up 2, sinks 1, formats 3, transforms 2)"
    )
    parser.add_argument("--seconds", type=float, help="how long a caught-up stream is watched (60)")
    parser.add_argument("--only", choices=(*_PARTS, *_APART), help="one part alone")
    parser.add_argument("--batches", type=int, help="batches of the part `maintenance` (200)")
    parser.add_argument("--sink", choices=SINKS, help="one case of the part `sinks` alone")
    parser.add_argument("--transform", choices=CASES, help="one case of the part `transforms` alone")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it all works")
    parser.add_argument("--out", type=Path, help="where the results go (bench/results; --quick: build/bench-quick)")
    asked = parser.parse_args()
    for case, part in (("sink", "sinks"), ("transform", "transforms")):
        if getattr(asked, case) is not None:
            asked.only = asked.only or part
            if asked.only != part:
                parser.error(f"--{case} is for the part `{part}`")
    rows, drains, seconds, watches = (50_000, 1, 10, 1) if asked.quick else (2_000_000, 3, 60, 2)
    asked.batches = asked.batches or (40 if asked.quick else 200)
    asked.half_rows = asked.rows or rows // 2
    asked.rows = asked.rows or rows
    asked.seconds = asked.seconds or seconds
    asked.drains, asked.watches = asked.repeat or drains, asked.repeat or watches
    asked.sink_runs = asked.repeat or 1
    asked.out = asked.out or _ROOT / ("build/bench-quick" if asked.quick else "bench/results")
    return asked


def _measure(asked: argparse.Namespace) -> Results:
    backlog, caught_up, sinks, formats, transforms = (asked.only in (None, part) for part in _PARTS)
    settings: dict[str, Any] = {"rows": f"{asked.rows:,}"} if backlog or sinks else {}
    if backlog:
        settings |= {"repetitions": asked.drains}
    if caught_up:
        settings |= {"seconds watched": f"{asked.seconds:g}", "watches": asked.watches}
    if sinks:
        settings |= {"repetitions of the sinks": asked.sink_runs}
    if formats:
        settings |= {"rows of each format": f"{asked.half_rows:,}", "repetitions of the formats": asked.drains}
    if transforms:
        settings |= {"rows of the transforms": f"{asked.half_rows:,}", "repetitions of the transforms": asked.watches}
    results = Results(f"{datetime.now(UTC):%Y-%m-%d}", settings, machine_facts())
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        results.validate_seconds = time_validate(folder)
        say("starting the broker")
        with DevStack(
            folder / "kafka",
            java=find_java().executable,
            classpath=broker_classpath(),
            registry_jar=registry_jar() if formats else None,
        ) as stack:
            if backlog:
                results.drains = run_backlog(stack.bootstrap, folder, asked.rows, asked.drains, say)
            if caught_up:
                results.watches = run_caught_up(stack.bootstrap, folder, asked.seconds, asked.watches, say)
            if sinks:
                results.sinks = run_sinks(stack.bootstrap, folder, asked.rows, asked.sink_runs, asked.sink, say)
            if formats:
                assert stack.registry is not None
                behind = (stack.bootstrap, stack.registry.url, folder)
                results.formats = run_formats(*behind, asked.half_rows, asked.drains, say)
            if transforms:
                where = (stack.bootstrap, folder)
                results.transforms = run_transforms(*where, asked.half_rows, asked.watches, asked.transform, say)
    return results


@contextmanager
def _broker() -> Iterator[tuple[str, Path]]:
    """A broker of the bench's own, and a folder."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say("starting the broker")
        with DevStack(folder / "kafka", java=find_java().executable, classpath=broker_classpath()) as stack:
            yield stack.bootstrap, folder


def _measure_maintenance(asked: argparse.Namespace) -> None:
    with _broker() as (brokers, folder):
        runs = run_maintenance(brokers, folder, asked.batches, say)
    write_results(runs, asked.out / "maintenance")
    say(f"wrote results to {asked.out / 'maintenance'}")


def _measure_again(asked: argparse.Namespace) -> None:
    """Replay or redrive, against the live run of the same pipeline."""
    run, write = (run_replay, write_replay) if asked.only == "replay" else (run_redrive, write_redrive)
    with _broker() as (brokers, folder):
        runs = run(brokers, folder, asked.rows, asked.watches, say)
    write(runs, asked.out / asked.only)
    say(f"wrote results to {asked.out / asked.only}")


def _measure_burst(asked: argparse.Namespace) -> None:
    """A burst onto a slow sink."""
    setting = QUICK if asked.quick else FULL
    with _broker() as (brokers, folder):
        runs = run_burst(brokers, folder, setting, say)
    for line in write_burst(runs, setting, asked.out / asked.only):
        say(line)
    say(f"wrote results to {asked.out / asked.only}")


def _measure_overhead(asked: argparse.Namespace) -> None:
    """What it costs a run to show itself."""
    with _broker() as (brokers, folder):
        watches = [run_overhead(brokers, folder, asked.seconds, say) for _ in range(asked.drains)]
    say(write_overhead(watches, asked.out / asked.only))
    say(f"wrote results to {asked.out / asked.only}")


def _measure_pipelines(asked: argparse.Namespace) -> None:
    """Fleets of several sizes: what each more pipeline costs, and whether the memory stays."""
    seconds, counts = (asked.seconds, COUNTS[:2]) if asked.quick else (max(asked.seconds, 300.0), COUNTS)
    with _broker() as (brokers, folder):
        runs = run_pipelines(brokers, folder, seconds, counts, say)
    for verdict in write_pipelines(runs, asked.out / "pipelines"):
        say(verdict)
    say(f"wrote results to {asked.out / 'pipelines'}")


def _measure_scale(asked: argparse.Namespace) -> None:
    """How cost grows with partitions and cores."""
    with _broker() as (brokers, folder):
        curves = run_scale(brokers, folder, asked.seconds, asked.half_rows, say)
    _write_curves(curves, f"{RATE:,} events a second where partitions are counted.", asked)


def _measure_commits(asked: argparse.Namespace) -> None:
    """How the cost of a commit grows with those that the table has."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name:
        curves = run_commits(Path(name), 300 if asked.quick else 10_000, say)
    _write_curves(curves, "A hundred commits by turns with the first hundred of a new table; care is left out.", asked)


def _write_curves(curves: list[Curve], how: str, asked: argparse.Namespace) -> None:
    for line in write_curves(asked.only, how, curves, asked.out / asked.only):
        say(line)
    say(f"wrote results to {asked.out / asked.only}")


_APART: dict[str, Callable[[argparse.Namespace], None]] = {
    "maintenance": _measure_maintenance,
    "replay": _measure_again,
    "redrive": _measure_again,
    "burst": _measure_burst,
    "overhead": _measure_overhead,
    "pipelines": _measure_pipelines,
    "scale": _measure_scale,
    "commits": _measure_commits,
}
"""Parts that run only where they are asked for, with results of their own."""


def _write(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stale in ("backlog.png", "caught_up.png"):
        (folder / stale).unlink(missing_ok=True)
    (folder / "results.json").write_text(json.dumps(results.as_json(), indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(results_text(results), encoding="utf-8")
    (folder / "profile.md").write_text(profile_text(results), encoding="utf-8")
    if results.drains:
        draw_backlog(results, folder / "backlog.png")
    if results.watches:
        draw_caught_up(results, folder / "caught_up.png")
    say(f"wrote results to {folder}")


if __name__ == "__main__":
    sys.exit(main())
