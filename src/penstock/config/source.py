"""The source of the records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from penstock.config.connections import SecurityConfig, check_client_options, check_kafka_security
from penstock.config.fields import Count, Duration, Section, Settings, Size, Text, wrong
from penstock.config.problems import did_you_mean
from penstock.config.yaml_source import Given

_BROKER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _check_brokers(brokers: str) -> str:
    for broker in brokers.split(","):
        found = _BROKER.fullmatch(broker.strip())
        if found is None or not 0 < int(found[2]) < 65536:
            raise wrong(f'"{broker.strip()}" is not a broker address', "write host:port, separated by commas")
    return ",".join(broker.strip() for broker in brokers.split(","))


def check_topic(topic: str) -> str:
    """The topic name, if Kafka allows it."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise wrong(f'"{topic}" is not a topic name', "Kafka allows letters, digits, . _ and -, at most 249 of them")
    return topic


def check_pattern(pattern: str) -> str:
    """The regular expression, if it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        at = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise wrong(f"not a regular expression: {error.msg}{at}") from None
    return pattern


def _to_start(value: Any) -> Any:
    if value in ("earliest", "latest") or isinstance(value, datetime):
        return value
    if isinstance(value, dict):
        return {topic: _to_offsets(topic, offsets) for topic, offsets in value.items()}
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value):
        return _to_time(value)
    raise wrong('expected earliest, latest, a time such as 2026-01-31T08:00:00Z, or {topic: {"0": offset}}')


def _to_offsets(topic: str, offsets: Any) -> dict[str, int]:
    if not isinstance(offsets, dict) or not offsets:
        raise wrong(f'topic {topic}: expected an offset for each partition, such as {{"0": 1500}}')
    for partition, offset in offsets.items():
        if not str(partition).isdecimal():
            raise wrong(f'topic {topic}: "{partition}" is not a partition number')
        if isinstance(offset, bool) or not str(offset).isdecimal():
            raise wrong(f"topic {topic}, partition {partition}: an offset is a whole number of at least 0")
    return {str(int(partition)): int(offset) for partition, offset in offsets.items()}


def _to_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise wrong(f"not a time: {error}", "write it as 2026-01-31T08:00:00Z") from None
    if time.tzinfo is None:
        raise wrong("the time has no zone", f"add one: {time.isoformat()}Z, or an offset such as +02:00")
    return time


Topic = Annotated[str, AfterValidator(check_topic)]
Brokers = Annotated[str, AfterValidator(_check_brokers)]
Partition = Annotated[int, Field(ge=0)]
Start = Annotated[
    Literal["earliest", "latest"] | datetime | dict[str, dict[str, int]],
    BeforeValidator(_to_start),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["earliest", "latest"]},
                {"type": "string", "format": "date-time"},
                {
                    "type": "object",
                    "additionalProperties": {
                        "type": "object",
                        "additionalProperties": {"type": "integer", "minimum": 0},
                    },
                },
            ]
        }
    ),
]


CONSUMER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "group.id": "progress is kept in the checkpoint, not in a consumer group",
    "enable.auto.commit": "progress is kept in the checkpoint, not in a consumer group",
    "auto.commit.interval.ms": "progress is kept in the checkpoint, not in a consumer group",
    "enable.auto.offset.store": "progress is kept in the checkpoint, not in a consumer group",
    "auto.offset.reset": "use start, and on_data_loss for lost data",
    "isolation.level": "only committed records are ever read",
    "enable.partition.eof": "the end of a batch is known from its offsets",
    "key.deserializer": "the bytes are decoded by decode",
    "value.deserializer": "the bytes are decoded by decode",
}
"""Settings of the consumer that Penstock sets itself, and what a user has instead."""


class KafkaSourceConfig(Section):
    """Topics of a Kafka cluster. Give exactly one of `topics`, `pattern` and `assign`."""

    exactly_one: ClassVar[tuple[str, ...]] = ("topics", "pattern", "assign")
    needs: ClassVar[Mapping[str, str]] = {"max_delay": "min_offsets", "min_offsets": "max_delay"}

    type: Literal["kafka"] = Field(description="The kind of source.")
    brokers: Brokers = Field(
        description="The bootstrap servers: `host:port`, separated by commas.",
        examples=["localhost:9092"],
    )
    topics: Annotated[tuple[Topic, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="The topics to read, with all partitions."
    )
    pattern: Annotated[Text, AfterValidator(check_pattern)] | None = Field(
        default=None,
        description="A regular expression: every topic whose whole name matches is read. New topics "
        "are discovered while the pipeline runs.",
        examples=["orders-.*"],
    )
    assign: (
        Annotated[
            dict[Topic, Annotated[tuple[Partition, ...], Field(strict=False, min_length=1)]],
            Field(min_length=1),
        ]
        | None
    ) = Field(default=None, description="Read only these partitions of each topic.")
    start: Start = Field(
        default="earliest",
        description="Where the first run starts: `earliest`, `latest`, an RFC 3339 time, or an offset for "
        "each partition. Later runs continue from the checkpoint.",
    )
    on_data_loss: Literal["fail", "record"] = Field(
        default="fail",
        description="What to do if records were deleted from Kafka before they were read: `fail` stops "
        "and reports the missing ranges, `record` continues and writes each gap to `<quarantine.table>_gaps`.",
    )
    max_offsets: Count | None = Field(
        default=None,
        description="A fixed maximum number of offsets per batch. If omitted, flow control adjusts it (`flow`).",
    )
    min_offsets: Count | None = Field(
        default=None, description="Wait for this many new offsets before starting a batch. Needs `max_delay`."
    )
    max_delay: Duration | None = Field(
        default=None, description="The maximum wait for `min_offsets`. Needs `min_offsets`."
    )
    chunk_bytes: Size = Field(
        default=16 << 20,
        le=1 << 30,
        description="The maximum bytes of records that a task takes from the client at once; a larger record is taken "
        "alone. Together with `decode.max_bytes`, it limits a task's memory regardless of how producers compress "
        "their batches. At most 1 GiB.",
    )
    group: Text | Literal[False] | None = Field(
        default=None,
        description="The consumer group to publish the committed offsets of the sinks to, for Kafka tools; "
        "Penstock does not read from it. Defaults to `penstock.` and the pipeline's name; `false` for none.",
    )
    security: SecurityConfig | None = Field(
        default=None, description="TLS and authentication with the brokers: a user, a certificate or tokens."
    )
    options: Settings = Field(
        default_factory=dict,
        description="Any other Kafka client setting, without the `kafka.` prefix. Secrets by "
        "reference: `sasl.password: ${env:KAFKA_PASSWORD}`.",
    )

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics that are read, in the order of the file; None where only the brokers know."""
        return None if self.pattern is not None else self.topics or tuple(self.assign or ())

    def reads(self, topic: str) -> bool:
        """Whether this topic is one of those that are read."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.named_topics or ())

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Check that topics and security are each given in only one way."""
        super().check_keys(given)
        check_kafka_security(given)

    def check_values(self, given: Given) -> None:
        """The topics are there once each, and offsets are for topics that are read."""
        check_client_options(self.options, CONSUMER, given)
        if self.min_offsets and self.max_offsets and self.min_offsets > self.max_offsets:
            message = f"min_offsets {self.min_offsets:,} is more than max_offsets {self.max_offsets:,}"
            given.report("min_offsets", message, at_key=False)
        for index, topic in enumerate(self.topics or ()):
            if topic in (self.topics or ())[:index]:
                given.report(("topics", index), f'duplicate topic "{topic}"', at_key=False)
        topics = self.named_topics
        if not isinstance(self.start, dict) or not topics:
            return
        for topic, offsets in self.start.items():
            if topic not in topics:
                context, hint = [f"topics: {', '.join(topics)}"], did_you_mean(topic, topics)
                message = f'topic "{topic}" is not read by this pipeline'
                given.report(("start", topic), message, hint, context=context)
            elif self.assign:
                for partition in offsets:
                    if int(partition) not in self.assign[topic]:
                        message = f"partition {partition} of {topic} is not assigned"
                        given.report(("start", topic, partition), message)
