"""Starting a stack: either all of its services are ready, or those just started are stopped again.

In: a folder for its files, a Java, the broker's class path and perhaps the registry's jar. Out: brokers on loopback to
which a client can produce, and a schema registry that answers. Running services are left alone; stopped ones start
again on their data.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from penstock.devstack import servers
from penstock.devstack.processes import (
    Stopped,
    end,
    free_ports,
    is_free,
    kill,
    not_started,
    refuse_taken,
    stack_differs,
    stop_stack,
)
from penstock.devstack.secure import Secured, SecureStack
from penstock.devstack.servers import await_brokers, await_registry, start_registry
from penstock.devstack.spark_cluster import SparkInstalled, await_workers, lay_out_cluster, start_idle
from penstock.devstack.state import Node, Registry, SparkCluster, StackState, is_secure, load, locked, save

START_TIMEOUT_SECONDS = 60
REGISTRY_PORT = 8081


class DevStack:
    """A Kafka of one or three brokers in `folder`, a schema registry if its jar is given, and Spark where that is.

    `port` is the first broker's; without it free ones are found. The registry's is 8081 without one, if that is free.
    """

    def __init__(
        self,
        folder: Path,
        *,
        java: Path,
        classpath: str,
        brokers: int | None = None,
        port: int | None = None,
        registry_jar: Path | None = None,
        registry_port: int | None = None,
        spark: SparkInstalled | None = None,
        workers: int | None = None,
        worker_cores: int = 1,
        worker_memory: str = "1g",
        secure: Secured | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._java = java
        self._classpath = classpath
        self._brokers = brokers
        self._port = port
        self._registry_jar = registry_jar
        self._registry_port = registry_port
        self._spark = spark
        self._workers, self._worker_cores, self._worker_memory = workers, worker_cores, worker_memory
        self._secured = secure
        self._stack: StackState | None = None
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> Sequence[Node]:
        """The brokers, with the process of each."""
        return self._started().nodes

    @property
    def bootstrap(self) -> str:
        """The brokers, as clients take them."""
        return self._started().brokers

    @property
    def registry(self) -> Registry | None:
        """The schema registry, with its process, if the stack has one."""
        return self._started().registry

    @property
    def spark(self) -> SparkCluster | None:
        """The Spark cluster, with the process of each service, if the stack has one."""
        return self._started().spark

    def start(self) -> None:
        """Start what is not running, and wait until a client can produce and the registry answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            stack = self._layout()
            self._secure(stack)
            idle = [node for node in stack.nodes if not node.alive]
            for node in idle:
                refuse_taken(node.port)
            registry = stack.registry if self._registry_jar is not None else None
            registry = None if registry is not None and registry.alive else registry
            if registry is not None:
                refuse_taken(registry.port, "the schema registry", "--registry-port")
            running = {service.pid for service in stack.services if service.alive}
            self._keep(stack)
            try:
                self._run(idle, registry)
                if idle and (secure := SecureStack.of(self.folder)) is not None:
                    servers.create_users(secure)
            except BaseException:
                self._abandon(running)
                raise

    def stop(self, *, keep_data: bool = False) -> Stopped:
        """End the brokers and the registry, and remove their data unless it is to be kept."""
        stopped = stop_stack(self.folder, keep_data=keep_data)
        self._reap()
        return stopped

    def kill(self, node_id: int) -> None:
        """End one broker at once, as a power cut would."""
        kill([self._node(node_id)])
        self._reap()

    def restart(self, node_id: int) -> None:
        """Start a broker that is gone again, on its data, and wait until it is ready."""
        with locked(self.folder):
            self._run([self._node(node_id)])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _layout(self) -> StackState:
        """The wanted stack: that of the process file, on other ports if none of its brokers runs."""
        previous = load(self.folder)
        running = previous is not None and any(node.alive for node in previous.nodes)
        registry = self._layout_registry(previous.registry if previous else None)
        if previous is not None:
            self._refuse_other(previous, running)
            if running:
                return replace(previous, registry=registry, spark=self._layout_spark(previous))
        count = len(previous.nodes) if previous else self._brokers or 1
        taken = [registry.port] if registry else []
        spark = self._layout_spark(previous)
        taken += [port for one in spark.services for port in (one.port, one.page_port)] if spark else []
        ports = free_ports(count, taken) if self._port is None else list(range(self._port, self._port + count))
        controllers = free_ports(count, taken=[*ports, *taken])
        nodes = tuple(
            Node(id=number, port=port, controller_port=controller, folder=self.folder / f"node-{number}")
            for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), start=1)
        )
        return StackState(previous.cluster_id if previous else _new_cluster_id(), nodes, registry, spark)

    def _secure(self, stack: StackState) -> None:
        """Make what a secured stack needs, unless it was made before."""
        if self._secured is None or is_secure(self.folder):
            return
        if load(self.folder) is not None:
            raise stack_differs(f"securing the stack in {self.folder}", "an unsecured stack", "a secured one")
        taken = [service.port for service in stack.services] + [node.controller_port for node in stack.nodes]
        SecureStack.make(self.folder, [node.id for node in stack.nodes], taken, self._secured)

    def _layout_registry(self, previous: Registry | None) -> Registry | None:
        """The wanted registry: the running one, or one on the requested port, its former port, or a free one."""
        if self._registry_jar is None:
            return previous
        if previous is not None and previous.alive:
            if self._registry_port in (None, previous.port):
                return previous
            doing = f"starting the schema registry in {self.folder}"
            raise stack_differs(doing, f"port {previous.port}, running", f"port {self._registry_port}")
        usual = REGISTRY_PORT if is_free(REGISTRY_PORT) and self._port != REGISTRY_PORT else free_ports(1)[0]
        port = self._registry_port or (previous.port if previous else usual)
        return Registry(port=port, folder=self.folder / "registry")

    def _layout_spark(self, previous: StackState | None) -> SparkCluster | None:
        """The wanted Spark cluster; the rest of one that cannot come back is stopped."""
        there = previous.spark if previous else None
        if self._spark is None:
            return there
        wanted = self._workers, self._worker_cores, self._worker_memory
        # Where the stack would take its own ports by default.
        taken = [REGISTRY_PORT, *(range(self._port, self._port + 3) if self._port else ())]
        found = lay_out_cluster(self.folder, there, *wanted, taken)
        if there is not None and found is not there:
            end([one for one in there.services if one.alive])
        return found

    def _refuse_other(self, previous: StackState, running: bool) -> None:
        there, first = len(previous.nodes), previous.nodes[0].port
        if self._brokers in (None, there) and (not running or self._port in (None, first)):
            return
        raise stack_differs(
            f"starting a stack in {self.folder}",
            f"{there} brokers from port {first} on, {'running' if running else 'not running'}",
            f"{self._brokers or there} brokers from port {self._port or first} on",
        )

    def _run(self, idle: Sequence[Node], registry: Registry | None = None) -> None:
        """Start these, and Spark where it is wanted; both come up in parallel with the brokers."""
        cluster = self._started().spark if self._spark is not None else None
        spark = start_idle(self._spark, cluster, self._keep_spark) if self._spark and cluster else {}
        child: subprocess.Popen[bytes] | None = None
        if registry is not None and self._registry_jar is not None:
            child = start_registry(self._java, self._registry_jar, registry)
            self._keep(self._started().with_service(registry.as_process(child.pid)))
        self._run_brokers(idle)
        if registry is not None and child is not None:
            await_registry(registry, child)
        if spark and cluster:
            await_workers(cluster, spark)

    def _run_brokers(self, idle: Sequence[Node]) -> None:
        if not idle:
            return
        for node in idle:
            servers.write_properties(self._started(), node)
        self._format(idle)
        for node in idle:
            child = servers.start_broker(self._java, self._classpath, node)
            self._children[node.id] = child
            self._keep(self._started().with_service(node.as_process(child.pid)))
        self._await_ready(idle)

    def _format(self, nodes: Sequence[Node]) -> None:
        tools = [(node, servers.start_format(self._java, self._classpath, self._started(), node)) for node in nodes]
        self._children |= {node.id: tool for node, tool in tools if tool is not None}
        for node, tool in tools:
            if tool is not None and tool.wait(START_TIMEOUT_SECONDS) != 0:
                raise not_started(node, "preparing its storage failed")

    def _await_ready(self, nodes: Sequence[Node]) -> None:
        alive = [node for node in self.nodes if node.alive]
        secure = SecureStack.of(self.folder)
        client = {"bootstrap.servers": ",".join(node.address for node in alive)}
        if secure is not None:
            client = secure.certified_client(nodes=[node.id for node in alive])
        children = {node: self._children[node.id] for node in nodes}
        await_brokers(client, len(alive), children, START_TIMEOUT_SECONDS)

    def _abandon(self, running: Collection[int | None]) -> None:
        """Kill every service that was not `running` before, without waiting, as the user may have interrupted.

        The processes come from the system: an interrupt may have come before one was written down.
        """
        children = [child for child in psutil.Process().children() if child.pid not in running]
        mine = [child for child in children if _belongs(child, self.folder)]
        for child in mine:
            child.kill()
        psutil.wait_procs(mine)
        self._reap()
        self._keep(self._started().without_ended())

    def _reap(self) -> None:
        for child in self._children.values():
            child.poll()

    def _keep(self, stack: StackState) -> None:
        self._stack = stack
        save(self.folder, stack)

    def _keep_spark(self, spark: SparkCluster) -> None:
        self._keep(replace(self._started(), spark=spark))

    def _node(self, node_id: int) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    def _started(self) -> StackState:
        if self._stack is None:
            raise RuntimeError("the stack is not started")
        return self._stack


def _belongs(process: psutil.Process, folder: Path) -> bool:
    own = (f"{folder}/node-", f"-Dpenstock.stack={folder}/")
    try:
        return any(word.startswith(own) for word in process.cmdline())
    except psutil.Error:
        return False


def _new_cluster_id() -> str:
    # The tools take one that begins with a dash for an option.
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return text
