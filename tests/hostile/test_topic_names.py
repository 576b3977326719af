"""Names of topics that messages give: each of these refuses its record with a code, and no broker is asked."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.hostile.bounds import bounded

from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicFacts
from penstock.model import COORDINATES_FIELD
from penstock.sinks.kafka import ChosenTopics, fitting
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.records import RowRecords

NAMES = {
    "empty": "",
    "dots": "..",
    "a path": "../../etc/passwd",
    "blanks": "a b",
    "half of two lines": "a\nb",
    "a zero": "a\0b",
    "250 letters": "a" * 250,
    "a million letters": "a" * 1_000_000,
    "letters of other scripts": "оrders",
    "an expression": "${env:HOME}",
    "a list": "orders,secret",
    "a pattern": "^.*",
    "markers": "penstock.markers.orders.out",
    "a group": "penstock.orders",
    "offsets": "__consumer_offsets",
    "transactions": "__transaction_state",
    "the topic that is read": "incoming",
    "not allowed": "secret",
    "allowed in part": "orders-a/../../secret",
}


class _NoBroker:
    def __init__(self, settings: KafkaSettings) -> None:
        raise AssertionError("a broker was asked")


@pytest.mark.parametrize("name", NAMES)
def test_hostile_topic_name_refuses_its_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TopicAdmin", _NoBroker)
    chosen = ChosenTopics(("orders-.*", "incoming", "penstock.*", "_.*"), ("incoming",))
    facts = {"orders-a": TopicFacts("orders-a", 1, 2_000_000)}
    book = TopicCache("out", KafkaSettings("nowhere:1"), create=True, chosen=chosen, facts=facts)
    places = [{"topic": "in", "partition": 0, "offset": n, "timestamp": None} for n in range(2)]
    rows = pa.RecordBatch.from_pydict(
        {"_penstock_topic": pa.array(["orders-a", NAMES[name]]), "_penstock": pa.array(places, COORDINATES_FIELD.type)}
    )
    maker = RowRecords("out", None)
    with bounded(name):
        records, refused = book.fit(rows, maker.make(rows), maker)
    assert records.column("topic").to_pylist() == ["orders-a"]
    assert [one.record.start for one in refused] == [1]
    assert refused[0].code in ("SINK_TOPIC_INVALID", "SINK_TOPIC_NOT_ALLOWED")
