"""Pipelines over a real registry, fed by Confluent's own serializers: schemas that change, mix, break and go away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.committed import committed
from tests.orders import drain, forget_commit, rows_of
from tests.producers import RegistryProducer
from tests.sessions import LANES_LONG, ON_BOTH_LONG
from tests.tables import read_table

from penstock.config import InvalidDefinition, load
from penstock.engine.listener import BatchDone, Event, Notice, Retrying
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError
from penstock.ops.plan import plan_run
from penstock.ops.schema import plan_schema_check
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields)}


ID = {"name": "order_id", "type": "long"}
AMOUNT = {"name": "amount", "type": "double"}
CITY = {"name": "city", "type": ["null", "string"], "default": None}
QTY = {"name": "qty", "type": "int", "default": 1}
V1 = record(ID, AMOUNT)
V2 = record(ID, AMOUNT, CITY)
V3 = record(ID, AMOUNT, CITY, QTY)


@pytest.fixture(scope="module")
def producer(topics: Any, registry: Any) -> RegistryProducer:
    return RegistryProducer(topics.brokers, registry.url)


def avro(registry: Any, **more: Any) -> dict[str, Any]:
    return {"format": "avro", "registry": {"url": registry.url}, **more}


def codes_of(file: Path) -> list[str]:
    return sorted(read_table(file.parent / "lake/quarantine").column("code").to_pylist())


@LANES_LONG
def test_three_versions_in_one_batch_are_each_read_by_their_own(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    for number, schema in enumerate((V1, V2, V3, V1)):
        rows = [{"order_id": 4 * n + number, "amount": n / 2, "city": "Bonn", "qty": n} for n in range(5)]
        producer.avro(topic, schema, rows)
    file = pipeline_file(topic, lane=lane, decode=avro(registry), name=f"three-{topic}")
    assert drain(file, session).rows_out == 20
    rows = rows_of(file)
    assert [row["order_id"] for row in rows] == list(range(20))
    assert rows[4] == {"order_id": 4, "amount": 0.5, "city": None, "qty": 1}
    assert rows[5] == {"order_id": 5, "amount": 0.5, "city": "Bonn", "qty": 1}
    assert rows[14] == {"order_id": 14, "amount": 1.5, "city": "Bonn", "qty": 3}


class Follower:
    """A run in a thread, that tests can wait for."""

    def __init__(self, file: Path, session: Any) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._stop = StopRequest()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(file, session))

    def _run(self, file: Path, session: Any) -> None:
        try:
            run(load(file), RunOptions(), self._hear, self._stop, session)
        except BaseException as error:
            self.error = error
        with self._changed:
            self._changed.notify_all()

    def _hear(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.ask()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def until(self, condition: Callable[[list[Event]], bool], seconds: float = 90) -> None:
        with self._changed:
            met = self._changed.wait_for(lambda: self.error is not None or condition(self.events), seconds)
        assert self.error is None, self.error
        assert met, self.events

    def rows(self, count: int) -> None:
        """Wait until that many rows or bad records are committed in all."""

        def reached(events: list[Event]) -> bool:
            done = [e.metrics for e in events if isinstance(e, BatchDone)]
            return sum(m.rows_out + m.quarantined for m in done) >= count

        self.until(reached)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


@LANES_LONG
def test_new_field_appears_as_a_column_without_a_restart_and_a_dropped_one_goes_null(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    sink = {"name": "out", "type": "delta", "path": "lake/out", "evolve": "add_columns"}
    file = pipeline_file(topic, lane=lane, decode=avro(registry), sinks=[sink], trigger=None, name=f"new-{topic}")
    producer.avro(topic, V1, [{"order_id": 0, "amount": 1.0}])
    with Follower(file, session) as running:
        running.rows(1)
        producer.avro(topic, V2, [{"order_id": 1, "amount": 2.0, "city": "Ulm"}])
        running.rows(2)
        producer.avro(topic, record(ID, CITY), [{"order_id": 2, "city": "Kiel"}])
        producer.avro(topic, V1, [{"order_id": 3, "amount": 4.0}])
        running.rows(4)
    assert rows_of(file) == [
        {"order_id": 0, "amount": 1.0, "city": None},
        {"order_id": 1, "amount": 2.0, "city": "Ulm"},
        {"order_id": 2, "amount": None, "city": "Kiel"},
        {"order_id": 3, "amount": 4.0, "city": None},
    ]
    assert any("version 2 is now used: new columns city" in text for text in running.notices)


@LANES_LONG
def test_new_field_stops_a_run_whose_sink_says_fail_before_anything_of_it_is_lost(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic, lane=lane, decode=avro(registry), name=f"fail-{topic}")
    producer.avro(topic, V1, [{"order_id": 0, "amount": 1.0}])
    drain(file, session)
    producer.avro(topic, V2, [{"order_id": 1, "amount": 2.0, "city": "Ulm"}])
    with pytest.raises(MissingError) as stopped:
        drain(file, session)
    assert (stopped.value.code, "lacks city" in stopped.value.summary) == ("SINK_SCHEMA_MISMATCH", True)
    assert [row["order_id"] for row in rows_of(file)] == [0]
    sink = {"name": "out", "type": "delta", "path": "lake/out", "evolve": "add_columns"}
    drain(pipeline_file(topic, lane=lane, decode=avro(registry), sinks=[sink], name=f"fail-{topic}"), session)
    assert [row["city"] for row in rows_of(file)] == [None, "Ulm"]


@ON_BOTH_LONG
def test_incompatible_change_goes_to_quarantine_with_both_types_and_the_stream_goes_on(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic, decode=avro(registry), trigger=None, name=f"broken-{topic}")
    producer.avro(topic, V1, [{"order_id": 0, "amount": 1.0}])
    broken = record(ID, {"name": "amount", "type": "string"})
    with Follower(file, session) as running:
        running.rows(1)
        producer.avro(topic, broken, [{"order_id": 1, "amount": "much"}])
        running.rows(2)
        producer.avro(topic, V1, [{"order_id": 2, "amount": 3.0}])
        running.rows(3)
    assert [row["order_id"] for row in rows_of(file)] == [0, 2]
    bad = read_table(file.parent / "lake/quarantine").to_pylist()
    assert [row["code"] for row in bad] == ["SCHEMA_INCOMPATIBLE"]
    assert all(word in bad[0]["message"] for word in ("amount", "string", "double"))
    counted = [e.metrics.codes for e in running.events if isinstance(e, BatchDone) and e.metrics.codes]
    assert counted == [{"SCHEMA_INCOMPATIBLE": 1}]
    assert any("is not used" in text for text in running.notices)
    # And again from the beginning of a run, whose newest schema the table does not take.
    producer.avro(topic, V1, [{"order_id": 3, "amount": 4.0}])
    producer.avro(topic, broken, [{"order_id": 4, "amount": "much"}])
    with Follower(file, session) as running:
        running.rows(2)
    assert [row["order_id"] for row in rows_of(file)] == [0, 2, 3]
    assert any("still reading with version 1" in text for text in running.notices)


@pytest.mark.long
def test_registry_killed_in_the_middle_costs_no_record_and_quarantines_none(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    decode = avro(registry)
    decode["registry"] |= {"timeout": "1 second", "retries": 1}
    sink = {"name": "out", "type": "delta", "path": "lake/out", "evolve": "add_columns"}
    file = pipeline_file(topic, decode=decode, sinks=[sink], trigger=None, name=f"killed-{topic}")
    producer.avro(topic, V1, [{"order_id": 0, "amount": 1.0}])
    try:
        with Follower(file, session) as running:
            running.rows(1)
            # Made while it is up, sent while it is away: known schemas go on, a new one waits.
            known = _encoded(producer, topic, V1, {"order_id": 1, "amount": 2.0})
            new = _encoded(producer, topic, V2, {"order_id": 2, "amount": 3.0, "city": "Ulm"})
            registry.kill()
            producer.send(topic, known)
            producer.flush()
            running.rows(2)
            producer.send(topic, new)
            producer.flush()
            running.until(lambda events: any(isinstance(event, Retrying) for event in events))
            registry.restart()
            running.rows(3)
    finally:
        registry.restart()
    assert rows_of(file) == [
        {"order_id": 0, "amount": 1.0, "city": None},
        {"order_id": 1, "amount": 2.0, "city": None},
        {"order_id": 2, "amount": 3.0, "city": "Ulm"},
    ]
    assert codes_of(file) == []


def _encoded(producer: RegistryProducer, topic: str, schema: Any, row: Any) -> bytes:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    body = AvroSerializer(producer.client, json.dumps(schema))(row, SerializationContext(topic, MessageField.VALUE))
    assert body is not None
    return body


def test_bad_frames_each_have_their_code_and_their_bytes(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic, other = topics.create(1), topics.create(1)
    good = _encoded(producer, topic, V1, {"order_id": 1, "amount": 2.0})
    foreign = _encoded(producer, other, record({"name": "x", "type": "long"}, name="Other"), {"x": 1})
    bad = {
        "SHORT_MESSAGE": b"\0\1",
        "WRONG_MAGIC": b"\x07" + good[1:],
        "UNKNOWN_SCHEMA_ID": b"\0\x00\x7f\xff\xff" + good[5:],
        "WRONG_SUBJECT": foreign,
        "TRUNCATED": good[:-3],
        "TRAILING_DATA": good + b"\0",
    }
    for value in (good, *bad.values(), good):
        producer.send(topic, value)
    producer.flush()
    file = pipeline_file(topic, decode=avro(registry), name=f"bad-{topic}")
    assert drain(file, session).rows_out == 2
    found = read_table(file.parent / "lake/quarantine").to_pylist()
    assert {row["code"]: row["value"] for row in found} == bad


@LANES_LONG
def test_topics_with_decoders_of_their_own_go_their_routes(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    orders, payments = topics.create(2, prefix="orders"), topics.create(1, prefix="payments")
    producer.avro(orders, V2, [{"order_id": n, "amount": n * 1.0, "city": "Ulm"} for n in range(6)])
    topics.send(payments, [{"order_id": n, "paid": n % 2 == 0} for n in range(6)] + [b"no json"])
    file = pipeline_file(
        orders,
        name=f"routes-{orders}",
        lane=lane,
        source={"topics": [orders, payments]},
        decode={
            "by_topic": {
                orders: avro(registry),
                payments: {"format": "json", "schema": "order_id BIGINT, paid BOOLEAN"},
            }
        },
        quarantine={"table": "lake/quarantine", "topic": topics.create(1, prefix="bad")},
        routes=[
            {"topics": [orders], "transforms": [{"where": "amount > 1"}, {"drop": ["city"]}], "sinks": ["orders"]},
            {
                "topics": [payments],
                "where": "paid",
                "transforms": [{"dedupe": {"keys": ["order_id"]}}],
                "sinks": ["paid"],
            },
            {"topics": [payments], "otherwise": True, "sinks": ["unpaid"]},
        ],
        sinks=[
            {"name": "orders", "type": "delta", "path": "lake/orders"},
            {"name": "paid", "type": "delta", "path": "lake/paid"},
            {"name": "unpaid", "type": "parquet", "path": "lake/unpaid", "coordinates": False},
        ],
    )
    summary = drain(file, session)
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (13, 10, 1)
    assert [row["order_id"] for row in rows_of(file, "lake/orders")] == [2, 3, 4, 5]
    assert "city" not in rows_of(file, "lake/orders")[0]
    assert [row["order_id"] for row in rows_of(file, "lake/paid")] == [0, 2, 4]
    assert codes_of(file) == ["MALFORMED_JSON"]
    import pyarrow.dataset as ds

    unpaid = ds.dataset(file.parent / "lake/unpaid").to_table(use_threads=False).column("order_id").to_pylist()
    assert sorted(unpaid) == [1, 3, 5]
    # The batch again, as after a crash at the worst moment: every sink has it.
    forget_commit(file)
    drain(file, session)
    assert [row["order_id"] for row in rows_of(file, "lake/paid")] == [0, 2, 4]
    assert codes_of(file) == ["MALFORMED_JSON"]


@LANES_LONG
def test_routes_of_one_topic_share_its_records_and_each_record_is_counted_once(
    session: Any, topics: Any, pipeline_file: Write, lane: str
) -> None:
    topic, late = topics.create(2), topics.create(1, prefix="late")
    topics.send(topic, [*({"order_id": n, "paid": [True, False, None][n % 3]} for n in range(12)), b"no json"])
    file = pipeline_file(
        topic,
        name=f"shared-{topic}",
        lane=lane,
        decode={"format": "json", "schema": "order_id BIGINT, paid BOOLEAN"},
        quarantine={"table": "lake/quarantine", "topic": topics.create(1, prefix="bad")},
        routes=[
            {"where": "paid", "transforms": [{"derive": {"copy": "order_id"}}], "sinks": ["paid"]},
            {"where": "order_id > 9", "sinks": ["late"]},
            {"otherwise": True, "sinks": ["others"]},
        ],
        sinks=[
            {"name": "paid", "type": "delta", "path": "lake/paid"},
            {"name": "late", "type": "kafka", "topic": late, "slots": 2},
            {"name": "others", "type": "delta", "path": "lake/others"},
        ],
    )
    summary = drain(file, session)
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (13, 12, 1)
    assert [(row["order_id"], row["copy"]) for row in rows_of(file, "lake/paid")] == [(0, 0), (3, 3), (6, 6), (9, 9)]
    assert sorted(json.loads(m.value())["order_id"] for m in committed(topics.brokers, late)) == [10, 11]
    assert [row["order_id"] for row in rows_of(file, "lake/others")] == [1, 2, 4, 5, 7, 8]
    assert codes_of(file) == ["MALFORMED_JSON"]


@LANES_LONG
def test_keys_become_a_column_and_delete_by_tombstones(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    key = record(ID, name="Key")
    rows = [{"order_id": n, "amount": 1.0} for n in range(3)]
    producer.avro(topic, V1, rows, key, [{"order_id": n} for n in range(3)])
    producer.avro(topic, V1, [None], key, [{"order_id": 1}])
    decode = avro(registry, key=avro(registry))
    sink = {"name": "out", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["order_id"]}
    file = pipeline_file(topic, lane=lane, decode=decode, sinks=[sink], name=f"keys-{topic}")
    drain(file, session)
    assert [(row["order_id"], row["key"]) for row in rows_of(file)] == [(0, {"order_id": 0}), (2, {"order_id": 2})]


def test_json_with_a_registry_takes_the_columns_of_its_schema(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"order_id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["order_id"],
    }
    producer.json(topic, schema, [{"order_id": 1, "tags": ["a"]}, {"order_id": 2}])
    file = pipeline_file(topic, decode={"format": "json", "registry": {"url": registry.url}}, name=f"json-{topic}")
    drain(file, session)
    assert rows_of(file) == [{"order_id": 1, "tags": ["a"]}, {"order_id": 2, "tags": None}]


def test_plan_names_the_schema_and_refuses_a_column_that_it_lacks(
    topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    producer.avro(topic, V1, [{"order_id": 1, "amount": 1.0}])
    file = pipeline_file(topic, decode=avro(registry))
    [flow] = plan_run(load(file)).flows
    assert flow.columns == ("order_id BIGINT", "amount DOUBLE")
    assert flow.schema is not None and flow.schema.startswith(f"{topic}-value version 1")
    file = pipeline_file(topic, decode=avro(registry), transforms=[{"where": "amuont > 1"}])
    with pytest.raises(InvalidDefinition) as refused:
        plan_run(load(file))
    assert 'did you mean "amount"?' in str(refused.value)
    file = pipeline_file(topic, decode=avro(registry, subject="nobody-has-this"))
    with pytest.raises(MissingError) as missing:
        plan_run(load(file))
    assert missing.value.code == "REGISTRY_SUBJECT_MISSING"


def test_schema_check_says_what_would_change_and_what_would_break(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    producer.avro(topic, V1, [{"order_id": 1, "amount": 1.0}])
    sink = {"name": "out", "type": "delta", "path": "lake/out", "evolve": "add_columns"}
    file = pipeline_file(topic, decode=avro(registry), sinks=[sink], name=f"check-{topic}")
    drain(file, session)
    assert not plan_schema_check(load(file)).breaks
    wider, broken = tmp_path / "wider.avsc", tmp_path / "broken.avsc"
    wider.write_text(json.dumps(V2))
    broken.write_text(json.dumps(record(ID, {"name": "amount", "type": "string"})))
    found = plan_schema_check(load(file), wider)
    assert not found.breaks
    assert [f.text for f in found.findings if f.level == "changes"] == ["add column city STRING"]
    found = plan_schema_check(load(file), broken)
    assert {f.about for f in found.findings if f.level == "breaks"} == {
        "sink out",
        f"records of {topic}-value version 1",
    }
    assert all("amount" in f.text for f in found.findings if f.level == "breaks")
    broken.write_text("no schema")
    assert plan_schema_check(load(file), broken).breaks
