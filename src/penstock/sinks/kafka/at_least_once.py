"""Kafka, at least once, through Spark's own sink: finished records staged as Parquet, sent by the driver's commit.

Idempotence and `acks=all` are on, and still a batch that is run again is sent again: the topic holds no position.
Spark's sink sets no timestamps, so a record has the time at which it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.contracts import SqlEngine
from penstock.errors import TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import BatchToken, Guarantee, Manifest, Position, SlotAttempt
from penstock.sinks.kafka.encode.encoding import Encoders, Encoding, Encodings
from penstock.sinks.kafka.fitting import ChosenTopics, TopicCache, topic_missing
from penstock.sinks.kafka.records import RECORD_SCHEMA, RowRecords
from penstock.sinks.kafka.staged import RecordFiles, StagedRecords
from penstock.storage import Storage

STAGED_SCHEMA = pa.schema([field for field in RECORD_SCHEMA if field.name != "timestamp"])
"""The columns that Spark's Kafka sink takes."""

_OWNED = {"kafka.enable.idempotence": "true", "kafka.acks": "all"}


class KafkaAtLeastOnceSink:
    """Implements `contracts.Sink` and `contracts.SqlSink`. `staging` is a folder of this sink's own."""

    guarantee = Guarantee.AT_LEAST_ONCE
    no_upkeep = "a topic is compacted by its brokers (cleanup.policy)"
    needs_sql = True

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        staging: str,
        *,
        topic: str | None = None,
        keep_coordinates: bool = False,
        create: bool = False,
        chosen: ChosenTopics = ChosenTopics(),
        storage: Storage = Storage(),
        encode_value: Encoding | None = None,
        encode_key: Encoding | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.settings = settings
        self.topic = topic
        self.keep_coordinates = keep_coordinates
        self._staged = StagedRecords(staging, storage, pipeline, name, STAGED_SCHEMA)
        self._topics = TopicCache(name, settings, topic, create, chosen=chosen)
        self._encodings = Encodings(pipeline, name, topic, keep_coordinates, encode_value, encode_key)
        self._encoders = Encoders()
        self._sql: SqlEngine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sql": None}  # tasks have no Spark

    @property
    def target(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic or 'a topic for each row'} at {self.settings.brokers}"

    def use(self, sql: SqlEngine) -> None:
        """The engine to send through."""
        self._sql = sql

    def prepare(self, schema: pa.Schema) -> None:
        """Look at the topic, and create it where that is asked for; likewise the schemas in the registry."""
        if self.topic is not None:
            self._topics.learn(self.topic)
        self._encoders = self._encodings.open(schema)

    def check(self, schema: pa.Schema) -> None:
        """Look whether the topic is there, and at the schemas in the registry."""
        admin = TopicAdmin(self.settings)
        if self.topic is not None and not self._topics.create and not admin.describe([self.topic]):
            raise topic_missing(self.name, self.topic, self.settings.brokers, admin.names())
        self._encodings.check(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Nothing: a topic has no columns. Raises what `check` raises."""
        self.check(schema)
        return []

    def position(self) -> Position | None:
        """The topic holds no position."""
        return None

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> RecordFiles:
        """In a task: begin the file of one attempt of a slot."""
        maker = RowRecords(self.name, self.topic, self.keep_coordinates, self._encoders)
        return self._staged.stage(token, writer, maker, self._topics)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Send the staged records, then remove their files."""
        paths = self._staged.paths(manifests)
        if paths:
            if self._sql is None:
                raise TerminalError("SINK_NEEDS_SPARK", f"sink {self.name}: sending needs Spark, and none was given")
            self._sql.write("kafka", {**self.settings.for_spark(), **_OWNED}, files=paths, schema=STAGED_SCHEMA)
            self._staged.remove(manifests)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts of the batch staged."""
        self._staged.discard(token, keep=manifests)
