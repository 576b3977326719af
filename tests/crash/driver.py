"""`penstock`, with a trap: dies by SIGKILL at a named point, as `PENSTOCK_TEST_KILL=point:visit` says.

The points: `offsets` (offsets/N is written, nothing read yet), `staged` (files written, no sink committed),
`write` (inside the table's commit), `between` (one sink has committed, the next has not), `committed` (every
sink has committed, commits/N is not written).
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.cli.main import main
from penstock.runtime.batch import BatchRunner
from penstock.sinks import DeltaSink

POINT, _, VISIT = os.environ.get("PENSTOCK_TEST_KILL", "none:1").partition(":")
_visits: Counter[str] = Counter()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def due(point: str) -> bool:
    _visits[point] += 1
    return point == POINT and _visits[point] == int(VISIT)


def around(owner: type, name: str, before: str | None, after: str | None, inside: str | None = None) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def trapped(*args: Any, **kwargs: Any) -> Any:
        if before and due(before):
            die()
        if inside and due(inside):
            threading.Timer(0.004, die).start()
        result = original(*args, **kwargs)
        if after and due(after):
            die()
        return result

    setattr(owner, name, trapped)


around(BatchRunner, "run", before="offsets", after=None)
around(BatchRunner, "_commit", before="staged", after="committed")
around(DeltaSink, "commit", before=None, after="between", inside="write")

if __name__ == "__main__":
    main()
