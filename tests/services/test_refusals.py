"""What only a real broker, database, registry or Spark can bring about: each refusal by its code, with both sides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from deltalake import DeltaTable
from pydantic import TypeAdapter
from pyiceberg.catalog.sql import SqlCatalog
from tests.contract.rows import SCHEMA
from tests.orders import drain, order

from penstock.assembly.build import build
from penstock.assembly.starting import pinned_slots
from penstock.assembly.tables import Tables
from penstock.assembly.trial_registry import build_offline
from penstock.config import load
from penstock.config.cases import Case
from penstock.config.tables import LookupConfig
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import BatchToken, OffsetRange, SlotAttempt
from penstock.ops.cases.run import see
from penstock.ops.demo import _send
from penstock.ops.replay.folder import ReplayRequest
from penstock.ops.replay.replay import plan_replay
from penstock.readers import KafkaReader
from penstock.registry import RegistryClient, RegistrySettings
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.markers import KEY
from penstock.sinks.postgres import PostgresSink
from penstock.spark.session import put_settings
from penstock.tables.postgres import PostgresLookup

pytestmark = pytest.mark.services
Write = Callable[..., Path]
_numbers = itertools.count()


def kafka_sink(topics: Any, **settings: Any) -> KafkaSink:
    given = {"topic": topics.create(1, prefix="out"), "slots": 1, **settings}
    return KafkaSink(f"refusals{next(_numbers)}", "out", KafkaSettings(topics.brokers), **given)


def test_reader_to_which_nothing_comes_gives_up_after_its_patience(topics: Any) -> None:
    topic = topics.create()
    topics.send(topic, [b"x"])
    reader = KafkaReader(KafkaSettings(topics.brokers), patience=2)
    with pytest.raises(TransientError) as raised:
        list(reader.read([OffsetRange(topic, 0, 0, 5)]))
    assert (raised.value.code, raised.value.context["waiting for"]) == ("BROKER_SILENT", f"{topic}[0] up to 5")


def test_topic_without_enough_leaders_is_not_ready(topics: Any) -> None:
    topic = topics.create(1)
    with pytest.raises(TransientError) as raised:
        TopicAdmin(KafkaSettings(topics.brokers), timeout=2)._wait_for_leaders(topic, 3)
    assert raised.value.code == "TOPIC_NOT_READY"
    assert raised.value.context == {"partitions wanted": "3", "with a leader": "1"}


def test_record_of_somebody_else_in_the_marker_topic_is_told_with_its_place(topics: Any) -> None:
    sink = kafka_sink(topics)
    sink.prepare(SCHEMA)
    sink.pin(1)
    topics.send(sink.markers, [b"hello"], partition=0, key=KEY)
    again = KafkaSink(sink.pipeline, "out", sink.settings, topic=sink.topic, slots=1)
    with pytest.raises(TerminalError) as raised:
        again.position()
    assert raised.value.code == "SINK_MARKER_UNREADABLE"
    assert raised.value.context["record"].startswith(f"{sink.markers}[0] offset ")


def test_slot_whose_marker_partition_is_gone_is_told_with_the_topic(topics: Any) -> None:
    sink = kafka_sink(topics, slots=2)
    sink.prepare(SCHEMA)
    assert sink.pin(1) == 2
    topics.create_again(sink.markers, 1)
    batch = BatchToken(sink.pipeline, "q", 0, (OffsetRange("t", 0, 0, 1),))
    with pytest.raises(MissingError) as raised:
        sink.stage(batch, SlotAttempt(1, "0"), SCHEMA)
    assert (raised.value.code, raised.value.context) == ("SINK_MARKERS_GONE", {"topic": sink.markers})
    assert "slot 1" in raised.value.summary


def test_slots_of_several_kafka_sinks_are_one_number_and_every_row_says_where_it_is_from(
    topics: Any, pipeline_file: Write
) -> None:
    name, topic = f"slots-{next(_numbers)}", topics.create(1)
    sinks = [{"name": f"s{n}", "type": "kafka", "topic": topics.create(1, prefix="out")} for n in range(2)]

    def pin(schema: pa.Schema, *slots: int | None) -> int | None:
        """What a start does with a file that asks for these slots."""
        asked = [sink | ({"slots": n} if n else {}) for sink, n in zip(sinks, slots, strict=True)]
        pipeline = build(load(pipeline_file(topic, name=name, sinks=asked)))
        for sink in pipeline.sinks:
            sink.prepare(SCHEMA)
        return pinned_slots(pipeline, 1, [schema], lambda text: None)

    with pytest.raises(MissingError) as raised:
        pin(pa.schema([("order_id", pa.int64())]), 2, None)
    assert raised.value.code == "SINK_NEEDS_COORDINATES"
    assert pin(SCHEMA, 2, None) == 2
    with pytest.raises(MissingError) as raised:
        pin(SCHEMA, 3, None)
    assert (raised.value.code, raised.value.context) == ("SLOTS_DISAGREE", {"slots": "3 and 2"})


def test_demo_whose_events_are_refused_says_how_many_and_why(topics: Any) -> None:
    admin = AdminClient({"bootstrap.servers": topics.brokers, "log_level": 0})
    # A test before this one may have left the demo's topic.
    topics.delete("orders")

    def shrink(doing: str, done: int, total: int) -> None:
        if done < total:
            entry = ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(30)

    try:
        with pytest.raises(TerminalError) as raised:
            _send(topics.brokers, 20_000, shrink)
    finally:
        admin.delete_topics(["orders"])["orders"].result(30)
    assert raised.value.code == "DEMO_NOT_SENT"
    [(why, count)] = raised.value.context.items()
    assert "MSG_SIZE_TOO_LARGE" in why and int(count) > 0


def test_replay_of_no_record_is_refused_with_what_the_log_holds(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(3)])
    into = ReplayRequest("0=3", "latest", None, (), ("out=lake/again",))
    with pytest.raises(MissingError) as refused:
        plan_replay(load(pipeline_file(topic)), into)
    assert refused.value.code == "REPLAY_EMPTY"
    assert refused.value.context[f"{topic}[0]"] == "the log holds 0-3"


def test_database_that_speaks_no_tls_is_told_where_it_is_asked_for(postgres: Any) -> None:
    url = f"{postgres.url()}?sslmode=require"
    with pytest.raises(MissingError) as sink:
        PostgresSink("orders", "out", url, "out", create=True).prepare(SCHEMA)
    assert sink.value.code == "SINK_TLS"
    with pytest.raises(MissingError) as table:
        PostgresLookup("seen", url, "seen").schema()
    assert table.value.code == "TABLE_TLS"
    for error in (sink.value, table.value):
        assert "does not support SSL" in error.summary and "word" not in str(error)


PROTO = 'syntax = "proto3"; message Order { int64 id = 1; }'


def test_subject_of_another_format_is_refused_with_both(registry: Any, pipeline_file: Write) -> None:
    subject = registry.subject()
    RegistryClient(RegistrySettings(registry.url)).register(subject, "PROTOBUF", PROTO)
    decode = {"format": "avro", "subject": subject, "registry": {"url": registry.url}}
    with pytest.raises(MissingError) as refused:
        build(load(pipeline_file("orders", decode=decode)))
    assert refused.value.code == "SCHEMA_OF_OTHER_FORMAT"
    assert refused.value.context == {"the file says": "avro", "the registry has": "protobuf"}


def test_setting_that_spark_refuses_for_a_session_is_told(spark: Any) -> None:
    session = spark.newSession()
    put_settings(session, {"spark.sql.shuffle.partitions": "3"})
    with pytest.raises(MissingError) as refused:
        put_settings(session, {"spark.sql.shuffle.partitions": "many"})
    assert refused.value.code == "SPARK_SETTING_REFUSED"
    assert "spark.sql.shuffle.partitions" in refused.value.summary
    assert refused.value.context["cause"]


def test_table_of_a_second_warehouse_that_spark_would_join_is_refused(spark: Any, tmp_path: Path) -> None:
    session, views = spark.newSession(), {}
    for place in ("first", "second"):
        warehouse = tmp_path / place
        warehouse.mkdir()
        config = {"type": "iceberg", "table": "shop.customers", "warehouse": str(warehouse), "memory": 1}
        lookup: LookupConfig = TypeAdapter(LookupConfig).validate_python(config)
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
        catalog.create_namespace("shop")
        rows = pa.table({"id": [1, 2]})
        catalog.create_table("shop.customers", rows.schema).append(rows)
        views[place] = Tables({"customers": lookup})
        views[place].current({"customers": ["id"]}, 0.0)
    views["first"].view(session, "customers")
    assert session.table("customers").count() == 2
    with pytest.raises(MissingError) as refused:
        views["second"].view(session, "customers")
    assert refused.value.code == "TABLE_CATALOG_TAKEN"
    assert refused.value.context == {"table": str(tmp_path / "second"), "in use": f"file://{tmp_path}/first"}


KEEPS = """\
from pyspark.sql.streaming import StatefulProcessor


class Keeps(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "n BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            yield frame[["customer_id"]]

    def close(self):
        pass
"""


def test_case_in_which_time_passes_needs_a_watermark(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "keeping_steps.py").write_text(KEEPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    step = {"class": "keeping_steps.Keeps", "keys": ["customer_id"], "schema": "customer_id STRING"}
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "127.0.0.1:9", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "order_id BIGINT, customer_id STRING"},
        "transforms": [{"stateful": {**step, "time": "processing", "ttl": "7 days"}}],
        "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
        "checkpoint": "checkpoint",
    }
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(body))
    pipeline, given = build_offline(load(tmp_path / "orders.yaml"), {})
    case = Case.model_validate({"name": "a", "batches": [{"advance": "1 hour"}]})
    with pytest.raises(PenstockError) as raised:
        see(pipeline, case, lambda: spark, given)
    assert raised.value.code == "TRIAL_WITHOUT_TIME"


def test_quarantine_that_went_back_beside_a_kafka_sink_cannot_be_recovered(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic, out = topics.create(1), topics.create(1, prefix="out")
    name = f"lost-{next(_numbers)}-{topic}"
    file = pipeline_file(topic, name=name, sinks=[{"name": "out", "type": "kafka", "topic": out, "slots": 1}])
    topics.send(topic, [order(0), b"bad"])
    drain(file, session)
    topics.send(topic, [order(1), b"worse"])
    drain(file, session)
    DeltaTable(file.parent / "lake/quarantine").restore(0)
    with pytest.raises(TerminalError) as back:
        drain(file, session)
    assert back.value.code == "TARGET_WENT_BACK"
    with pytest.raises(MissingError) as refused:
        drain(file, session, catch_up=True)
    assert refused.value.code == "QUARANTINE_NOT_RECOVERABLE"
    assert "sink out" in refused.value.summary
