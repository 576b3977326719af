"""The process file: which brokers a folder's stack has, and which process each of them is.

A process is known by its id *and* its start time, so that an id that the system gave to another one since is
never taken for ours. The file is replaced whole: a reader sees the old one or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from penstock.errors import MissingError

_WRITTEN = ("id", "port", "controller_port", "pid", "started")

# The system's clock may be set while a broker runs, which moves every start time by as much.
_START_TOLERANCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Node:
    """One broker: its place, and its process if it was started."""

    id: int
    port: int
    controller_port: int
    folder: Path
    pid: int | None = None
    started: float | None = None

    @property
    def log(self) -> Path:
        """Everything that the broker says, whether Kafka or the JVM says it."""
        return self.folder / "broker.log"

    @property
    def properties(self) -> Path:
        """The broker's configuration, written before every start."""
        return self.folder / "server.properties"

    @property
    def data(self) -> Path:
        """The broker's records."""
        return self.folder / "data"

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process that was started is still there."""
        return self.process() is not None

    def process(self) -> psutil.Process | None:
        """The process that was started, never another one that has its id now."""
        if self.pid is None or self.started is None:
            return None
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > _START_TOLERANCE_SECONDS:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.NoSuchProcess:
            return None

    def without_process(self) -> Node:
        """This node as one that is not started."""
        return replace(self, pid=None, started=None)

    def as_process(self, pid: int) -> Node:
        """This node as the process `pid`, which has just been started."""
        return replace(self, pid=pid, started=psutil.Process(pid).create_time())


@dataclass(frozen=True, slots=True)
class StackState:
    """The stack of one folder."""

    cluster_id: str
    nodes: tuple[Node, ...]

    @property
    def bootstrap(self) -> str:
        """The brokers, as clients take them."""
        return ",".join(node.address for node in self.nodes)

    def with_node(self, node: Node) -> StackState:
        """This stack with one node in another state."""
        return replace(self, nodes=tuple(node if each.id == node.id else each for each in self.nodes))


@dataclass(frozen=True, slots=True)
class StackStatus:
    """What is there now, as `dev status` tells it."""

    state: str
    folder: Path
    nodes: Sequence[Node]

    @property
    def brokers(self) -> str:
        """The brokers, as clients take them."""
        return ",".join(node.address for node in self.nodes)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other commands from starting or ending the stack of `folder` meanwhile."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def process_file(folder: Path) -> Path:
    """Where the stack of `folder` is written down."""
    return folder / "stack.json"


def read_status(folder: Path) -> StackStatus:
    """Whether the stack of `folder` is up, down, or degraded: some of its brokers are gone."""
    stack = load(folder)
    nodes = stack.nodes if stack else ()
    alive = sum(node.alive for node in nodes)
    state = "down" if not alive else "up" if alive == len(nodes) else "degraded"
    return StackStatus(state, folder, nodes)


def load(folder: Path) -> StackState | None:
    """The stack of `folder`, if one was ever started there and not taken down."""
    try:
        text = process_file(folder).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(text)
        nodes = tuple(
            Node(folder=folder / f"node-{each['id']}", **{name: each[name] for name in _WRITTEN})
            for each in fields["nodes"]
        )
        return StackState(fields["cluster_id"], nodes)
    except (ValueError, TypeError, KeyError) as error:
        raise MissingError(
            "DEV_STATE_BROKEN",
            f"reading {process_file(folder)}: it is not a process file of this version",
            context={"found": text[:80], "cause": error},
            hint="end its brokers by hand if some still run, and remove the folder",
        ) from error


def save(folder: Path, stack: StackState) -> None:
    """Write the stack down, replacing what was there in one step."""
    nodes = [{name: asdict(node)[name] for name in _WRITTEN} for node in stack.nodes]
    aside = process_file(folder).with_suffix(".tmp")
    aside.write_text(json.dumps({"cluster_id": stack.cluster_id, "nodes": nodes}, indent=1), encoding="utf-8")
    aside.replace(process_file(folder))
