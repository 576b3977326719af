"""Topics that rows name: whatever is wrong with one, its records are refused and the others go on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest

from penstock.assembly.targets import build_targets
from penstock.config import load
from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicFacts
from penstock.model import COORDINATES_FIELD
from penstock.sinks.kafka import fitting
from penstock.sinks.kafka.fitting import ChosenTopics, TopicCache
from penstock.sinks.kafka.records import RowRecords


class Cluster:
    """Some topics: what a `TopicAdmin` gives of them."""

    def __init__(self, **topics: TopicFacts | None) -> None:
        self.topics = topics
        self.created: list[str] = []
        self.described = 0
        self.failure: Exception | None = None

    def __call__(self, settings: KafkaSettings) -> Cluster:
        return self

    def names(self) -> list[str]:
        return sorted(self.topics)

    def describe(self, names: Collection[str], closed: set[str] | None = None) -> dict[str, TopicFacts]:
        self.described += 1
        denied = {name for name in names if self.topics.get(name, ...) is None}
        if closed is None and denied:
            raise MissingError("KAFKA_NOT_AUTHORIZED", "no right")
        (closed if closed is not None else set()).update(denied)
        return {name: found for name in names if (found := self.topics.get(name)) is not None}

    def create(self, name: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.created.append(name)
        self.topics[name] = TopicFacts(name, 1, 2_000_000)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(
        clean=TopicFacts("clean", 1, 2_000_000),
        closed=None,
        readonly=TopicFacts("readonly", 1, 2_000_000, writable=False),
        narrow=TopicFacts("narrow", 1, 1_000),
    )
    monkeypatch.setattr(fitting, "TopicAdmin", made)
    return made


def fitted(book: TopicCache, *names: str | None) -> tuple[list[str], dict[int, str]]:
    """The topics of the records that are sent, and the codes of the others by their places."""
    places = [{"topic": "in", "partition": 0, "offset": n, "timestamp": None} for n in range(len(names))]
    rows = pa.RecordBatch.from_pydict(
        {"_penstock_topic": pa.array(names, pa.string()), "_penstock": pa.array(places, COORDINATES_FIELD.type)}
    )
    maker = RowRecords("out", None)
    records, refused = book.fit(rows, maker.make(rows), maker)
    return records.column("topic").to_pylist(), {one.record.start: one.code for one in refused}


def book(**options: Any) -> TopicCache:
    return TopicCache("out", KafkaSettings("nowhere:1"), **options)


def test_topics_that_take_no_records_refuse_theirs_alone(cluster: Cluster) -> None:
    sent, refused = fitted(book(), "clean", "missing", "closed", "readonly", "narrow", "a b", None, "clean")
    assert sent == ["clean", "clean"]
    assert refused == {
        1: "SINK_TOPIC_MISSING",
        2: "SINK_TOPIC_NOT_ALLOWED",
        3: "SINK_TOPIC_NOT_ALLOWED",
        4: "SINK_BATCH_TOO_LARGE",
        5: "SINK_TOPIC_INVALID",
        6: "SINK_TOPIC_NULL",
    }
    assert not cluster.created


@pytest.mark.parametrize("name", ["penstock.markers.orders.out", "penstock.x", "__consumer_offsets", "__x"])
def test_internal_topics_are_refused_even_where_they_are_allowed(cluster: Cluster, name: str) -> None:
    cluster.topics[name] = TopicFacts(name, 1, 2_000_000)
    assert fitted(book(chosen=ChosenTopics((".*",)), create=True), name) == ([], {0: "SINK_TOPIC_NOT_ALLOWED"})
    assert not cluster.described


def test_topics_allowed_match_whole_names(cluster: Cluster) -> None:
    for name in ("orders-a", "orders", "my-orders-a"):
        cluster.topics[name] = TopicFacts(name, 1, 2_000_000)
    chosen = ChosenTopics(("orders-.*",), ("orders-own",))
    sent, refused = fitted(book(chosen=chosen), "orders-a", "orders", "my-orders-a", "orders-own")
    assert sent == ["orders-a"]
    assert refused == dict.fromkeys((1, 2, 3), "SINK_TOPIC_NOT_ALLOWED")


def test_topics_are_created_up_to_the_bound_which_counts_those_there(cluster: Cluster) -> None:
    cluster.topics["new-0"] = TopicFacts("new-0", 1, 2_000_000)
    chosen = ChosenTopics(("new-.*",), most=3)
    sent, refused = fitted(book(chosen=chosen, create=True), *(f"new-{n}" for n in range(6)))
    assert (sent, cluster.created) == (["new-0", "new-1", "new-2"], ["new-1", "new-2"])
    assert refused == dict.fromkeys((3, 4, 5), "SINK_TOPIC_LIMIT")
    # Another task, another run: the bound is the cluster's.
    assert fitted(book(chosen=chosen, create=True), "new-9") == ([], {0: "SINK_TOPIC_LIMIT"})


@pytest.mark.parametrize("error", [TerminalError("KAFKA_REFUSED", "no"), MissingError("KAFKA_NOT_AUTHORIZED", "no")])
def test_topic_that_the_brokers_do_not_create_refuses_its_records(cluster: Cluster, error: Exception) -> None:
    cluster.failure = error
    assert fitted(book(create=True), "clean", "new") == (["clean"], {1: "SINK_TOPIC_MISSING"})
    cluster.failure = TransientError("BROKER_UNREACHABLE", "away")
    with pytest.raises(TransientError):
        fitted(book(create=True), "new")


def test_missing_topic_is_asked_for_once_a_stage(cluster: Cluster) -> None:
    whole = book()
    stage = whole.for_stage()
    for _ in range(3):
        assert fitted(stage, "later")[1] == {0: "SINK_TOPIC_MISSING"}
    assert cluster.described == 1
    cluster.topics["later"] = TopicFacts("later", 1, 2_000_000)
    assert fitted(whole.for_stage(), "later") == (["later"], {})


def test_own_topic_that_is_missing_or_closed_still_stops(cluster: Cluster) -> None:
    for name, code in {"missing": "SINK_TOPIC_MISSING", "readonly": "KAFKA_NOT_AUTHORIZED"}.items():
        with pytest.raises(MissingError, match=code):
            book(fixed=name).learn()


def test_topics_that_the_pipeline_reads_or_quarantines_into_cannot_be_named(tmp_path: Any) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text("""
name: orders
source: {type: kafka, brokers: "localhost:9092", pattern: "in-.*"}
decode: {format: json, schema: "id BIGINT, t STRING"}
quarantine: {topic: bad}
sinks:
  - {name: out, type: kafka, topic: {expr: t}, topics_allowed: [".*"], max_topics: 5}
  - {name: there, type: kafka, topic: {expr: t}, brokers: "elsewhere:9092"}
checkpoint: checkpoints/orders
""")
    here, there = build_targets(load(file), KafkaSettings("localhost:9092")).sinks
    chosen = here._topics.chosen  # type: ignore[attr-defined]
    assert chosen.most == 5
    assert [chosen.problem(name) is None for name in ("in-a", "bad", "out")] == [False, False, True]
    assert there._topics.chosen.problem("in-a") is None  # type: ignore[attr-defined]
