"""Kafka, at least once, through Spark's own sink: finished records staged as Parquet, sent by the driver's commit.

Idempotence and `acks=all` are on, and still a batch that is run again is sent again: the topic holds no token. Spark's
sink sets no timestamps, so a record has the time at which it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.contracts import SqlEngine
from penstock.errors import TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import BatchToken, Guarantee, Manifest, Refusal, SlotAttempt
from penstock.sinks.files import ParquetFiles, TableFolder, staged_prefix
from penstock.sinks.kafka.encode.encoding import Encoders, Encoding, Encodings
from penstock.sinks.kafka.fitting import TopicBook, topic_missing
from penstock.sinks.kafka.records import RECORD_SCHEMA, RecordMaker, RowRecords, pieces
from penstock.storage import Storage

STAGED_SCHEMA = pa.schema([field for field in RECORD_SCHEMA if field.name != "timestamp"])
"""The columns that Spark's Kafka sink takes."""

_OWNED = {"kafka.enable.idempotence": "true", "kafka.acks": "all"}


class KafkaAtLeastOnceSink:
    """Implements `contracts.Sink` and `contracts.SqlSink`. `staging` is a folder of this sink's own."""

    guarantee = Guarantee.AT_LEAST_ONCE
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
        storage: Storage = Storage(),
        encode_value: Encoding | None = None,
        encode_key: Encoding | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.settings = settings
        self.topic = topic
        self.keep_coordinates = keep_coordinates
        self._folder = TableFolder(staging, storage)
        self._topics = TopicBook(name, settings, topic, create)
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
            self._topics.learn([self.topic])
        self._encoders = self._encodings.open(schema)

    def check(self, schema: pa.Schema) -> None:
        """Look whether the topic is there, and at the schemas in the registry."""
        admin = TopicAdmin(self.settings)
        if self.topic is not None and not self._topics.create and not admin.describe([self.topic]):
            raise topic_missing(self.name, [self.topic], self.settings.brokers, admin.names())
        self._encodings.check(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Nothing: a topic has no columns. Raises what `check` raises."""
        self.check(schema)
        return []

    def last_commit(self) -> BatchToken | None:
        """The topic holds no token."""
        return None

    def holds(self, token: BatchToken) -> bool:
        """The topic holds no token."""
        return False

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> RecordFiles:
        """In a task: begin the file of one attempt of a slot."""
        files = ParquetFiles(self._folder, self._prefix(token), writer, STAGED_SCHEMA)
        maker = RowRecords(self.name, self.topic, self.keep_coordinates, self._encoders)
        return RecordFiles(self.name, writer, maker, self._topics, files)

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Send the staged records, then remove their files."""
        files = [str(path) for manifest in manifests for path in manifest.items]
        if files:
            if self._sql is None:
                raise TerminalError("SINK_NEEDS_SPARK", f"sink {self.name}: sending needs Spark, and none was given")
            paths = [f"{self._folder.uri}/{path}" for path in files]
            self._sql.write("kafka", {**self.settings.for_spark(), **_OWNED}, files=paths, schema=STAGED_SCHEMA)
            for path in files:
                self._folder.remove(path)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts of the batch staged."""
        named = {str(path) for manifest in manifests for path in manifest.items}
        for path in list(self._folder.data_files(self._prefix(token))):
            if path not in named:
                self._folder.remove(path)

    def _prefix(self, token: BatchToken) -> str:
        return staged_prefix("records", self.pipeline, self.name, token)


class RecordFiles:
    """Implements `contracts.Stage`: finished records in a Parquet file, in their order."""

    def __init__(
        self, sink: str, writer: SlotAttempt, maker: RecordMaker, topics: TopicBook, files: ParquetFiles
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._maker = maker
        self._topics = topics
        self._files = files

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Stage the records of some rows; give back those that no topic takes."""
        refused: list[Refusal] = []
        for piece in pieces(rows):
            good, unfit = self._maker.screen(piece)
            records, out = self._topics.fit(good, self._maker.make(good), self._maker)
            refused += [*unfit, *out]
            if records.num_rows:
                self._files.add("", records.select(STAGED_SCHEMA.names))
        return refused

    def finish(self) -> Manifest:
        """Close the file and say what there is."""
        written = self._files.finish()
        rows = sum(file.footer.num_rows for file in written)
        size = sum(file.size_bytes for file in written)
        return Manifest(self._sink, self._writer, rows, size, tuple(file.path for file in written))

    def abort(self) -> None:
        """Remove the file."""
        self._files.abort()
