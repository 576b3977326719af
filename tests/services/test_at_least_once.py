"""The Kafka sink with `guarantee: at_least_once`: tasks send, and what is run again is sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.committed import committed
from tests.committing import commit
from tests.contract.rows import SCHEMA, START, records, token
from tests.orders import drain, forget_commit, order
from tests.sessions import LANES_LONG
from tests.tables import read_table

from penstock.errors import MissingError, TransientError
from penstock.kafka import KafkaSettings
from penstock.model import Manifest, SlotAttempt
from penstock.sinks.kafka import KafkaAtLeastOnceSink

pytestmark = pytest.mark.services
Write = Callable[..., Path]


@pytest.fixture
def sink(topics: Any) -> KafkaAtLeastOnceSink:
    made = KafkaAtLeastOnceSink(
        "orders", "out", KafkaSettings(topics.brokers), topic=topics.create(1, prefix="alo"), keep_coordinates=True
    )
    made.prepare(SCHEMA)
    return made


def send(sink: KafkaAtLeastOnceSink, rows: pa.RecordBatch) -> Manifest:
    stage = sink.stage(token(0, 0, 3), SlotAttempt(0, "0"), rows.schema)
    assert not stage.write(rows)
    return stage.finish()


def notes(sink: KafkaAtLeastOnceSink) -> list[str]:
    return [json.loads(message.value())["note"] for message in committed(sink.settings.brokers, str(sink.topic))]


def test_records_are_there_with_key_headers_coordinates_and_time_once_the_slot_has_finished(
    sink: KafkaAtLeastOnceSink,
) -> None:
    keyed = records(range(3)).append_column("_penstock_key", pa.array(["a", None, "c"]))
    rows = keyed.append_column("_penstock_header:kind", pa.array(["order", "order", None]))
    manifest = send(sink, rows)
    assert (manifest.sink, manifest.rows, manifest.items) == ("out", 3, ())
    found = committed(sink.settings.brokers, str(sink.topic))
    assert [m.key() for m in found] == [b"a", None, b"c"]
    assert [m.headers() for m in found] == [[("kind", b"order")], [("kind", b"order")], None]
    values = [json.loads(m.value()) for m in found]
    assert [value["note"] for value in values] == ["note 0", "note 1", "note 2"]
    assert [value["_penstock"]["offset"] for value in values] == [0, 1, 2]
    assert found[0].timestamp()[1] == int(START.timestamp() * 1000)
    commit(sink, token(0, 0, 3), [manifest])
    sink.discard(token(0, 0, 3), [manifest])
    assert (len(notes(sink)), sink.position()) == (3, None)


def test_batch_that_is_run_again_is_sent_again(sink: KafkaAtLeastOnceSink) -> None:
    for _ in range(2):
        commit(sink, token(0, 0, 3), [send(sink, records(range(3)))])
    assert notes(sink) == ["note 0", "note 1", "note 2"] * 2


def test_attempt_that_is_given_up_ends_at_once_and_may_have_sent(sink: KafkaAtLeastOnceSink) -> None:
    stage = sink.stage(token(0, 0, 3), SlotAttempt(0, "0"), SCHEMA)
    stage.write(records(range(3)))
    stage.abort()
    stage.abort()
    assert len(notes(sink)) in (0, 3)


def test_records_that_are_not_stored_in_time_fail_the_slot(topics: Any) -> None:
    options = {"message.timeout.ms": "1", "linger.ms": "0"}  # less than it takes to connect
    settings = KafkaSettings(topics.brokers, options)
    late = KafkaAtLeastOnceSink("orders", "out", settings, topic=topics.create(1, prefix="alo"))
    late.prepare(SCHEMA)
    stage = late.stage(token(0, 0, 3), SlotAttempt(0, "0"), SCHEMA)
    with pytest.raises(TransientError, match="BROKER_UNREACHABLE"):
        stage.write(records(range(3)))
        stage.finish()
    stage.abort()


def test_topic_that_is_not_there_is_refused_or_created(topics: Any) -> None:
    given: dict[str, Any] = {"settings": KafkaSettings(topics.brokers), "topic": f"{topics.create(1)}-none"}
    with pytest.raises(MissingError, match="SINK_TOPIC_MISSING"):
        KafkaAtLeastOnceSink("orders", "out", **given).check(SCHEMA)
    with pytest.raises(MissingError, match="SINK_TOPIC_MISSING"):
        KafkaAtLeastOnceSink("orders", "out", **given).prepare(SCHEMA)
    creating = KafkaAtLeastOnceSink("orders", "out", **given, create=True)
    creating.check(SCHEMA)
    creating.prepare(SCHEMA)
    send(creating, records(range(2)))
    assert notes(creating) == ["note 0", "note 1"]


@LANES_LONG
def test_run_routes_by_row_quarantines_what_no_topic_takes_and_sends_a_lost_batch_again(
    session: Any, topics: Any, pipeline_file: Write, lane: str
) -> None:
    topic, clean = topics.create(1), topics.create(2, prefix="clean")
    file = pipeline_file(
        topic,
        name=f"orders-{topic}",
        lane=lane,
        quarantine={"table": "lake/quarantine"},
        sinks=[
            {
                "name": "out",
                "type": "kafka",
                "topic": {"expr": f"if(order_id = 2, 'a b', '{clean}')"},
                "key": "order_id",
                "guarantee": "at_least_once",
            }
        ],
    )
    topics.send(topic, [order(n) for n in range(4)])
    drain(file, session)
    forget_commit(file)
    drain(file, session)
    found = sorted(json.loads(message.value())["order_id"] for message in committed(topics.brokers, clean))
    assert found == [0, 0, 1, 1, 3, 3]
    [refused] = read_table(file.parent / "lake/quarantine").to_pylist()
    assert (refused["code"], refused["offset"]) == ("SINK_TOPIC_INVALID", 2)
