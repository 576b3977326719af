"""An idempotent producer for one attempt of one slot: opened, given records, flushed or aborted, and closed.

Records are stored once `flush` has returned. A transaction is such a producer too, which ends with a commit.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.kafka import explain
from penstock.kafka.client import ConnectionErrors, refuse_known
from penstock.kafka.failures import RIGHTS_HINT
from penstock.kafka.topics import TopicAdmin
from penstock.sinks.kafka.fitting import TopicCache

_DEFAULTS = {
    "log_level": 0,
    "allow.auto.create.topics": False,
    "linger.ms": 50,
    "compression.type": "lz4",
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
    # As Java's clients place keys, Spark's sink among them.
    "partitioner": "murmur2_random",
}
_DELIVERY_MS = 120_000
"""The default delivery timeout, that of Java's client."""
# The client prints fatal errors, whatever its log level; they are raised as well.
_SILENT = logging.getLogger("penstock.kafka.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
# `_FATAL` answers every call after the one that gave the cause.
_ENDED = FENCED | {
    KafkaError._STATE,
    KafkaError._FATAL,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
}


class RecordProducer:
    """`topics` has the sink and the largest record that may be sent; `written` are topics written to besides."""

    def __init__(self, topics: TopicCache, written: Collection[str] = ()) -> None:
        self._sink, self._settings, self._sizes = topics.sink, topics.settings, topics
        self._topics = set(written)
        self._undelivered: list[KafkaError] = []
        """The first error of a record that was not stored."""
        self._errors = ConnectionErrors(self._settings)
        self._producer: Any = self._open()

    def send(self, records: pa.RecordBatch, topic: str | None) -> None:
        """Send records in their order; `topic` where all have the same."""
        self._topics.update([topic] if topic is not None else records.column("topic").unique().to_pylist())
        produce, poll = self._producer.produce, self._producer.poll
        with self._failures("sending records"):
            for name, value, key, partition, timestamp, headers in zip(*_fields(records, topic), strict=False):
                while True:
                    try:
                        produce(name, value, key, partition, timestamp=timestamp, headers=headers)
                        break
                    except BufferError:
                        poll(0.1)
            poll(0)
            self._require_delivery()

    def flush(self) -> None:
        """Wait until every record is stored. Raises where one is not."""
        with self._failures("sending records"):
            while not self._undelivered and self._producer.flush(0.5):
                self._errors.refuse(self._where("sending records"))
            self._require_delivery()

    def abort(self) -> None:
        """Drop what is not sent yet. Never raises."""
        if self._producer is not None:
            with suppress(Exception):
                self._producer.purge()
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        """Close the producer, with its threads and connections."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _open(self) -> Any:
        undelivered = self._undelivered

        def note(error: KafkaError | None, message: Any) -> None:
            if error is not None and not undelivered:
                undelivered.append(error)

        with self._failures("opening a producer"):
            first = {"message.timeout.ms": _DELIVERY_MS}
            return self._client(first, {"on_delivery": note, "delivery.report.only.error": True})

    def _client(self, defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """A client with the user's options over `defaults`, and `own` over them."""
        refuse_known(self._settings)
        options = self._settings.for_librdkafka()
        options.pop("request.required.acks", None)
        return Producer(
            {
                **_DEFAULTS,
                **defaults,
                **options,
                "batch.size": self._sizes.batch_bytes,
                "message.max.bytes": self._sizes.record_bytes,
                "enable.idempotence": True,
                "acks": "all",
                **own,
                **self._errors.options,
                **({"logger": _SILENT} if self._settings.is_secured else {}),
            }
        )

    def _require_delivery(self) -> None:
        if self._undelivered:
            raise KafkaException(self._undelivered[0])

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._lost(error, doing) from None
        except SystemError as error:
            # The client raises a fatal error that arrives with a delivery report like this; it may lose the cause.
            if isinstance(error.__cause__, KafkaException):
                raise self._lost(error.__cause__, doing) from None
            raise self._ended(self._where(doing), str(error)) from None

    def _where(self, doing: str) -> str:
        return f"sink {self._sink}: {doing}"

    def _lost(self, error: KafkaException, doing: str) -> PenstockError:
        """The error for a failed call: where this producer cannot go on, a new one may succeed."""
        cause = error.args[0]
        if (refused := self._refused(cause, doing)) is not None:
            return refused
        doing = self._where(doing)
        if not (cause.code() in _ENDED or cause.txn_requires_abort() or cause.fatal()):
            return explain(cause, doing, self._settings.brokers)
        return self._ended(doing, f"{cause.name()}: {cause.str()}")

    def _refused(self, cause: KafkaError, doing: str) -> MissingError | None:
        """The error where the brokers refuse the client or its writes, which a producer's failure may not say."""
        doing = self._where(doing)
        found = self._errors.refusal(doing) or explain(cause, doing, self._settings.brokers)
        if isinstance(found, MissingError):
            return found
        if not self._settings.is_secured or cause.code() in FENCED:
            return None
        try:
            topics = TopicAdmin(self._settings).describe(self._topics)
        except PenstockError as error:
            return error if isinstance(error, MissingError) else None
        closed = sorted(name for name, facts in topics.items() if not facts.writable)
        if not closed:
            return None
        return MissingError(
            "KAFKA_NOT_AUTHORIZED",
            f"{doing}: the user of this pipeline lacks the right to write to {', '.join(closed)}",
            context={"brokers": self._settings.brokers},
            hint=RIGHTS_HINT,
        )

    def _ended(self, doing: str, said: str) -> TransientError:
        return TransientError(
            "SINK_UNAVAILABLE",
            f"{doing}: the producer cannot continue",
            context={"client": said},
            hint="the batch is tried again with a new one",
        )


def _fields(records: pa.RecordBatch, topic: str | None) -> list[Iterable[Any]]:
    """What `produce` takes, record by record. What all records share is repeated without end."""
    return [
        repeat(topic) if topic is not None else records.column("topic").to_pylist(),
        records.column("value").to_pylist(),
        _listed(records.column("key"), None),
        _listed(records.column("partition").fill_null(-1), -1),
        records.column("timestamp").to_pylist(),
        _header_lists(records.column("headers")),
    ]


def _listed(values: pa.Array, absent: object) -> Iterable[Any]:
    return repeat(absent) if values.null_count == len(values) else values.to_pylist()


def _header_lists(headers: pa.ListArray) -> Iterable[Any]:
    if headers.null_count == len(headers):
        return repeat(None)
    flat = headers.values
    pairs = list(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    offsets = headers.offsets.to_pylist()
    return [pairs[start:end] for start, end in pairwise(offsets)]
