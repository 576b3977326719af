"""The process file: which brokers a folder's stack has, perhaps a registry and Spark, and which process each one is.

A process is known by its id *and* its start time, so that an id that the system gave to another one since is
never taken for ours. The file is replaced whole: a reader sees the old one or the new one.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import psutil

from penstock.errors import MissingError

# The system's clock may be set while a service runs, which moves every start time by as much.
_START_TOLERANCE_SECONDS = 5.0

S = TypeVar("S", bound="Service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that listens on a port and has a folder, and which process that is if it was started."""

    LOG: ClassVar[str]

    folder: Path
    port: int
    pid: int | None = None
    started: float | None = None

    @property
    def log(self) -> Path:
        """The output of the service and of its JVM."""
        return self.folder / self.LOG

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

    def without_process(self) -> Self:
        """This one as not started."""
        return replace(self, pid=None, started=None)

    def as_process(self, pid: int) -> Self:
        """This one as the process `pid`, which has just been started."""
        return replace(self, pid=pid, started=psutil.Process(pid).create_time())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Service):
    """One broker: its place, and its process if it was started."""

    LOG: ClassVar[str] = "broker.log"

    id: int
    controller_port: int

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry(Service):
    """The schema registry: its place, and its process if it was started."""

    LOG: ClassVar[str] = "registry.log"

    @property
    def url(self) -> str:
        """The base URL of its Confluent API."""
        scheme = "https" if is_secure(self.folder.parent) else "http"
        return f"{scheme}://127.0.0.1:{self.port}/apis/ccompat/v7"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMaster(Service):
    """The master of a Spark cluster."""

    LOG: ClassVar[str] = "spark.log"

    host: str = "127.0.0.1"
    page_port: int

    @property
    def url(self) -> str:
        """Where drivers connect: `spark.master`."""
        return f"spark://{self.host}:{self.port}"

    @property
    def page(self) -> str:
        """Its web page."""
        return f"http://{self.host}:{self.page_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWorker(SparkMaster):
    """A worker of a Spark cluster, with the cores and memory that it offers to executors."""

    id: int
    cores: int
    memory: str


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A master and its workers."""

    master: SparkMaster
    workers: tuple[SparkWorker, ...]

    @property
    def services(self) -> tuple[SparkMaster, ...]:
        """The master first."""
        return (self.master, *self.workers)

    @property
    def alive(self) -> bool:
        """Whether all of it is there."""
        return all(service.alive for service in self.services)

    def with_service(self, service: SparkMaster) -> SparkCluster:
        """This cluster with one service in another state."""
        if not isinstance(service, SparkWorker):
            return replace(self, master=service)
        return replace(self, workers=tuple(service if each.id == service.id else each for each in self.workers))


@dataclass(frozen=True, slots=True)
class StackState:
    """The stack of one folder."""

    cluster_id: str
    nodes: tuple[Node, ...]
    registry: Registry | None = None
    spark: SparkCluster | None = None

    @property
    def services(self) -> tuple[Service, ...]:
        """The brokers, the registry and Spark."""
        registry = () if self.registry is None else (self.registry,)
        return (*self.nodes, *registry, *(() if self.spark is None else self.spark.services))

    @property
    def brokers(self) -> str:
        """The brokers, as clients take them."""
        return ",".join(node.address for node in self.nodes)

    @property
    def state(self) -> str:
        """Whether it is up, down (no broker is left), or degraded: something of it is gone."""
        if not any(node.alive for node in self.nodes):
            return "down"
        return "up" if all(service.alive for service in self.services) else "degraded"

    def with_service(self, service: Service) -> StackState:
        """This stack with one service in another state."""
        if isinstance(service, SparkMaster) and self.spark is not None:
            return replace(self, spark=self.spark.with_service(service))
        if isinstance(service, Registry):
            return replace(self, registry=service)
        if not isinstance(service, Node):
            return self
        return replace(self, nodes=tuple(service if each.folder == service.folder else each for each in self.nodes))

    def without_ended(self) -> StackState:
        """This stack with what is gone as not started."""
        found = self
        for one in self.services:
            found = found if one.alive else found.with_service(one.without_process())
        return found


def secure_folder(folder: Path) -> Path:
    """Where a secured stack of `folder` has its certificates and passwords."""
    return folder / "secure"


def is_secure(folder: Path) -> bool:
    """Whether the stack of `folder` is secured."""
    return (secure_folder(folder) / "layout.json").is_file()


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


def read_status(folder: Path) -> StackState:
    """The stack of `folder`; without any service where there is none."""
    return load(folder) or StackState("", ())


def load(folder: Path) -> StackState | None:
    """The stack of `folder`, if one was ever started there and not taken down."""
    try:
        text = process_file(folder).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        body = json.loads(text)
        nodes = tuple(_read(Node, folder / f"node-{each['id']}", each) for each in body["nodes"])
        # Versions without registries and Spark did not write these fields.
        registry, spark = body.get("registry"), body.get("spark")
        return StackState(
            body["cluster_id"],
            nodes,
            _read(Registry, folder / "registry", registry) if registry else None,
            SparkCluster(
                _read(SparkMaster, folder / "spark-master", spark["master"]),
                tuple(_read(SparkWorker, folder / f"spark-worker-{one['id']}", one) for one in spark["workers"]),
            )
            if spark
            else None,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise MissingError(
            "DEV_STATE_BROKEN",
            f"reading {process_file(folder)}: it is not a process file of this version",
            context={"found": text[:80], "cause": error},
            hint="stop its brokers by hand if some still run, and remove the folder",
        ) from error


def save(folder: Path, stack: StackState) -> None:
    """Write the stack down, replacing what was there in one step."""
    spark = stack.spark
    body = {
        "cluster_id": stack.cluster_id,
        "nodes": list(map(_written, stack.nodes)),
        "registry": stack.registry and _written(stack.registry),
        "spark": spark and {"master": _written(spark.master), "workers": list(map(_written, spark.workers))},
    }
    staged = process_file(folder).with_suffix(".tmp")
    staged.write_text(json.dumps(body, indent=1), encoding="utf-8")
    staged.replace(process_file(folder))


def _written(service: Service) -> dict[str, Any]:
    return {name: getattr(service, name) for name in _stored_fields(type(service))}


def _read(kind: type[S], folder: Path, written: Mapping[str, Any]) -> S:
    return kind(folder=folder, **{name: written[name] for name in _stored_fields(kind)})


def _stored_fields(kind: type[Service]) -> list[str]:
    """The fields in the process file: those of the kind first, then those of every service."""
    names = {one.name for one in fields(kind)} - {"folder"}
    return [name for cls in kind.__mro__ for name in inspect.get_annotations(cls) if name in names]
