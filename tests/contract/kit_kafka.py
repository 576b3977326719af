"""Kafka in the contract suite, read back by a plain consumer of committed records."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.committed import committed
from tests.contract.kits import Evolve, Rows

from penstock.kafka import KafkaSettings
from penstock.model import COORDINATES, MergeRules
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.transaction import SlotTransaction

_numbers = itertools.count()


class KafkaKit:
    commits_in_task = True
    partitions = False
    evolves = False
    widens = False
    merges = False
    replaces = False

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        topics = request.getfixturevalue("topics")
        self.topic: str = topics.create(1, prefix="contract")
        self.settings = KafkaSettings(topics.brokers)
        self.admin = topics.admin

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> KafkaSink:
        return KafkaSink(
            f"{pipeline}-{self.topic}", name, self.settings, topic=self.topic, keep_coordinates=keep_coordinates
        )

    def sink_losing_answer(self, *, landed: bool) -> KafkaSink:
        return _with_transactions(self.sink(), lambda *of: LosingAnswer(*of, landed=landed))

    def sink_overtaken(self, overtake: Callable[[], None]) -> KafkaSink:
        return _with_transactions(self.sink(), lambda *of: Overtaken(*of, overtake=overtake))

    def rows(self) -> Rows:
        found = [json.loads(message.value()) for message in committed(self.settings.brokers, self.topic)]
        for row in found:
            if COORDINATES in row:
                row[COORDINATES]["timestamp"] = datetime.fromisoformat(row[COORDINATES]["timestamp"])
        return found

    def staged(self) -> set[str]:
        return set()

    def trace(self) -> object:
        found = self.admin.list_topics(timeout=10).topics
        return {name: len(committed(self.settings.brokers, name)) for name in found if self.topic in name}


class LosingAnswer(SlotTransaction):
    """Its commit ends in a time-out: after it landed, or before it was sent."""

    def __init__(self, *of: Any, landed: bool) -> None:
        self._sent = landed
        super().__init__(*of)

    def _end(self) -> None:
        if self._sent:
            super()._end()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer is lost"))


class Overtaken(SlotTransaction):
    """Calls `overtake` between its look at the marker and its commit."""

    def __init__(self, *of: Any, overtake: Callable[[], None]) -> None:
        self._overtake = overtake
        super().__init__(*of)

    def _end(self) -> None:
        self._overtake()
        super()._end()


def _with_transactions(sink: KafkaSink, make: Callable[..., SlotTransaction]) -> KafkaSink:
    """The sink, with the first transaction of a batch made by `make`."""
    return _FirstTransaction(sink, make)


class _FirstTransaction(KafkaSink):
    def __init__(self, sink: KafkaSink, make: Callable[..., SlotTransaction]) -> None:
        self.__dict__.update(sink.__dict__)
        self._make: Callable[..., SlotTransaction] | None = make

    def _take_over(self, slot: int) -> SlotTransaction:
        if self._slots is None or self._make is None:
            return super()._take_over(slot)
        make, self._make = self._make, None
        return make(self._slot_id(slot))
