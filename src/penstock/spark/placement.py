"""Where a Spark master runs tasks: in this process, on this machine, or on machines that share nothing with it.

A standalone master on loopback only has workers on this machine, which see the same disk and Python. Nothing is assumed
about any other. Spark tries to connect to a standalone master for a minute, and then ends its own process; so whether
one listens is checked before a JVM is started.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.errors import MissingError

_CONNECT_SECONDS = 5.0
_NOTICE_AFTER_SECONDS = 2.0


def check_master(placement: Placement, patience: float = 0.0, tell: Callable[[str], None] = lambda text: None) -> None:
    """Raise if no master of a standalone cluster listens, now or within `patience` seconds."""
    began, noticed = time.monotonic(), False
    while placement.masters:
        refusals = {address: _refusal(address) for address in placement.masters}
        if None in refusals.values():
            return
        waited = time.monotonic() - began
        if waited >= patience:
            raise MissingError(
                "MASTER_UNREACHABLE",
                f"connecting to the Spark master {placement.master}: no response",
                context=refusals,
                hint="is it running, and is that its address?  a local cluster: penstock dev up --workers 2",
            )
        if not noticed and waited > _NOTICE_AFTER_SECONDS:
            noticed = True
            tell(f"waiting for the Spark master {placement.master}: {next(iter(refusals.values()))}")
        time.sleep(0.5)


def _refusal(address: str) -> str | None:
    """Why a connection to an address fails; None if it succeeds."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return "that is not HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None


Where = Literal["here", "this machine", "elsewhere"]
DeployMode = Literal["client", "cluster"]

LOCAL = "local[*]"
_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[.*\]")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the executors and the driver are."""

    master: str = LOCAL
    deploy_mode: DeployMode = "client"

    @property
    def where(self) -> Where:
        """Where the executors are, seen from here."""
        if _LOCAL.fullmatch(self.master):
            return "here"
        if _LOCAL_CLUSTER.fullmatch(self.master):
            return "this machine"
        return "this machine" if self.masters and all(map(_is_loopback, self.masters)) else "elsewhere"

    @property
    def masters(self) -> tuple[str, ...]:
        """The addresses of the masters of a standalone cluster: the active one, and its standbys."""
        scheme = "spark://"
        return tuple(self.master.removeprefix(scheme).split(",")) if self.master.startswith(scheme) else ()

    @property
    def is_local(self) -> bool:
        """Whether the tasks run in the driver's own process group, without a cluster."""
        return self.where == "here"

    @property
    def shares_disk(self) -> bool:
        """Whether a path means the same file to the driver and to every executor."""
        return self.where != "elsewhere"

    @property
    def kind(self) -> Literal["local", "standalone", "kubernetes", "yarn", "other"]:
        """What schedules the executors."""
        if self.is_local:
            return "local"
        scheme = self.master.partition(":")[0]
        if scheme in ("k8s", "yarn"):
            return "kubernetes" if scheme == "k8s" else "yarn"
        return "standalone" if scheme == "spark" or _LOCAL_CLUSTER.fullmatch(self.master) else "other"


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
