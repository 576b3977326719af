"""The faults: what happens to whom, and how it ends. Which comes when is the seed's.

Every fault is a context: inside it is on, afterwards everything is up again, as an operator or a service manager would
have it. A fault that `spares` leaves the driver and the second worker alone: what these hold can be watched meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
from tests.soak.links import cut, late
from tests.soak.pipelines import Pipeline
from tests.soak.supervisor import Supervisor
from tests.soak.world import World, broker_disk, full

SPARED_WORKER = 2
LATE = "late"
"""There is one way round."""
_TWO_AT_ONCE = 0.2
_LONGEST_PAUSE = 6.0
Act = Callable[[], AbstractContextManager[str]]


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how long one lasts, and the context, which says whom it met."""

    name: str
    group: str
    """Two of one group are never on at once."""
    act: Act
    seconds: tuple[float, float] = (3, 15)
    spares: bool = True


class Faults:
    """Every kind that this machine can have, and the order in which they come."""

    def __init__(self, world: World, driver: Supervisor, pipelines: Sequence[Pipeline], seed: int) -> None:
        self._world, self._driver = world, driver
        # What is there to be met depends on the moment; the order of the kinds does not.
        self._order, self._random = Random(seed), Random(seed + 1)
        self._sparing = False
        self._bag: list[Kind] = []
        self.kinds = [*self._of_spark(), *self._of_servers(), *self._of_links(), *self._of_disks(pipelines)]

    def next(self, *, sparing: bool, beside: Kind | None = None) -> Kind | None:
        """The next kind: each comes once before one comes again. None where none goes beside the other one."""
        if sparing != self._sparing or not self._bag:
            self._sparing = sparing
            self._bag = [kind for kind in self.kinds if kind.spares or not sparing]
            self._order.shuffle(self._bag)
        fitting = [kind for kind in self._bag if beside is None or kind.group != beside.group]
        if fitting:
            self._bag.remove(fitting[0])
        return fitting[0] if fitting else None

    def lasting(self, kind: Kind) -> float:
        """How long the next one of a kind lasts."""
        return self._order.uniform(*kind.seconds)

    def two_at_once(self) -> bool:
        return self._order.random() < _TWO_AT_ONCE

    def calm(self) -> None:
        """When none is on any more: before, brokers that are cut off would be waited for in vain."""
        self._world.keep_brokers()

    def pause(self) -> float:
        """How long it is calm before the next one."""
        return self._order.uniform(0, _LONGEST_PAUSE)

    def _of_spark(self) -> list[Kind]:
        driver, cluster = self._driver, self._world.cluster
        return [
            Kind("SIGKILL driver", "driver", lambda: self._kill_driver(whole=False), (0, 0), spares=False),
            Kind("SIGKILL driver and its JVM", "driver", lambda: self._kill_driver(whole=True), (0, 0), spares=False),
            Kind("SIGSTOP driver", "driver", lambda: _stopped("driver", driver.await_whole()), spares=False),
            Kind("SIGKILL executor", "spark", self._kill_executor, (0, 0)),
            Kind("SIGSTOP executor", "spark", lambda: _stopped("executor", self._some_executor())),
            Kind("SIGKILL worker", "spark", self._kill_worker, (2, 10)),
            Kind("SIGSTOP worker", "spark", lambda: _stopped("worker", [cluster.worker(self._some_worker())])),
            # Workers that register with a new master replace their executors.
            Kind("SIGKILL master", "spark", self._kill_master, (1, 5), spares=False),
            Kind("SIGSTOP master", "spark", lambda: _stopped("master", [cluster.master()])),
        ]

    def _of_servers(self) -> list[Kind]:
        return [
            Kind("SIGKILL broker", "kafka", lambda: self._lose_broker("kill")),
            Kind("SIGSTOP broker", "kafka", lambda: self._lose_broker("stop"), (5, 20)),
            Kind("SIGKILL PostgreSQL", "postgres", self._kill_postgres, (0, 10)),
            Kind("SIGSTOP PostgreSQL", "postgres", self._stop_postgres),
            Kind("restart PostgreSQL", "postgres", self._restart_postgres, (0, 0)),
            Kind("S3 slow", "s3", lambda: self._trouble_s3("delay", seconds=1.0)),
            Kind("S3 answers 503", "s3", lambda: self._trouble_s3("error")),
            Kind("S3 cuts connections", "s3", lambda: self._trouble_s3("drop")),
            Kind("S3 does it and cuts", "s3", lambda: self._trouble_s3("swallow", method="PUT"), (3, 6)),
        ]

    def _of_links(self) -> list[Kind]:
        if not self._world.apart:
            return []
        database, s3 = [self._world.postgres.port], [self._world.s3.port]
        return [
            Kind("link to a broker cut", "kafka", lambda: self._cut_broker(both=True), (5, 25)),
            Kind("answers of a broker lost", "kafka", lambda: self._cut_broker(both=False), (5, 20)),
            Kind("links to all brokers cut", "kafka", self._cut_brokers, (5, 20)),
            Kind("link to PostgreSQL cut", "postgres", lambda: _cut("PostgreSQL", database, both=True), (5, 25)),
            Kind("answers of PostgreSQL lost", "postgres", lambda: _cut("PostgreSQL", database, both=False), (5, 20)),
            Kind("answers of S3 lost", "s3", lambda: _cut("S3", s3, both=False), (5, 20)),
            Kind("link to a broker late", LATE, lambda: self._delay_brokers(1), (5, 25)),
            Kind("links to all brokers late", LATE, lambda: self._delay_brokers(3), (5, 25)),
            Kind("link to PostgreSQL late", LATE, lambda: _late("PostgreSQL", database, self._delay()), (5, 25)),
        ]

    def _of_disks(self, pipelines: Sequence[Pipeline]) -> list[Kind]:
        if not self._world.apart:
            return []
        tables, checkpoints = zip(*(one.disks for one in pipelines), strict=True)
        return [
            Kind("disk full under tables", "disk", lambda: self._fill(tables), (3, 12)),
            Kind("disk full under a checkpoint", "disk", lambda: self._fill(checkpoints), (3, 12)),
            Kind("disk full under a broker", "kafka", self._fill_broker, (3, 12)),
        ]

    @contextlib.contextmanager
    def _kill_driver(self, whole: bool) -> Iterator[str]:
        self._driver.kill(whole=whole)
        yield "driver"

    def _some_worker(self) -> int:
        return 1 if self._sparing else self._random.choice((1, 2))

    def _some_executor(self) -> list[psutil.Process]:
        """One that runs; none where there is none just now."""
        there = self._world.cluster.executors(self._some_worker())
        there = there or ([] if self._sparing else self._world.cluster.executors())
        return [self._random.choice(there)] if there else []

    @contextlib.contextmanager
    def _kill_executor(self) -> Iterator[str]:
        there = self._some_executor()
        for executor in there:
            with contextlib.suppress(psutil.NoSuchProcess):
                executor.kill()
        yield "executor" if there else "nobody"

    @contextlib.contextmanager
    def _kill_worker(self) -> Iterator[str]:
        number = self._some_worker()
        self._world.cluster.kill_worker(number)
        try:
            yield f"worker {number}"
        finally:
            self._world.cluster.start()

    @contextlib.contextmanager
    def _kill_master(self) -> Iterator[str]:
        self._world.cluster.kill_master()
        try:
            yield "master"
        finally:
            self._world.cluster.start()

    def _some_broker(self) -> int:
        return self._random.choice([node.id for node in self._world.stack.nodes])

    @contextlib.contextmanager
    def _lose_broker(self, how: str) -> Iterator[str]:
        broker = self._some_broker()
        self._world.brokers.lose(broker, how)
        try:
            yield f"broker {broker}"
        finally:
            self._world.brokers.bring_back(broker, how)

    @contextlib.contextmanager
    def _kill_postgres(self) -> Iterator[str]:
        self._world.postgres.kill()
        try:
            yield "PostgreSQL"
        finally:
            self._world.postgres.start()

    @contextlib.contextmanager
    def _restart_postgres(self) -> Iterator[str]:
        self._world.postgres.restart()
        yield "PostgreSQL"

    @contextlib.contextmanager
    def _stop_postgres(self) -> Iterator[str]:
        with _stopped("PostgreSQL", self._world.postgres.processes()) as whom:
            yield whom

    @contextlib.contextmanager
    def _trouble_s3(self, act: str, **more: float | str) -> Iterator[str]:
        self._world.s3.fault(act, times=1_000_000, **more)
        try:
            yield "S3"
        finally:
            self._world.s3.calm()
            self._world.s3.forget()

    def _cut_broker(self, both: bool) -> AbstractContextManager[str]:
        broker = self._some_broker()
        port = next(node.port for node in self._world.stack.nodes if node.id == broker)
        return _cut(f"broker {broker}", [port], both=both)

    def _cut_brokers(self) -> AbstractContextManager[str]:
        return _cut("all brokers", [node.port for node in self._world.stack.nodes], both=True)

    def _delay_brokers(self, brokers: int) -> AbstractContextManager[str]:
        met = self._random.sample(list(self._world.stack.nodes), brokers)
        whom = "all brokers" if brokers > 1 else f"broker {met[0].id}"
        return _late(whom, [node.port for node in met], self._delay())

    def _delay(self) -> float:
        return self._random.choice((0.1, 0.3, 1.0))

    @contextlib.contextmanager
    def _fill(self, places: Sequence[Path]) -> Iterator[str]:
        place = self._random.choice(places)
        with full(place):
            yield f"{place.name} of {place.parent.name}"

    @contextlib.contextmanager
    def _fill_broker(self) -> Iterator[str]:
        with full(broker_disk(self._world.folder)):
            yield "broker 3"


@contextlib.contextmanager
def _stopped(whom: str, processes: Sequence[psutil.Process]) -> Iterator[str]:
    """SIGSTOP, and SIGCONT afterwards."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield whom if processes else "nobody"
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


@contextlib.contextmanager
def _cut(whom: str, ports: Sequence[int], both: bool) -> Iterator[str]:
    with cut(ports, both=both):
        yield whom


@contextlib.contextmanager
def _late(whom: str, ports: Sequence[int], seconds: float) -> Iterator[str]:
    with late(ports, seconds):
        yield f"{whom}, {seconds:g} s each way"
