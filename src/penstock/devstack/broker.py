"""One broker: its configuration, its storage and its process."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from penstock.devstack.private import put
from penstock.devstack.processes import log_context, spawn
from penstock.devstack.secure import SecureStack
from penstock.devstack.state import Node, StackState
from penstock.errors import MissingError

_LOGGING = Path(__file__).with_name("log4j2.properties")


def write_properties(stack: StackState, node: Node) -> None:
    """Write the configuration of a combined broker and controller."""
    replicas = len(stack.nodes)
    in_sync = min(2, replicas)
    voters = ",".join(f"{each.id}@127.0.0.1:{each.controller_port}" for each in stack.nodes)
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": voters,
        "listeners": f"CLIENT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": f"CLIENT://{node.address}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": node.data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 8,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        # A broker that was killed may come back only when its old session has run out.
        "broker.session.timeout.ms": 5000,
        "broker.heartbeat.interval.ms": 1000,
        # Time on a record is its event's: with a retention, old events would vanish in the middle of a try-out.
        "log.retention.ms": -1,
        # The default of 128 MB is a quarter of the heap below.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    }
    secure = SecureStack.of(node.folder.parent)
    if secure is not None:
        settings |= secure.broker_settings(node)
    node.folder.mkdir(parents=True, exist_ok=True)
    # A secured one has passwords in it.
    put(node.properties, "".join(f"{key}={value}\n" for key, value in settings.items()))


def start_format(java: Path, classpath: str, stack: StackState, node: Node) -> subprocess.Popen[bytes] | None:
    """Begin to prepare the broker's storage, unless that was done before."""
    if (node.data / "meta.properties").is_file():
        return None
    storage = [
        *_java(java, classpath, "-Xmx128m", "-XX:TieredStopAtLevel=1"),
        *("kafka.tools.StorageTool", "format", "--ignore-formatted"),
        *("--cluster-id", stack.cluster_id, "--config", str(node.properties)),
    ]
    return spawn(storage, node)


def start_broker(java: Path, classpath: str, node: Node) -> subprocess.Popen[bytes]:
    """Start the broker; it is ready some seconds later."""
    flags = ["-Xms256m", "-Xmx512m", "-XX:+ExitOnOutOfMemoryError", f"-Dlog4j2.configurationFile={_LOGGING}"]
    # As in Kafka's own scripts.
    flags += shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", ""))
    secure = SecureStack.of(node.folder.parent)
    flags += secure.jvm_flags() if secure is not None else []
    return spawn([*_java(java, classpath, *flags), "kafka.Kafka", str(node.properties)], node)


def died(node: Node, what: str) -> MissingError:
    """The error for a broker that ended, or never came up, with the end of its log."""
    return MissingError(
        "BROKER_NOT_STARTED",
        f"starting broker {node.id} on port {node.port}: {what}",
        context=log_context(node.log),
        hint="everything that was started has been ended; `penstock dev down` removes the data as well",
    )


def _java(java: Path, classpath: str, *flags: str) -> list[str]:
    return [str(java), *flags, "-Djava.awt.headless=true", "-cp", classpath]
