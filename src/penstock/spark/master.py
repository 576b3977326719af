"""The master of a cluster: whether there is one at the address that is given.

Spark asks a standalone master three times in a minute, and then ends its own process. Whether anybody listens there is
known at once, before a JVM is started.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from penstock.errors import MissingError
from penstock.spark.placement import Placement

_CONNECT_SECONDS = 5.0
_TELL_AFTER_SECONDS = 2.0


def check_master(placement: Placement, patience: float = 0.0, tell: Callable[[str], None] = lambda text: None) -> None:
    """Raise where no master of a standalone cluster listens, now or within so many seconds."""
    began, told = time.monotonic(), False
    while placement.masters:
        refusals = {address: _refusal(address) for address in placement.masters}
        if None in refusals.values():
            return
        waited = time.monotonic() - began
        if waited >= patience:
            raise MissingError(
                "MASTER_UNREACHABLE",
                f"connecting to the Spark master {placement.master}: nobody answers",
                context=refusals,
                hint="is it running, and is that its address?  a cluster to try things on: penstock dev up --workers 2",
            )
        if not told and waited > _TELL_AFTER_SECONDS:
            told = True
            tell(f"waiting for the Spark master {placement.master}: {next(iter(refusals.values()))}")
        time.sleep(0.5)


def _refusal(address: str) -> str | None:
    """Why nobody can be reached at an address; None where somebody listens."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return "that is not HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None
