"""Which records their topics can take, checked before any is sent: one bad record would abort the transaction.

The topics are described once for each stage, when a row names one for the first time. A missing or read-only topic
of the pipeline file is an error. A topic that a row names comes from whoever sent the message: whatever is
wrong with it, its records are refused, and the others go on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MissingError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import MAX_MESSAGE_BYTES, TopicAdmin, TopicFacts
from penstock.model import Refusal
from penstock.sinks.kafka.records import RecordMaker

TOPIC_NULL = "SINK_TOPIC_NULL"
TOPIC_INVALID = "SINK_TOPIC_INVALID"
TOPIC_MISSING = "SINK_TOPIC_MISSING"
TOPIC_NOT_ALLOWED = "SINK_TOPIC_NOT_ALLOWED"
TOPIC_LIMIT = "SINK_TOPIC_LIMIT"
BATCH_TOO_LARGE = "SINK_BATCH_TOO_LARGE"
PARTITION_INVALID = "SINK_PARTITION_INVALID"
RECORD_TOO_LARGE = "SINK_RECORD_TOO_LARGE"

BATCH_BYTES = 1_000_000
MAX_TOPICS = 1_000
_INTERNAL = ("__", "penstock.")
_MOST_VERDICTS = 20_000
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
# A batch's header is 61 bytes; a record has at most 32 besides its key, value and headers, and a header 10.
_RECORD_OVERHEAD = 61 + 32
_HEADER_OVERHEAD = 10


@dataclass(frozen=True)
class ChosenTopics:
    """Which topics rows may name: those that match one of `allowed`, where there are any, and none of `denied`.

    One is created for them only while fewer than `most` of such topics exist.
    """

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    most: int = MAX_TOPICS

    def problem(self, name: str) -> str | None:
        """Why rows may not name this topic."""
        if name.startswith(_INTERNAL):
            return f"topic {name} is an internal one"
        if any(re.fullmatch(pattern, name) for pattern in self.denied):
            return f"topic {name} is the pipeline's own: it is read by it, or its quarantine"
        if self.allowed and not any(re.fullmatch(pattern, name) for pattern in self.allowed):
            return f"topic {name} matches none of topics_allowed"
        return None


@dataclass
class TopicCache:
    """The facts of the topics that a sink writes to; asks the brokers for those it does not know."""

    sink: str
    settings: KafkaSettings
    fixed: str | None = None
    create: bool = False
    facts: dict[str, TopicFacts] = field(default_factory=dict)
    chosen: ChosenTopics = ChosenTopics()
    unfit: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Topics that rows named and that take no records: a code and the reason."""

    def for_stage(self) -> TopicCache:
        """The cache of one stage: a topic that was missing may have been created since."""
        return replace(self, unfit={})

    @property
    def record_bytes(self) -> int:
        """The largest record that the producer sends: what the fixed topic takes, unless the options set it."""
        given = self.settings.options.get("message.max.bytes")
        if given is not None:
            return int(given)
        return self.facts[self.fixed].max_message_bytes if self.fixed in self.facts else MAX_MESSAGE_BYTES

    @property
    def batch_bytes(self) -> int:
        """The largest batch of several records: within what the producer and the fixed topic take."""
        return min(int(self.settings.options.get("batch.size", BATCH_BYTES)), self.record_bytes)

    def require_fixed(self, admin: TopicAdmin, found: Collection[str]) -> None:
        """Raise where the file's own topic was not found and may not be created."""
        if self.fixed is not None and self.fixed not in found and not self.create:
            raise self._missing(admin, self.fixed)

    def learn(self) -> None:
        """Clear the cache, and describe the file's own topic, if it names one; create it with `create: true`.

        Raises where it cannot be written to.
        """
        self.facts.clear()
        if self.fixed is None:
            return
        name = self.fixed
        admin = TopicAdmin(self.settings)
        found = admin.describe([name])
        if not found and self.create:
            admin.create(name)
            found = admin.describe([name])
        if not found:
            raise self._missing(admin, name)
        if not found[name].writable:
            raise MissingError(
                "KAFKA_NOT_AUTHORIZED",
                f"sink {self.sink}: this user may not write to topic {name}",
                context={"brokers": self.settings.brokers},
                hint="grant WRITE on the topic",
            )
        self.facts.update(found)

    def _missing(self, admin: TopicAdmin, name: str) -> MissingError:
        """The error for the file's own topic that does not exist; topics are created only with `create: true`."""
        there = admin.names()
        shown = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
        return MissingError(
            TOPIC_MISSING,
            f"sink {self.sink}: no such topic: {name}",
            context={"brokers": self.settings.brokers, "topics there": shown or "none"},
            hint="create the topic, correct its name, or let the sink create it: create: true",
        )

    def _look_at(self, names: Collection[str]) -> None:
        """Describe topics that rows name: each is then among the facts, or unfit."""
        if self.fixed in names and self.fixed not in self.facts:
            self.learn()
        if len(self.unfit) > _MOST_VERDICTS:
            self.unfit.clear()
        wanted = []
        for name in sorted(set(names) - self.facts.keys() - self.unfit.keys()):
            if not _TOPIC_NAME.fullmatch(name):
                self.unfit[name] = TOPIC_INVALID, f"no topic can have the name {name[:100]!r}"
            elif problem := self.chosen.problem(name):
                self.unfit[name] = TOPIC_NOT_ALLOWED, problem
            else:
                wanted.append(name)
        if not wanted:
            return
        admin = TopicAdmin(self.settings)
        closed: set[str] = set()
        found = admin.describe(wanted, closed=closed)
        missing = [name for name in wanted if name not in found and name not in closed]
        if missing and self.create:
            found |= self._created(admin, missing)
        for name in wanted:
            if name in self.unfit:
                continue
            if name in closed or (name in found and not found[name].writable):
                self.unfit[name] = TOPIC_NOT_ALLOWED, f"the user of this pipeline may not write to topic {name}"
            elif name not in found:
                self.unfit[name] = TOPIC_MISSING, f"no such topic: {name}"
            elif found[name].max_message_bytes < self.batch_bytes:
                takes = found[name].max_message_bytes
                self.unfit[name] = (
                    BATCH_TOO_LARGE,
                    f"topic {name} takes {takes} bytes, and the producer's batches have {self.batch_bytes}: "
                    f"set batch.size: {takes} in the sink's options",
                )
            else:
                self.facts[name] = found[name]

    def _created(self, admin: TopicAdmin, missing: Sequence[str]) -> dict[str, TopicFacts]:
        """Create topics that rows name, up to the limit."""
        there = sum(self.chosen.problem(name) is None for name in admin.names())
        made = []
        for name in missing:
            if there >= self.chosen.most:
                self.unfit[name] = TOPIC_LIMIT, f"no such topic: {name}, and max_topics ({self.chosen.most}) are there"
                continue
            try:
                admin.create(name)
            except (MissingError, TerminalError) as error:
                self.unfit[name] = TOPIC_MISSING, f"no such topic, and it cannot be created: {error.line}"
                continue
            there += 1
            made.append(name)
        return admin.describe(made)

    def fit(
        self, rows: pa.RecordBatch, records: pa.RecordBatch, maker: RecordMaker
    ) -> tuple[pa.RecordBatch, list[Refusal]]:
        """The records that can be sent, and a refusal for each other row."""
        topics = _names_by_row(records.column("topic"))
        named = {name for name in topics if name is not None}
        self._look_at(named)
        if None not in topics and named <= self.facts.keys() and self._all_fit(records, named):
            return records, []
        return self._sort_out(rows, records, maker, topics)

    def _limit(self, topic: str) -> int:
        return min(self.facts[topic].max_message_bytes, self.record_bytes)

    def _all_fit(self, records: pa.RecordBatch, topics: Collection[str]) -> bool:
        """Whether nothing is refused; quick for the usual piece."""
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
            elif name in self.unfit:
                refuse(here, *self.unfit[name])
            else:
                topic = self.facts[name]
                outside = here & chosen & ((partitions < 0) | (partitions >= topic.partitions))
                refuse(outside, PARTITION_INVALID, f"topic {name} has the partitions 0 to {topic.partitions - 1} only")
                limit = self._limit(name)
                large = here & ~outside & (sizes > limit)
                refuse(large, RECORD_TOO_LARGE, f"topic {name} and the producer take at most {limit} bytes a record")
        return records.filter(pa.array(good)), refused


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
