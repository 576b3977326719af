"""The minimal ACLs that a pipeline needs on its brokers, from its file alone, each with its reason.

They are those of `run`, `plan`, `lag` and `status`. Describing a topic comes with reading and with writing it, being
idempotent with writing: neither is granted by itself. Nothing is asked over the network.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.config import KafkaSinkConfig, PipelineConfig, PostgresSinkConfig, SecurityConfig
from penstock.sinks.kafka.markers import marker_topic

Resource = Literal["topic", "group", "transactional-id"]
_SPECIAL = frozenset("^$.*+?()[]{}|\\")
_REPEATED = frozenset("*?{")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One operation on one resource, or on all with a common prefix."""

    brokers: str
    principal: str
    resource: Resource
    name: str
    pattern: Literal["literal", "prefixed"]
    operation: Literal["Read", "Write", "Create", "DescribeConfigs", "AlterConfigs"]
    reason: str


@dataclass(frozen=True)
class RightsNeeded:
    """Everything that `penstock plan --acls` prints."""

    pipeline: str
    rights: tuple[Right, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """As Kafka's own tool takes them; one for each resource."""
        together: dict[tuple[str, str, str, str, str], list[str]] = {}
        for one in self.rights:
            key = (one.brokers, one.principal, one.resource, one.name, one.pattern)
            together.setdefault(key, []).append(one.operation)
        return tuple(_command(*key, operations) for key, operations in together.items())

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.pipeline,
            "rights": [asdict(one) for one in self.rights],
            "commands": list(self.commands),
        }


def plan_rights(config: PipelineConfig) -> RightsNeeded:
    """The rights that the pipeline of a file needs."""
    return RightsNeeded(config.name, tuple(dict.fromkeys(_rights(config))))


def _rights(config: PipelineConfig) -> Iterator[Right]:
    source, brokers = config.source, config.source.brokers
    user = _principal(source.security, source.options.get("sasl.username"))
    for topic in source.named_topics or ():
        yield Right(brokers, user, "topic", topic, "literal", "Read", "the source reads it")
    if source.pattern is not None:
        prefix = literal_prefix(source.pattern)
        reason = f"the source reads what matches {source.pattern}"
        if prefix:
            yield Right(brokers, user, "topic", prefix, "prefixed", "Read", reason)
        else:
            yield Right(brokers, user, "topic", "*", "literal", "Read", reason)
    if config.group is not None:
        yield Right(brokers, user, "group", config.group, "literal", "Read", "it publishes the progress of the sinks")
    if config.alerts is not None and config.alerts.topic is not None:
        yield Right(brokers, user, "topic", config.alerts.topic, "literal", "Write", "alerts are sent to it")
        yield Right(brokers, user, "topic", config.alerts.topic, "literal", "Create", "created if missing")
    if config.quarantine is not None and config.quarantine.topic is not None:
        topic = config.quarantine.topic
        yield Right(brokers, user, "topic", topic, "literal", "Write", "bad records are sent to it")
        for name in _quarantine_sinks(config):
            yield from _exactly_once(brokers, user, config.name, name, topic)
    for sink in config.sinks:
        if isinstance(sink, KafkaSinkConfig):
            yield from _kafka_sink(config, sink, user)


def _kafka_sink(config: PipelineConfig, sink: KafkaSinkConfig, user_of_source: str) -> Iterator[Right]:
    brokers = sink.brokers or config.source.brokers
    user = user_of_source if brokers == config.source.brokers else "User:?"
    if sink.security is not None or "sasl.username" in sink.options:
        user = _principal(sink.security, sink.options.get("sasl.username"))
    if isinstance(sink.topic, str):
        topic, reason = sink.topic, f"sink {sink.name} writes to it"
    else:
        topic, reason = "*", f"sink {sink.name} writes to the topic that each row names: grant only those"
    yield Right(brokers, user, "topic", topic, "literal", "Write", reason)
    if sink.create:
        yield Right(brokers, user, "topic", topic, "literal", "Create", "created if missing")
    if sink.guarantee == "exactly_once":
        yield from _exactly_once(brokers, user, config.name, sink.name, topic)


def _exactly_once(brokers: str, user: str, pipeline: str, sink: str, topic: str) -> Iterator[Right]:
    """The marker topic of a sink, which it makes itself and keeps as durable as its topic, and its transactions."""
    markers = marker_topic(pipeline, sink)
    yield Right(brokers, user, "topic", markers, "literal", "Read", f"the markers of sink {sink}")
    yield Right(brokers, user, "topic", markers, "literal", "Write", f"the markers of sink {sink}")
    yield Right(brokers, user, "topic", markers, "literal", "Create", "created if missing")
    for name in (topic, markers):
        reason = "the markers must be as durable: min.insync.replicas is read"
        yield Right(brokers, user, "topic", name, "literal", "DescribeConfigs", reason)
    yield Right(brokers, user, "topic", markers, "literal", "AlterConfigs", "min.insync.replicas is raised")
    ids = f"{pipeline}/{sink}/"
    yield Right(brokers, user, "transactional-id", ids, "prefixed", "Write", f"the transactions of sink {sink}")


def _quarantine_sinks(config: PipelineConfig) -> Iterator[str]:
    """As `runtime.targets` names them."""
    yield "quarantine.topic"
    for sink in config.sinks:
        if isinstance(sink, PostgresSinkConfig) and sink.on_reject == "quarantine":
            yield f"quarantine.{sink.name}.topic"


def _principal(security: SecurityConfig | None, option: object) -> str:
    """The principal of the pipeline; a question mark if only the brokers know it."""
    if security is None:
        return f"User:{option}" if isinstance(option, str) else "User:?"
    name = security.client_id if security.mechanism == "OAUTHBEARER" else security.username
    return f"User:{name or '?'}"


def literal_prefix(pattern: str) -> str:
    """The literal prefix of a regular expression."""
    if "|" in pattern or pattern.startswith("(?"):
        return ""
    found: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "^" and at == 0:
            at += 1
            continue
        if character == "\\" and at + 1 < len(pattern) and not pattern[at + 1].isalnum():
            at += 1
            character = pattern[at]
        elif character in _SPECIAL:
            if character in _REPEATED and found:
                found.pop()
            break
        found.append(character)
        at += 1
    return "".join(found)


def _command(brokers: str, principal: str, resource: str, name: str, pattern: str, operations: list[str]) -> str:
    words = ["kafka-acls.sh", "--bootstrap-server", brokers, "--command-config", "admin.properties", "--add"]
    words += ["--allow-principal", principal]
    words += [word for operation in operations for word in ("--operation", operation)]
    words += [f"--{resource}", name]
    words += ["--resource-pattern-type", pattern] if pattern != "literal" else []
    return shlex.join(words)
