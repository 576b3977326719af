"""`make soak`: every sink under load while things are killed, stopped, cut off and filled; then all is counted.

For the first half of the time faults of every kind come, in an order that the seed decides. In the second half the
driver and one executor are left alive, and faults meet the others: what these two hold must not grow. Then the load
ends, the pipelines drain, the driver is asked to stop, and every target must hold each event once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from random import Random, SystemRandom

import psutil
from confluent_kafka.admin import NewTopic
from tests.crash.events import PARTITIONS
from tests.crash.harness import wait_for
from tests.crash.readers import CommittedReader
from tests.soak.driver import BREAK, FILES, WAYS
from tests.soak.faults import Faults, Kind
from tests.soak.flat import judge
from tests.soak.load import Load
from tests.soak.pipelines import OUTPUT, SOURCE, Pipeline, environment, pipelines
from tests.soak.report import TOGETHER, Held, Met, Report
from tests.soak.supervisor import Supervisor
from tests.soak.watch import Watch
from tests.soak.world import RUN, World, end_all, go_apart, world

from penstock.errors import PenstockError

FIRST_BATCH_SECONDS = 360
RECOVERY_SECONDS = 240
DRAIN_SECONDS = 300
STOP_SECONDS = 120
_ALL_KINDS_PART = 1 / 2
_WARM_PART = 1 / 3
"""Of the second half: pools are filled and code is compiled, and nothing is judged yet."""
_AGAIN, _INTERRUPTED = 75, 130
"""With 75 the driver itself asks to be started again, where Spark's process was lost with what it needs."""


def main() -> int:
    asked = _arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    why_not = go_apart(["-m", "tests.soak.run", *sys.argv[1:], "--seed", str(asked.seed)])
    report = Report(seed=asked.seed, asked_minutes=asked.minutes, rate=asked.rate)
    if why_not is not None:
        report.left_out = [f"{what}: {why_not}" for what in ("links that are cut", "disks that are full")]
    os.environ[RUN] = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {asked.seed}, {asked.minutes:g} minutes, everything in {folder}", flush=True)
    status = 0
    try:
        Soak(asked, report, folder).run()
    except KeyboardInterrupt:
        report.problems.append("it was interrupted")
        status = _INTERRUPTED
    except Exception as error:
        report.problems.append(f"{type(error).__name__}: {error}")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if left := end_all(os.environ[RUN]):
            report.problems += [f"it was left behind: {one}" for one in left if not status]
        report.write(asked.out)
    print(report.as_markdown())
    print(f"the report is in {asked.out}", flush=True)
    if report.passed:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(f"the logs of the driver and the executors are left in {folder}", flush=True)
    return status or 1


class Soak:
    """One soak; what it finds goes into the report as soon as it is known."""

    def __init__(self, asked: argparse.Namespace, report: Report, folder: Path) -> None:
        self._asked, self._report, self._folder = asked, report, folder
        self._began = time.monotonic()

    def run(self) -> None:
        lines = pipelines(self._folder)
        disks = [disk for one in lines for disk in one.disks]
        with contextlib.ExitStack() as open_:
            there = open_.enter_context(world(self._folder, disks))
            topics = there.brokers.topics
            made = [NewTopic(SOURCE, PARTITIONS, 3), NewTopic(OUTPUT, 3, 3)]
            for future in topics.admin.create_topics(made).values():
                future.result(30)
            topics.wait_for(OUTPUT, 3)
            reader = CommittedReader(topics.brokers, OUTPUT)
            open_.callback(reader.close)
            for one in lines:
                one.write(there)
            driver = Supervisor([one.file for one in lines], self._folder / "driver.log", self._environment(there))
            load = Load(topics.brokers, SOURCE, self._asked.rate, Random(self._asked.seed))
            watch = Watch(there, driver, lines)
            open_.callback(watch.stop)
            load.start()
            driver.start()
            open_.callback(driver.stop, 5)
            watch.start()
            wait_for(lambda: watch.committed_since(0), FIRST_BATCH_SECONDS, "the first batches of every pipeline")
            self._say("every pipeline has committed: the soak begins")
            self._began = time.monotonic()
            try:
                begun = self._trouble(Faults(there, driver, lines, self._asked.seed), watch)
            finally:
                self._note(load, lines, driver)
            ended = time.monotonic()
            self._report.curves = [judge(curve, (ended - begun) / 2) for curve in watch.curves(begun, ended)]
            self._report.more_handles = watch.more_handles(begun, ended)
            self._say("the load ends, the pipelines drain")
            events = load.stop(DRAIN_SECONDS)
            wait_for(lambda: all(one.has(events) for one in lines), DRAIN_SECONDS, "all events are committed")
            watch.stop()
            self._stop(driver)
            self._note(load, lines, driver)
            for one in lines:
                self._say(f"the targets of {one.name} are read")
                verdicts, wrong = one.judge(there, events, reader)
                self._report.held += [
                    Held(one.name, name, found.rows, len(found.lost), len(found.twice), len(found.unknown))
                    for name, found in verdicts.items()
                ]
                self._report.problems += wrong
            self._report.finished = True

    def _trouble(self, faults: Faults, watch: Watch) -> float:
        """Faults until the time is over; since when the driver and one executor are judged."""
        seconds = self._asked.minutes * 60
        spare_at, end_at = self._began + seconds * _ALL_KINDS_PART, self._began + seconds
        spared_since: float | None = None
        while (now := time.monotonic()) < end_at:
            sparing = now >= spare_at
            if sparing and spared_since is None:
                spared_since = now
                self._say("from now on the driver and one executor are left alive")
            self._one(faults, watch, sparing)
            self._report.minutes = (time.monotonic() - self._began) / 60
            time.sleep(min(faults.pause(), max(0.0, end_at - time.monotonic())))
        since = spared_since if spared_since is not None else time.monotonic()
        return since + (time.monotonic() - since) * _WARM_PART

    def _one(self, faults: Faults, watch: Watch, sparing: bool) -> None:
        """A fault, sometimes two, and then calm until every pipeline has gone on."""
        first = faults.next(sparing=sparing)
        assert first is not None
        kinds: list[Kind] = [first]
        if faults.two_at_once() and (second := faults.next(sparing=sparing, beside=first)) is not None:
            kinds.append(second)
        name = first.name if len(kinds) == 1 else TOGETHER
        begin, whom = time.monotonic(), list[str]()
        try:
            with contextlib.ExitStack() as on:
                whom += [on.enter_context(kind.act()) for kind in kinds]
                time.sleep(max(faults.lasting(kind) for kind in kinds))
                lasted = time.monotonic() - begin
            faults.calm()
        except (AssertionError, PenstockError, RuntimeError, OSError, psutil.Error) as error:
            lasted = time.monotonic() - begin
            self._report.problems.append(f"{' and '.join(kind.name for kind in kinds)}: {error}")
        ended, recovered = time.monotonic(), True
        try:
            wait_for(lambda: watch.committed_since(ended), RECOVERY_SECONDS, "every pipeline commits")
        except AssertionError:
            recovered = False
        told = whom[0] if len(kinds) == 1 else " and ".join(kind.name for kind in kinds)
        quiet = watch.quiet(begin, time.monotonic())
        self._report.met.append(Met(name, told, begin - self._began, lasted, quiet, recovered))
        longest = ", ".join(f"{pipeline} {seconds:.0f} s" for pipeline, seconds in quiet.items())
        self._say(f"{name} ({told}) for {lasted:.0f} s; without a commit: {longest}{'' if recovered else '; STILL'}")

    def _stop(self, driver: Supervisor) -> None:
        status = driver.stop(STOP_SECONDS)
        if status != 0:
            self._report.problems.append(f"asked to stop, the driver ended with {status}")
        for end in driver.ends:
            if not end.meant and end.status != _AGAIN:
                at = (end.at - self._began) / 60
                self._report.problems.append(f"the driver ended by itself with {end.status} after {at:.1f} minutes")

    def _note(self, load: Load, lines: list[Pipeline], driver: Supervisor) -> None:
        self._report.rows, self._report.starts = load.sent, driver.starts
        self._report.again = sum(end.status == _AGAIN for end in driver.ends)
        self._report.batches = {one.name: one.batches for one in lines}

    def _environment(self, there: World) -> dict[str, str]:
        found = environment(there) | {FILES: str(self._folder / "appends/lake/files")}
        return found | {BREAK: " ".join(self._asked.broken)}

    def _say(self, text: str) -> None:
        print(f"{(time.monotonic() - self._began) / 60:6.1f} min  {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults come (default: 30)")
    parser.add_argument("--seed", type=int, default=None, help="decides the faults; one is made up and printed")
    parser.add_argument("--rate", type=float, default=200.0, help="events a second (default: 200)")
    parser.add_argument("--out", type=Path, default=Path("soak-report"), help="the folder for the report")
    parser.add_argument(
        "--break", dest="broken", choices=WAYS, nargs="+", default=[], help="on purpose: the soak must fail"
    )
    asked = parser.parse_args()
    asked.out = asked.out.absolute()
    if asked.seed is None:
        asked.seed = SystemRandom().randrange(1_000_000)
    return asked


if __name__ == "__main__":
    sys.exit(main())
