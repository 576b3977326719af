"""What sinks over topics share: their topics, and, where they write exactly once, their transactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from penstock.contracts import BaseSink
from penstock.errors import MissingError
from penstock.kafka.topics import TopicFacts
from penstock.model import Guarantee
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.marker_topic import MarkerAdmin, read_markers
from penstock.sinks.kafka.markers import Marker, SlotState, marker_topic
from penstock.sinks.kafka.transaction import SlotId, SlotTransaction, TransactionTrial

TRANSACTION_TIMEOUT = timedelta(minutes=1)


class TopicSink(BaseSink):
    """A sink over one topic, or over those that its rows name."""

    def __init__(self, pipeline: str, topics: TopicCache) -> None:
        self.pipeline = pipeline
        self.name, self.settings, self.topic = topics.sink, topics.settings, topics.fixed
        self.notices: tuple[str, ...] = ()
        """What `prepare` and `check` found that people should know."""
        self._topics = topics

    @property
    def target(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic or 'a topic for each row'} at {self.settings.brokers}"


class TransactionalSink(TopicSink):
    """A sink whose slots write in transactions, each with its position in a marker topic of the sink's own."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, pipeline: str, topics: TopicCache, transaction_timeout: timedelta) -> None:
        super().__init__(pipeline, topics)
        self.markers = marker_topic(pipeline, topics.sink)
        self.transaction_timeout = transaction_timeout

    def _check_topics(self) -> dict[str, TopicFacts]:
        """Check the topic and the marker topic; the facts of those that exist."""
        admin = self._admin()
        limit = admin.transaction_limit()
        if limit is not None and self.transaction_timeout > limit:
            raise MissingError(
                "SINK_TRANSACTION_TIMEOUT",
                f"sink {self.name}: the transaction timeout is longer than the brokers allow",
                context={
                    "transaction timeout": self.transaction_timeout,
                    "the brokers' transaction.max.timeout.ms": limit,
                },
                hint="set the sink's transaction timeout to at most that, or raise the brokers' limit",
            )
        found = admin.describe([topic for topic in (self.topic, self.markers) if topic is not None])
        policy = found[self.markers].cleanup_policy if self.markers in found else ""
        if policy not in ("", "compact"):
            raise MissingError(
                "SINK_MARKERS_EXPIRE",
                f"sink {self.name}: the marker topic must be compacted and nothing else",
                context={"topic": self.markers, "cleanup.policy": policy},
                hint="set cleanup.policy=compact on the topic: expired markers can duplicate batches",
            )
        self._topics.require_fixed(admin, found)
        return found

    def _check_transactions(self) -> None:
        """Check that the brokers authorize such transactions; without access control they allow all."""
        if self.settings.is_secured:
            TransactionTrial(replace(self._slot_id(0), transactional_id=f"{self.pipeline}/{self.name}/plan")).close()

    def _take_over(self, slot: int) -> SlotTransaction:
        """Fence a dead or stalled writer, and end its transaction, which would block readers."""
        return SlotTransaction(self._slot_id(slot))

    def _free(self, slot: int) -> Marker | None:
        """Take a slot over and release it; its marker."""
        transaction = self._take_over(slot)
        transaction.close()
        return transaction.marker

    def _slot_id(self, slot: int) -> SlotId:
        return SlotId(self._topics, f"{self.pipeline}/{self.name}/{slot}", self.markers, slot, self.transaction_timeout)

    def _admin(self) -> MarkerAdmin:
        return MarkerAdmin(self.settings, self.markers)

    def _states(self) -> dict[int, SlotState]:
        """The markers of all slots."""
        return self._read(range(self._admin().partitions()))

    def _read(self, slots: Iterable[int]) -> dict[int, SlotState]:
        return read_markers(self.name, self.settings, self.markers, slots)
