"""Parts of a cluster that are lost at random while a pipeline runs, and come back. The same ones for the same seed.

Each loss is a SIGKILL: of an executor, of a worker, of the master, of the driver, of a broker. What was lost stays away
for a while, in which another part may go too. After each, the run has to commit another batch.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.crash.cluster import Brokers
from tests.crash.harness import wait_for
from tests.crash.trial import Trial
from tests.spark_cluster import RunningCluster

KINDS = ("executor", "worker", "master", "driver", "broker")
_LAST_OFFSETS = 20_000
_AT_MOST_AFTER_SECONDS = 3.0
_AT_MOST_AWAY_SECONDS = 6.0
# A master that comes back waits up to a minute for applications whose driver is gone, before it gives executors again.
_PATIENCE_SECONDS = 180


@dataclass
class Losses:
    """Loses parts of what a trial runs on. The driver alone is started again by hand: the rest has to go on."""

    run: Trial
    cluster: RunningCluster
    brokers: Brokers
    seed: int
    kinds: Sequence[str] = KINDS
    moment: Callable[[], bool] | None = None
    """Where given, a part is lost as soon as this is so; else at random."""
    recovered: list[tuple[str, float]] = field(default_factory=list)
    """What was lost, and how many seconds after it was back the next batch was committed."""
    _driver: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._driver = self.run.crashes.start()

    def suffer(self, rounds: int) -> float:
        """Lose each kind once a round; run to the end, and tell how long that took after the last loss."""
        for _ in range(rounds):
            for kind in self._random.sample(self.kinds, len(self.kinds)):
                self._await_begun()
                if self.moment is None:
                    self._wait(_AT_MOST_AFTER_SECONDS)
                else:
                    self._await(self.moment, f"the moment to lose the {kind}")
                self._lose(kind)
        # A clean stop is part of it; what is left of the rows then comes in larger batches.
        self._driver.terminate()
        assert self._driver.wait(_PATIENCE_SECONDS) == 0, self._log()
        self.run.take(_LAST_OFFSETS)
        return self.run.crashes.finish()

    def table(self) -> str:
        """For each kind: how often, and the seconds until the next batch, in the middle and at most."""
        told = []
        for kind in self.kinds:
            seconds = sorted(took for lost, took in self.recovered if lost == kind)
            if seconds:
                told.append(
                    f"{kind}: {len(seconds)}, next batch after {seconds[len(seconds) // 2]:.1f} s, "
                    f"at most {seconds[-1]:.1f} s"
                )
        return "\n".join(told)

    def _lose(self, kind: str) -> None:
        match kind:
            case "executor":
                self._kill_executor()
            case "driver":
                self._kill_driver()
            case "worker":
                self.cluster.kill_worker(self._random.choice(self.cluster.worker_numbers))
                self.run.crashes.kills.append(kind)
                self._stay_away(self.cluster.start)
            case "master":
                self.cluster.kill_master()
                self.run.crashes.kills.append(kind)
                self._stay_away(self._bring_master_back)
            case "broker":
                lost = self._random.choice(self.brokers.ids)
                self.brokers.lose(lost, "kill")
                self.run.crashes.kills.append(kind)
                self._stay_away(lambda: self.brokers.bring_back(lost, "kill"))
        began, before = time.monotonic(), self.run.crashes.batches()
        self._await(lambda: self.run.crashes.batches() > before, f"another batch after the loss of the {kind}")
        self.recovered.append((kind, time.monotonic() - began))

    def _stay_away(self, bring_back: Callable[[], None]) -> None:
        """What was lost is away for a moment, in which an executor or the driver may be lost as well."""
        try:
            self._wait(_AT_MOST_AWAY_SECONDS)
            match self._random.choice(("none", "none", "executor", "driver")):
                case "executor":
                    self._kill_executor()
                case "driver":
                    self._kill_driver()
        finally:
            bring_back()

    def _bring_master_back(self) -> None:
        """With it come the workers, and the application: it would get no other executor otherwise."""
        self.cluster.start()
        self._await(lambda: "RUNNING" in self.cluster.applications(), "the master knows the application again")

    def _kill_executor(self) -> None:
        # Right after the loss of a worker or of the driver there may be none.
        if there := self.cluster.executors():
            self._random.choice(there).kill()
            self.run.crashes.kills.append("executor")

    def _kill_driver(self) -> None:
        """Alone, or with its JVM: then nobody tells the executors to end."""
        self.run.crashes.kill_now(self._driver, self._random.choice(("driver", "all")))
        self._driver = self.run.crashes.start()

    def _await_begun(self) -> None:
        self._await(self.run.crashes.begun.exists, "the first batch of the driver")

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            assert self._driver.poll() is None, f"the driver ended, or the rows were too few; {what}: {self._log()}"
            return condition()

        wait_for(met, _PATIENCE_SECONDS, what)

    def _wait(self, at_most: float) -> None:
        try:
            status = self._driver.wait(self._random.uniform(0, at_most))
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(f"the driver ended with {status}, or the rows were too few: {self._log()}")

    def _log(self) -> str:
        return self.run.crashes.log.read_text()[-4000:]
