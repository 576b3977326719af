"""The servers of a stack: brokers with their configuration, storage and processes; the users and rights of a secured
stack; and the schema registry (Apicurio). The brokers are ready once a client has produced a record that all of them
acknowledged.

The registry's schemas are in a file of its folder, synced at every change: the id of a schema must not change when the
registry is killed and restarted, as there may be records with it.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from penstock.devstack.processes import answer_of, put, spawn, wait_until_ready
from penstock.devstack.secure import USER, USERS, SecureStack
from penstock.devstack.state import Node, Registry, StackState, is_secure, secure_folder

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
        # Records have the time of their event: with a retention, old events would expire during a trial.
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


def _java(java: Path, classpath: str, *flags: str) -> list[str]:
    return [str(java), *flags, "-Djava.awt.headless=true", "-cp", classpath]


START_TIMEOUT_SECONDS = 90
# Only one compiler and one connection: it is up in half the time, and serves one user.
_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
_SETTINGS = {
    "quarkus.http.host": "127.0.0.1",
    "quarkus.datasource.jdbc.url": "jdbc:h2:file:./schemas;WRITE_DELAY=0",
    "quarkus.datasource.jdbc.initial-size": 1,
    "quarkus.datasource.jdbc.min-size": 1,
    # Opening the file after a kill can take longer than the default of 5 s on a loaded machine.
    "quarkus.datasource.jdbc.acquisition-timeout": "60S",
}


def start_registry(java: Path, jar: Path, registry: Registry) -> subprocess.Popen[bytes]:
    """Start the registry; it is ready some seconds later."""
    # The first setting is not for the registry: it identifies the stack that the process belongs to.
    settings = {"penstock.stack": registry.folder, **_SETTINGS, **_listening(registry)}
    given = [f"-D{name}={value}" for name, value in settings.items()]
    return spawn([str(java), *_JVM, "-Djava.awt.headless=true", *given, "-jar", str(jar)], registry)


def _listening(registry: Registry) -> dict[str, object]:
    """Its port: TLS only if the stack is secured. It does not authenticate clients."""
    stack = registry.folder.parent
    if not is_secure(stack):
        return {"quarkus.http.port": registry.port}
    return {
        "quarkus.http.insecure-requests": "disabled",
        "quarkus.http.ssl-port": registry.port,
        "quarkus.http.ssl.certificate.files": secure_folder(stack) / "broker.pem",
        "quarkus.http.ssl.certificate.key-files": secure_folder(stack) / "broker.key",
    }


def await_registry(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    """Wait until the registry answers; raise if it ends before, or takes too long."""
    stack = registry.folder.parent
    trusted = str(secure_folder(stack) / "ca.pem") if is_secure(stack) else None

    def answers() -> bool:
        answer = answer_of(f"{registry.url}/subjects", trusted)
        return answer is not None and answer.ok

    wait_until_ready(registry, {registry: child}, answers, START_TIMEOUT_SECONDS, "it did not answer")


_TOPIC = "__penstock_ready"


def await_brokers(
    client: Mapping[str, str], replicas: int, children: Mapping[Node, subprocess.Popen[bytes]], seconds: float
) -> None:
    """Wait until one can produce as `client` says; raise if one of the brokers ends before, or it takes too long."""
    addresses = client["bootstrap.servers"].split(",")

    def ready() -> bool:
        return all(map(_listens, addresses)) and _can_produce(client, replicas)

    wait_until_ready(next(iter(children)), children, ready, seconds, "no client could produce")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def _can_produce(client: Mapping[str, str], replicas: int) -> bool:
    # A broker that is not up yet is expected, and not worth a log line.
    quiet: dict[str, Any] = {**client, "log_level": 0, "error_cb": lambda _error: None}
    admin = AdminClient({**quiet, "reconnect.backoff.max.ms": 200})
    try:
        # One replica on each broker, so that all of them are known to work.
        wanted = NewTopic(_TOPIC, num_partitions=1, replication_factor=replicas)
        admin.create_topics([wanted], operation_timeout=2, request_timeout=3)[_TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            return False
    acknowledged: list[bool] = []
    producer = Producer({**quiet, "acks": "all", "message.timeout.ms": 5000})
    producer.produce(_TOPIC, b"ready", on_delivery=lambda error, _message: acknowledged.append(error is None))
    producer.flush(6)
    if acknowledged != [True]:
        return False
    try:
        admin.delete_topics([_TOPIC], operation_timeout=5)[_TOPIC].result()
    except KafkaException:
        return False
    return True


_TIMEOUT_SECONDS = 15
_ITERATIONS = 4096
_KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


def create_users(secure: SecureStack) -> None:
    """Give every user its password, and the user of pipelines its rights. Idempotent."""
    admin = AdminClient({"log_level": 0, **secure.certified_client()})
    for user in USERS:
        set_password(admin, user, secure.password(user))
    rights = [
        AclBinding(
            kind, "*", ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind in _KINDS
    ]
    for future in admin.create_acls(rights, request_timeout=_TIMEOUT_SECONDS).values():
        future.result(2 * _TIMEOUT_SECONDS)


def set_password(admin: AdminClient, user: str, password: str) -> None:
    """Make a user, or change its password, for both kinds of SCRAM."""
    made = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, _ITERATIONS), password.encode())
        for mechanism in _MECHANISMS
    ]
    # One answer for each user: two changes of one user go in two requests.
    for one in made:
        for future in admin.alter_user_scram_credentials([one], request_timeout=_TIMEOUT_SECONDS).values():
            future.result(2 * _TIMEOUT_SECONDS)
