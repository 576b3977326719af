"""Which records their topics can take, found out before any is sent: one bad record would lose a transaction.

The topics are described once for each stage, when a row names one for the first time. A topic that is not there
is an error, unless it is to be created; a record that no such topic could take is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MissingError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import MAX_MESSAGE_BYTES, TopicAdmin, TopicFacts
from penstock.model import Refusal
from penstock.sinks.kafka.records import RecordMaker

TOPIC_NULL = "SINK_TOPIC_NULL"
TOPIC_INVALID = "SINK_TOPIC_INVALID"
TOPIC_MISSING = "SINK_TOPIC_MISSING"
PARTITION_INVALID = "SINK_PARTITION_INVALID"
RECORD_TOO_LARGE = "SINK_RECORD_TOO_LARGE"

BATCH_BYTES = 1_000_000
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
# A batch's header is 61 bytes; a record has at most 32 beside its key, value and headers, and a header 10.
_RECORD_OVERHEAD = 61 + 32
_HEADER_OVERHEAD = 10


@dataclass
class TopicBook:
    """What is known of the topics that a sink writes to; asks for what it does not know."""

    sink: str
    settings: KafkaSettings
    fixed: str | None = None
    create: bool = False
    facts: dict[str, TopicFacts] = field(default_factory=dict)

    @property
    def record_bytes(self) -> int:
        """The largest record that the producer sends: what the fixed topic takes, unless the options say another."""
        given = self.settings.options.get("message.max.bytes")
        if given is not None:
            return int(given)
        return self.facts[self.fixed].max_message_bytes if self.fixed in self.facts else MAX_MESSAGE_BYTES

    @property
    def batch_bytes(self) -> int:
        """The largest batch of several records: within what the producer and the fixed topic take."""
        return min(int(self.settings.options.get("batch.size", BATCH_BYTES)), self.record_bytes)

    def learn(self, names: Collection[str]) -> None:
        """Look at the topics that are not known yet."""
        wanted = sorted(set(names) - self.facts.keys())
        if not wanted:
            return
        admin = TopicAdmin(self.settings)
        found = admin.describe(wanted)
        missing = [name for name in wanted if name not in found]
        if missing and self.create:
            for name in missing:
                admin.create(name)
            found |= admin.describe(missing)
            missing = []
        if missing:
            raise topic_missing(self.sink, missing, self.settings.brokers, admin.names())
        for topic in found.values():
            if not topic.writable:
                raise MissingError(
                    "KAFKA_NOT_AUTHORIZED",
                    f"sink {self.sink}: this user may not write to topic {topic.name}",
                    context={"brokers": self.settings.brokers},
                    hint="grant WRITE on the topic",
                )
            if topic.name != self.fixed and topic.max_message_bytes < self.batch_bytes:
                raise MissingError(
                    "SINK_BATCH_TOO_LARGE",
                    f"sink {self.sink}: topic {topic.name} takes less than the producer's batches",
                    context={"topic": f"{topic.max_message_bytes} bytes", "batches": f"{self.batch_bytes} bytes"},
                    hint=f"set it in the sink's options: batch.size: {topic.max_message_bytes}",
                )
        self.facts.update(found)

    def fit(
        self, rows: pa.RecordBatch, records: pa.RecordBatch, maker: RecordMaker
    ) -> tuple[pa.RecordBatch, list[Refusal]]:
        """The records that can be sent, and a refusal for each other row."""
        topics = _names_by_row(records.column("topic"))
        valid = {name for name in topics if name is not None and _TOPIC_NAME.fullmatch(name)}
        self.learn(valid)
        if None not in topics and len(valid) == len(topics) and self._all_fit(records, valid):
            return records, []
        return self._sort_out(rows, records, maker, topics)

    def _limit(self, topic: str) -> int:
        return min(self.facts[topic].max_message_bytes, self.record_bytes)

    def _all_fit(self, records: pa.RecordBatch, topics: Collection[str]) -> bool:
        """Whether there is nothing to refuse; says so quickly for the usual piece."""
        if records.column("partition").null_count < records.num_rows:
            return False
        smallest = min((self._limit(topic) for topic in topics), default=0)
        if records.column("headers").null_count < records.num_rows:
            return bool((record_sizes(records) <= smallest).all())
        lengths = [pc.max(pc.binary_length(records.column(name))).as_py() or 0 for name in ("key", "value")]
        return sum(lengths) + _RECORD_OVERHEAD <= smallest

    def _sort_out(
        self, rows: pa.RecordBatch, records: pa.RecordBatch, maker: RecordMaker, topics: Mapping[str | None, np.ndarray]
    ) -> tuple[pa.RecordBatch, list[Refusal]]:
        good = np.ones(records.num_rows, dtype=bool)
        refused: list[Refusal] = []

        def refuse(which: np.ndarray, code: str, message: str) -> None:
            if which.any():
                refused.extend(maker.refuse(rows.filter(pa.array(which)), code, f"sink {self.sink}: {message}"))
                good[which] = False

        partitions = pc.fill_null(records.column("partition"), -1).to_numpy()
        chosen = pc.is_valid(records.column("partition")).to_numpy(zero_copy_only=False)
        sizes = record_sizes(records)
        for name, here in topics.items():
            if name is None:
                refuse(here, TOPIC_NULL, "the topic is null")
            elif name not in self.facts:
                refuse(here, TOPIC_INVALID, f"no topic can have the name {name[:100]!r}")
            else:
                topic = self.facts[name]
                outside = here & chosen & ((partitions < 0) | (partitions >= topic.partitions))
                refuse(outside, PARTITION_INVALID, f"topic {name} has the partitions 0 to {topic.partitions - 1} only")
                limit = self._limit(name)
                large = here & ~outside & (sizes > limit)
                refuse(large, RECORD_TOO_LARGE, f"topic {name} and the producer take at most {limit} bytes a record")
        return records.filter(pa.array(good)), refused


def topic_missing(sink: str, missing: Sequence[str], brokers: str, there: Sequence[str]) -> MissingError:
    """The error for topics that are not there; topics are never made unasked."""
    shown = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
    return MissingError(
        TOPIC_MISSING,
        f"sink {sink}: no such topic: {', '.join(missing[:10])}",
        context={"brokers": brokers, "topics there": shown or "none"},
        hint="create the topic, correct its name, or let the sink create it: create: true",
    )


def record_sizes(records: pa.RecordBatch) -> np.ndarray:
    """An upper bound of each record's size in a batch of its own, in bytes."""
    sizes = np.full(records.num_rows, _RECORD_OVERHEAD, dtype=np.int64)
    for name in ("key", "value"):
        sizes += pc.fill_null(pc.binary_length(records.column(name)), 0).to_numpy()
    headers = records.column("headers")
    if headers.null_count < len(headers):
        sizes += np.fromiter((_headers_size(of) for of in headers.to_pylist()), np.int64, len(headers))
    return sizes


def _headers_size(headers: Iterable[Mapping[str, str | bytes | None]] | None) -> int:
    return sum(
        _HEADER_OVERHEAD + len(str(header["key"]).encode()) + len(header["value"] or b"") for header in headers or ()
    )


def _names_by_row(names: pa.Array) -> dict[str | None, np.ndarray]:
    """Each topic, with a mask of its rows."""
    encoded = names.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return {name: codes == code for code, name in enumerate(encoded.dictionary.to_pylist())}
