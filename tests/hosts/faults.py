"""What happens between hosts: a way that is cut or slow, in one direction or both, for some seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.hosts.network import HOME, Network
from tests.hosts.services import BROKERS, DATABASE, DRIVER, NAMES, REGISTRY, WORKERS

_GROUPS = {"brokers": BROKERS, "workers": WORKERS}


@dataclass(frozen=True)
class Fault:
    """What happens on the way between some hosts and others, and for how long. `delay` instead of a cut."""

    some: Sequence[str]
    others: Sequence[str]
    seconds: float
    one_way: bool = False
    delay: float = 0.0

    def __str__(self) -> str:
        what = f"{self.delay:g} s late" if self.delay else "cut"
        way = "to" if self.one_way else "and"
        return f"{_called(self.some)} {way} {_called(self.others)}, {what} for {self.seconds:g} s"

    @contextmanager
    def on(self, network: Network) -> Iterator[None]:
        """Have it happen, to the end of its time or of the block, whichever is later."""
        ends = time.monotonic() + self.seconds
        if self.delay:
            network.delay(self.some, self.others, self.delay, one_way=self.one_way)
        else:
            network.cut(self.some, self.others, one_way=self.one_way)
        try:
            yield
            time.sleep(max(0.0, ends - time.monotonic()))
        finally:
            network.heal()


def _called(names: Sequence[str]) -> str:
    left = list(names)
    found = []
    if set(left) == {HOME, *NAMES} - {BROKERS[0]}:
        return "all others"
    for group, members in _GROUPS.items():
        if set(members) <= set(left):
            found.append(group)
            left = [name for name in left if name not in members]
    return " + ".join([*left, *found])


def _but(*names: str) -> list[str]:
    return [name for name in (HOME, *NAMES) if name not in names]


RUNS: dict[str, list[Fault]] = {
    "driver and brokers": [
        Fault([DRIVER], BROKERS, 5),
        Fault([DRIVER], BROKERS, 30),
        Fault([DRIVER], BROKERS, 20, one_way=True),
        Fault(BROKERS, [DRIVER], 20, one_way=True),
    ],
    "workers": [
        Fault(WORKERS, BROKERS, 20),
        Fault(WORKERS[:1], BROKERS, 30, one_way=True),
        Fault([DRIVER], WORKERS[:1], 15),
        Fault([DRIVER], WORKERS[:1], 20, one_way=True),
    ],
    # The registry first: it is asked for a version that comes behind the first batches.
    "services": [
        Fault([REGISTRY], [DRIVER, *WORKERS], 20),
        Fault([DATABASE], [DRIVER, *WORKERS], 20),
        Fault([DATABASE], [DRIVER], 10, one_way=True),
        Fault(BROKERS[:1], _but(BROKERS[0]), 60),
    ],
    "slow": [
        Fault([DRIVER], [*WORKERS, *BROKERS], 30, delay=0.3),
        Fault(BROKERS, [DRIVER, *WORKERS], 20, delay=1.0),
    ],
}
"""The faults of each run, one after another."""
FAULTS = [fault for faults in RUNS.values() for fault in faults]
