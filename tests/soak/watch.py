"""What is seen of the soak from outside: the commits of each pipeline as they come, and what the processes hold."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from tests.soak.faults import SPARED_WORKER
from tests.soak.flat import HANDLES, HEAP, MEASURES, MEMORY, THREADS, Curve
from tests.soak.pipelines import Pipeline
from tests.soak.supervisor import Supervisor
from tests.soak.world import World

DRIVER, DRIVER_JVM = "driver python", "driver jvm"
EXECUTOR, EXECUTOR_JVM = "executor python", "executor jvm"
ROLES = (DRIVER, DRIVER_JVM, EXECUTOR, EXECUTOR_JVM)
_COMMITS_SECONDS, _SAMPLE_SECONDS, _INSIDE_SECONDS = 0.25, 2.0, 10.0
_EPHEMERAL = 32768
# Pools of Spark 4.1 that make a thread for each task until they are full, and end those that were idle for a minute: by
# the fifteen letters that the kernel keeps of a thread's name, and how many there can be at once.
SPARK_POOLS = {
    "block-manager-a": 100,  # block-manager-ask-thread-pool
    "block-manager-s": 100,  # block-manager-storage-async-thread-pool
    "broadcast-excha": 128,  # spark.sql.broadcastExchange.maxThreadThreshold
    "shuffle-exchang": 1024,  # spark.sql.shuffleExchange.maxThreadThreshold
    "ResultQueryStag": 1024,  # spark.sql.resultQueryStage.maxThreadThreshold
    "QueryStageCreat": 16,
    "subquery-": 16,  # spark.sql.subquery.maxThreadThreshold
}


@dataclass(frozen=True)
class Sample:
    """What a process held. Of Python in an executor it is the largest of its workers, under the JVM's identity."""

    at: float
    role: str
    process: tuple[int, float]
    """Its number and when it was started."""
    memory: int
    handles: int
    threads: int
    """Without those in pools of Spark, as far as a pool keeps to its size."""


@dataclass(frozen=True)
class Inside:
    """What a JVM's heap had after a collection, and the kinds of its handles."""

    at: float
    role: str
    process: tuple[int, float]
    heap: int
    handles: Counter[str]


class Watch:
    """Looks from threads of its own."""

    def __init__(self, world: World, driver: Supervisor, pipelines: Sequence[Pipeline]) -> None:
        self.commits: dict[str, list[tuple[float, int]]] = {one.name: [] for one in pipelines}
        """When each commit was seen, and the number of batches then."""
        self.samples: list[Sample] = []
        self.insides: list[Inside] = []
        self._world, self._driver, self._pipelines = world, driver, pipelines
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._every, args=(seconds, look), name="watch", daemon=True)
            for seconds, look in (
                (_COMMITS_SECONDS, self._look_at_commits),
                (_SAMPLE_SECONDS, self._look_at_processes),
                (_INSIDE_SECONDS, self._look_inside),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(30)

    def committed_since(self, at: float) -> bool:
        """Whether each pipeline has begun and committed a batch since then: the second commit is of such a one."""
        return all(sum(when > at for when, _ in seen) >= 2 for seen in self.commits.values())

    def quiet(self, begin: float, end: float) -> dict[str, float]:
        """For each pipeline the longest time without a commit in a stretch."""
        return {name: longest_quiet((at for at, _ in seen), begin, end) for name, seen in self.commits.items()}

    def curves(self, begin: float, end: float) -> list[Curve]:
        """Of each role the process that was there at the end, as long as it was there within the stretch."""
        found = [
            curve for role in ROLES for curve in curves_of(role, [s for s in self.samples if begin <= s.at <= end])
        ]
        for role in (DRIVER_JVM, EXECUTOR_JVM):
            held = self._inside(role, begin, end)
            found.append(Curve(role, HEAP, [one.at for one in held], [one.heap for one in held]))
        return found

    def more_handles(self, begin: float, end: float) -> dict[str, list[str]]:
        """For each JVM what it held more of at the end of a stretch: of each kind so many."""
        found = {}
        for role in (DRIVER_JVM, EXECUTOR_JVM):
            held = self._inside(role, begin, end)
            more = held[-1].handles - held[0].handles if held else Counter[str]()
            found[role] = [f"{count} {kind}" for kind, count in more.most_common()]
        return {role: more for role, more in found.items() if more}

    def _inside(self, role: str, begin: float, end: float) -> list[Inside]:
        held = [one for one in self.insides if one.role == role and begin <= one.at <= end]
        return [one for one in held if one.process == held[-1].process]

    def _every(self, seconds: float, look: Callable[[], None]) -> None:
        while not self._done.wait(seconds):
            with contextlib.suppress(psutil.Error, OSError, subprocess.SubprocessError):
                look()

    def _look_at_commits(self) -> None:
        for one in self._pipelines:
            seen, batches = self.commits[one.name], one.batches
            if batches > (seen[-1][1] if seen else 0):
                seen.append((time.monotonic(), batches))

    def _look_at_processes(self) -> None:
        now, found = time.monotonic(), self._driver.processes()
        self.samples += [_sample(now, role, one) for role, one in zip((DRIVER, DRIVER_JVM), found, strict=False)]
        for jvm in self._world.cluster.executors(SPARED_WORKER):
            self.samples.append(_sample(now, EXECUTOR_JVM, jvm))
            if workers := jvm.children(recursive=True):
                self.samples.append(_sample(now, EXECUTOR, *workers, identity=jvm))

    def _look_inside(self) -> None:
        for role, jvm in (
            *((DRIVER_JVM, one) for one in self._driver.processes()[1:]),
            *((EXECUTOR_JVM, one) for one in self._world.cluster.executors(SPARED_WORKER)),
        ):
            who = jvm.pid, jvm.create_time()
            self.insides.append(Inside(time.monotonic(), role, who, live_heap(jvm.pid), handles_by_kind(jvm)))


def live_heap(pid: int) -> int:
    """What is alive in the heap of a JVM: the histogram of its classes is made by a collection, and adds up."""
    command = [shutil.which("jcmd") or "jcmd", str(pid), "GC.class_histogram"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    return int(told.rstrip().rpartition("\n")[2].split()[2])


def handles_by_kind(process: psutil.Process) -> Counter[str]:
    """The handles of a process: sockets by the port that is known, files by their folder."""
    sockets = {one.fd: _socket(one) for one in process.net_connections("inet")}
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            at = str(link.readlink())
            kind = at.partition(":[")[0] if not at.startswith("/") else f"in {Path(at).parent}"
            found[sockets.get(int(link.name), kind)] += 1
    return found


def _socket(one: Any) -> str:
    if not one.raddr:
        return f"socket {one.status}"
    ports = [("to", one.raddr.port), ("at", one.laddr.port)]
    where, port = next((known for known in ports if known[1] < _EPHEMERAL), ports[0])
    return f"socket {one.status} {where} {port if port < _EPHEMERAL else 'a port of the moment'}"


def longest_quiet(commits: Iterable[float], begin: float, end: float) -> float:
    """The longest time without one of these between `begin` and `end`."""
    marks = [begin, *sorted(at for at in commits if begin < at < end), end]
    return max(after - before for before, after in pairwise(marks))


def curves_of(role: str, samples: Sequence[Sample]) -> list[Curve]:
    """The curves of the process that had a role last; those before it had their own lives."""
    held = [sample for sample in samples if sample.role == role]
    held = [sample for sample in held if sample.process == held[-1].process]
    times = [sample.at for sample in held]
    values: dict[str, list[float]] = {
        MEMORY: [sample.memory for sample in held],
        HANDLES: [sample.handles for sample in held],
        THREADS: [sample.threads for sample in held],
    }
    return [Curve(role, measure, times, values[measure]) for measure in MEASURES]


def thread_names(pid: int) -> Iterator[str]:
    """The names of a process's threads, as the kernel keeps them."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield (thread / "comm").read_text().rstrip("\n")


def outside_pools(names: Iterable[str]) -> int:
    """How many threads there are, without those that a pool of Spark may have."""
    counts = Counter(next((pool for pool in SPARK_POOLS if name.startswith(pool)), "") for name in names)
    return sum(max(0, count - SPARK_POOLS.get(pool, 0)) for pool, count in counts.items())


def _sample(now: float, role: str, *processes: psutil.Process, identity: Any = None) -> Sample:
    held = []
    for process in processes:
        with process.oneshot():
            held.append((process.memory_info().rss, process.num_fds(), outside_pools(thread_names(process.pid))))
    who = identity or processes[0]
    memory, handles, threads = (max(column) for column in zip(*held, strict=True))
    return Sample(now, role, (who.pid, who.create_time()), memory, handles, threads)
