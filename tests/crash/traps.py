"""When and how a run dies. `PENSTOCK_TEST_KILL=POINT[@SINK]:VISIT` names the place; without it nothing happens.

`PENSTOCK_TEST_WHOM` says who gets the signal: `driver`, whose JVM and tasks then live on for a moment, as those of a
lost driver on a cluster do, or `all`, as in a power cut. `PENSTOCK_TEST_SIGNAL` is KILL or STOP.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

PREFIX = "PENSTOCK_TEST_"
RUN = "PENSTOCK_TEST_RUN"
DRIVER_PID = "PENSTOCK_TEST_DRIVER"
MASTER = "PENSTOCK_TEST_MASTER"
BEGUN = "PENSTOCK_TEST_BEGUN"
_POINT, _, _VISIT = os.environ.get("PENSTOCK_TEST_KILL", "none:1").partition(":")
_WHOM = os.environ.get("PENSTOCK_TEST_WHOM", "driver")
_SIGNAL = signal.Signals[f"SIG{os.environ.get('PENSTOCK_TEST_SIGNAL', 'KILL')}"]
_FIRST_DELAY = 0.005
_SENT_SECONDS = 0.5
_visits: Counter[str] = Counter()
_lasted: dict[str, float] = {}


def spring() -> None:
    """Send the signal, to this process last. From a task too, where the driver is another process."""
    try:
        # Two tasks may come to the place at once; the second must not stop again what was resumed.
        Path(f"{os.environ[BEGUN]}.{os.environ[DRIVER_PID]}").touch(exist_ok=False)
    except FileExistsError:
        return
    driver = psutil.Process(int(os.environ[DRIVER_PID]))
    whole = [driver, *driver.children(recursive=True)] if _WHOM == "all" else [driver]
    if _WHOM == "all" and _SIGNAL is signal.SIGSTOP:
        # On a cluster the tasks are not below the driver.
        whole += [process for process in run_processes(os.environ[RUN]) if process not in whole]
    for process in sorted(whole, key=lambda process: process.pid == os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(_SIGNAL)


def run_processes(run: str) -> Iterator[psutil.Process]:
    """Whatever runs of that name have started and is still there, on the executors too."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN) == run and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def reach(point: str, sink: str = "") -> None:
    """Die here, if this is the place and the visit."""
    if _due(point, sink):
        if _SIGNAL is signal.SIGSTOP:
            # Whoever is to be found in an open transaction must have sent something: the client waits a moment.
            time.sleep(_SENT_SECONDS)
        spring()


@contextlib.contextmanager
def within(point: str, sink: str = "") -> Iterator[None]:
    """Die somewhere inside, if this is the place and the visit: at a random part of what it took the last time."""
    place = f"{point}@{sink}"
    if _due(point, sink):
        delay = random.random() * _lasted.get(place, _FIRST_DELAY)
        threading.Timer(delay, spring).start()
    began = time.monotonic()
    yield
    _lasted[place] = time.monotonic() - began


def _due(point: str, sink: str) -> bool:
    names = {point, f"{point}@{sink}"}
    _visits.update(names)
    return _POINT in names and _visits[_POINT] == int(_VISIT)
