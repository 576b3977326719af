"""The quarantine as a topic: bad records with their bytes as they were, and what is wrong with them as headers.

Key and value are the original's, byte for byte, and so is the timestamp. The headers are first the columns of the
quarantine, in their order and as text, then the original's own, under their own names, byte for byte.

Few batches have bad records, and these come from several tasks. So tasks stage them as files, and the driver sends
them together with the marker, in one transaction. Up to 0.7 the tasks committed, each to a marker of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from penstock.errors import PenstockError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.model import HEADERS, BatchToken, Manifest, Position, Refusal, SlotAttempt, Verdict, decide
from penstock.sinks.commit import position_moved
from penstock.sinks.failures import sink_failures
from penstock.sinks.files import ParquetFiles, TableFolder, staged_prefix
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.markers import Marker, SlotState
from penstock.sinks.kafka.records import RECORD_SCHEMA, as_bytes, milliseconds
from penstock.sinks.kafka.stage import RecordStage
from penstock.sinks.kafka.topic_sink import TRANSACTION_TIMEOUT, TransactionalSink
from penstock.sinks.kafka.transaction import SlotTransaction
from penstock.storage import Storage

HEADER_COLUMNS = (
    "pipeline",
    "batch_id",
    "stage",
    "code",
    "message",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "quarantined_at",
)
"""The first headers; those with a null value are omitted."""

_ROWS_A_SECOND = 5_000
_BYTES_A_SECOND = 1 << 20
"""What the driver sends at least: a transaction's timeout must cover all that it sends."""

Header = dict[str, str | bytes | None]


class QuarantineTopic(TransactionalSink):
    """Implements `contracts.Sink` over the quarantine's columns. `staging` is a folder of this sink's own."""

    topic: str

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        staging: str,
        *,
        topic: str,
        create: bool = False,
        storage: Storage = Storage(),
        transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
    ) -> None:
        super().__init__(pipeline, TopicCache(name, settings, topic, create), transaction_timeout)
        self._folder = TableFolder(staging, storage)
        self._longest: timedelta | None = None
        """The longest transaction that the brokers allow."""

    def prepare(self, schema: pa.Schema) -> None:
        """Check the topic, create the marker topic, and end what a dead run left open, which would block readers."""
        self._check_topics()
        self._topics.learn()
        admin = self._admin()
        self._longest = admin.transaction_limit()
        self.notices = tuple(admin.open(1, [self.topic]))
        first = self._free(0)
        if first is None or not first.whole:
            for slot in range(1, admin.partitions()):
                self._free(slot)

    def check(self, schema: pa.Schema) -> None:
        """Check the topic, and that the brokers authorize the transactions."""
        self._check_topics()
        self._check_transactions()

    def position(self) -> Position | None:
        """The position in the marker."""
        # Unreachable brokers are noticed here, long before a read of the markers times out.
        if not self._admin().partitions():
            return None
        found = self._read([0])
        return self._position(found[0]) if found else None

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> _BadRecordFiles:
        """In a task: begin the file of one attempt of a slot. Without bad records there is no file."""
        files = ParquetFiles(self._folder, self._prefix(token), writer, RECORD_SCHEMA)
        return _BadRecordFiles(writer, BadRecords(self.name, self.topic), self._topics, files)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Send the staged records and the marker in one transaction, then remove the files.

        A batch that has landed may land again with further records: a run with another definition finds more of them.
        """
        transaction = SlotTransaction(replace(self._slot_id(0), timeout=self._timeout(manifests)))
        try:
            if self._position(transaction.state) != onto:
                raise position_moved(self.name)
            transaction.begin()
            for records in self._staged(manifests):
                transaction.send(records, self.topic)
        except BaseException:
            transaction.abort()
            raise
        facts = self._topics.facts.get(self.topic)
        transaction.commit(Marker(position, 1, facts.partitions if facts is not None else None))
        with suppress(PenstockError, OSError):  # files left behind only cost space
            for path in _named(manifests):
                self._folder.remove(path)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts of the batch staged, once it is committed."""
        if decide(self.position(), token) is Verdict.COMMITTED:
            kept = set(_named(manifests))
            for path in list(self._folder.data_files(self._prefix(token))):
                if path not in kept:
                    self._folder.remove(path)

    def _prefix(self, token: BatchToken) -> str:
        return staged_prefix("records", self.pipeline, self.name, token)

    def _staged(self, manifests: Sequence[Manifest]) -> Iterator[pa.RecordBatch]:
        """The staged records, in the order of the files and piece by piece."""
        with sink_failures(self.name, "reading staged records"):
            for path in _named(manifests):
                dataset = self._folder.dataset([path], RECORD_SCHEMA)
                yield from dataset.to_batches(batch_readahead=1, fragment_readahead=1)

    def _position(self, first: SlotState) -> Position | None:
        """The position that the first marker has. One that 0.7 wrote is one of several: the newest, with the others."""
        if first.marker is not None and first.marker.whole:
            return first.marker.position
        states = self._states().items()
        there = [(state.written_ms, slot, state.marker) for slot, state in states if state.marker is not None]
        if not there:
            return None
        newest, *older = [marker.position for _, _, marker in sorted(there, key=lambda one: one[:2], reverse=True)]
        number = max(marker.number for _, _, marker in there)
        return replace(Position.united(newest, older), number=number)

    def _timeout(self, manifests: Sequence[Manifest]) -> timedelta:
        rows, size = sum(m.rows for m in manifests), sum(m.size_bytes for m in manifests)
        wanted = self.transaction_timeout + timedelta(seconds=rows / _ROWS_A_SECOND + size / _BYTES_A_SECOND)
        return min(wanted, max(self._longest, self.transaction_timeout)) if self._longest is not None else wanted


class _BadRecordFiles(RecordStage):
    """Implements `contracts.Stage`: the records of one attempt in Parquet files, in their order."""

    def __init__(self, writer: SlotAttempt, maker: BadRecords, topics: TopicCache, files: ParquetFiles) -> None:
        super().__init__(writer, maker, topics)
        self._files = files

    def finish(self) -> Manifest:
        """Close the files and list them."""
        with sink_failures(self._topics.sink, "staging records"):
            written = self._files.finish()
        return self._manifest(*(file.path for file in written))

    def abort(self) -> None:
        """Remove the files."""
        self._files.abort()

    def _send(self, records: pa.RecordBatch, topic: str | None) -> None:
        with sink_failures(self._topics.sink, "staging records"):
            self._files.add("", records)


def _named(manifests: Sequence[Manifest]) -> list[str]:
    return [str(path) for manifest in manifests for path in manifest.items]


@dataclass(frozen=True)
class BadRecords:
    """Implements `RecordMaker` over the quarantine's columns."""

    sink: str
    topic: str

    def screen(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """Every bad record can be written."""
        return rows, ()

    def make(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Each bad record as it was, with its headers."""
        columns = [
            pa.repeat(pa.scalar(self.topic), rows.num_rows),
            pa.nulls(rows.num_rows, pa.int32()),
            rows.column("key"),
            rows.column("value"),
            self._headers(rows),
            milliseconds(rows.column("timestamp")),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

    def refuse(self, rows: pa.RecordBatch, code: str, message: str) -> Sequence[Refusal]:
        """A quarantine has no quarantine of its own: stop, so that nothing is lost."""
        first = rows.select(["topic", "partition", "offset"]).slice(0, 1).to_pylist()[0]
        raise TerminalError(
            code,
            f"{message}, and a bad record is larger with its headers",
            context={"record": f"{first['topic']}[{first['partition']}] offset {first['offset']}"},
            hint=f"raise max.message.bytes of topic {self.topic}, or quarantine to a table",
        )

    def _headers(self, rows: pa.RecordBatch) -> pa.Array:
        facts = [as_bytes(rows.column(name)).to_pylist() for name in HEADER_COLUMNS]
        original = rows.column("headers").to_pylist()
        return pa.array([_with_facts(row, own) for *row, own in zip(*facts, original, strict=True)], HEADERS)


def _with_facts(facts: Sequence[bytes | None], original: Sequence[Header] | None) -> list[Header]:
    ours: list[Header] = [
        {"key": name, "value": text} for name, text in zip(HEADER_COLUMNS, facts, strict=True) if text is not None
    ]
    return [*ours, *(original or ())]
