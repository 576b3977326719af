"""What the sinks over topics have in common: their topics, and, where they write exactly once, their transactions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicFacts
from penstock.model import Guarantee
from penstock.sinks.kafka.fitting import ChosenTopics, TopicCache
from penstock.sinks.kafka.marker_admin import MarkerAdmin
from penstock.sinks.kafka.markers import Marker, marker_topic
from penstock.sinks.kafka.transaction import SlotId, SlotTransaction, try_transaction

TRANSACTION_TIMEOUT = timedelta(minutes=1)


class TopicSink:
    """A sink over one topic, or with `topic` left out over those that its rows name."""

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        topic: str | None,
        create: bool,
        chosen: ChosenTopics = ChosenTopics(),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.settings = settings
        self.topic = topic
        self.notices: tuple[str, ...] = ()
        """What `prepare` and `check` found that stops nothing but should be said."""
        self._topics = TopicCache(name, settings, topic, create, chosen=chosen)

    @property
    def target(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic or 'a topic for each row'} at {self.settings.brokers}"


class TransactionalSink(TopicSink):
    """A sink whose slots write in transactions, each with its position in a marker topic of the sink's own."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        topic: str | None,
        create: bool,
        chosen: ChosenTopics = ChosenTopics(),
        transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
    ) -> None:
        super().__init__(pipeline, name, settings, topic, create, chosen)
        self.markers = marker_topic(pipeline, name)
        self.transaction_timeout = transaction_timeout

    def _check_topics(self) -> dict[str, TopicFacts]:
        """Look at the topic and the marker topic; what was found."""
        admin = self._admin()
        admin.check_timeout(self.transaction_timeout)
        found = admin.describe([topic for topic in (self.topic, self.markers) if topic is not None])
        admin.check_markers(found.get(self.markers))
        self._topics.require_fixed(admin, found)
        return found

    def _check_transactions(self) -> None:
        """See whether the brokers allow such transactions: those without access control allow all."""
        if self.settings.is_secured:
            try_transaction(replace(self._slot_id(0), transactional_id=f"{self.pipeline}/{self.name}/plan"))

    def _take_over(self, slot: int) -> SlotTransaction:
        """Fence a writer that is dead or stalled, and end its transaction, which would hold readers up."""
        return SlotTransaction(self._slot_id(slot))

    def _free(self, slot: int) -> Marker | None:
        """Take a slot over and let it go; the marker that it has."""
        transaction = self._take_over(slot)
        transaction.close()
        return transaction.marker

    def _slot_id(self, slot: int) -> SlotId:
        return SlotId(self._topics, f"{self.pipeline}/{self.name}/{slot}", self.markers, slot, self.transaction_timeout)

    def _admin(self) -> MarkerAdmin:
        return MarkerAdmin(self.name, self.settings, self.markers)
