"""Sinks that commit in their slot keep to the order of commits too: no slot with bad records commits before these are
in the quarantine, and behind an exchange none does, since its bad records are met in other tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.committed import committed
from tests.operators.local import run_local
from tests.tables import read_table

from penstock.config import load

STRICT, LENIENT = "order_id BIGINT, amount DOUBLE NOT NULL", "order_id BIGINT, amount DOUBLE"
BAD = 2
"""Under the strict schema the record with this id is bad; it is in the first of three partitions."""
IDS = range(9)
DEDUPE = [{"dedupe": {"keys": ["order_id"]}}]


class Killed(BaseException):
    """The driver is dead: nothing may catch this and go on."""


class World:
    """A topic of three partitions, and a pipeline that has two slots and writes to a topic and a table."""

    def __init__(self, topics: Any, write: Callable[..., Path], transforms: list[Any]) -> None:
        self.topics, self.transforms = topics, transforms
        self.topic, self.clean, self._write = topics.create(3), topics.create(2, prefix="clean"), write
        for number in IDS:
            value = {"order_id": number, **({} if number == BAD else {"amount": 1.0})}
            topics.send(self.topic, [value], partition=number // 3)

    def file(self, schema: str) -> Path:
        sinks = [
            {"name": "delta", "type": "delta", "path": "lake/delta"},
            {"name": "out", "type": "kafka", "topic": self.clean, "key": "order_id", "slots": 2},
        ]
        name = f"orders-{self.topic}"
        decode = {"format": "json", "schema": schema}
        return self._write(self.topic, name=name, sinks=sinks, decode=decode, transforms=self.transforms)

    def run(self, schema: str, enter: Callable[[int, str], None] = lambda batch, phase: None) -> None:
        self.folder = self.file(schema).parent
        run_local(load(self.file(schema)), enter=enter)

    def sent_on(self) -> list[int]:
        """The ids that a reader of committed records finds in the topic."""
        return sorted(json.loads(m.value())["order_id"] for m in committed(self.topics.brokers, self.clean))

    def in_table(self) -> list[int]:
        return sorted(read_table(self.folder / "lake/delta").column("order_id").to_pylist())

    def quarantined(self) -> list[int]:
        return sorted(
            json.loads(row["value"])["order_id"] for row in read_table(self.folder / "lake/quarantine").to_pylist()
        )


@pytest.mark.parametrize(
    ("transforms", "before"),
    [([], [3, 4, 5]), (DEDUPE, [])],
    ids=["slot-without-bad-records-commits", "behind-an-exchange-none-does"],
)
def test_slot_with_bad_records_is_not_committed_before_they_are_quarantined(
    topics: Any, pipeline_file: Callable[..., Path], transforms: list[Any], before: list[int]
) -> None:
    world, seen = World(topics, pipeline_file, transforms), {}

    def enter(batch: int, phase: str) -> None:
        if phase.startswith("commit:"):
            seen[phase] = (world.quarantined(), world.sent_on(), world.in_table())

    world.run(STRICT, enter)
    good = [number for number in IDS if number != BAD]
    assert seen == {
        "commit:quarantine": ([], before, []),
        "commit:delta": ([BAD], good, []),
        "commit:out": ([BAD], good, good),
    }
    assert (world.quarantined(), world.sent_on(), world.in_table()) == ([BAD], good, good)


@pytest.mark.parametrize("phase", ["commit", "commit:quarantine", "commit:delta", "commit:out"])
@pytest.mark.parametrize("transforms", [[], DEDUPE], ids=["direct", "exchange"])
def test_slot_sink_killed_and_definition_edited_each_record_is_once_in_topic_or_quarantine(
    topics: Any, pipeline_file: Callable[..., Path], transforms: list[Any], phase: str
) -> None:
    world = World(topics, pipeline_file, transforms)

    def enter(batch: int, now: str) -> None:
        if now == phase:
            raise Killed

    with pytest.raises(Killed):
        world.run(STRICT, enter)
    world.run(LENIENT)
    for target in (world.sent_on(), world.in_table()):
        assert Counter([*target, *world.quarantined()]) == dict.fromkeys(IDS, 1)
