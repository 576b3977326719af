"""Runs against a real broker and Spark: sources, starts, data loss, quarantine, tokens, stops."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import NewPartitions
from tests.orders import drain, forget_commit, ids, order
from tests.sessions import LANES_LONG, ON_BOTH, ON_BOTH_LONG
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.engine.listener import BatchDone, Event, Notice
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.model import OffsetRange
from penstock.preflight.options import RunOptions
from penstock.readers import KafkaReader
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


@ON_BOTH
def test_run_twice_second_run_reads_only_what_is_new(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(3)
    file = pipeline_file(topic)
    topics.send(topic, [order(n) for n in range(100)])
    assert drain(file, session).rows_out == 100
    topics.send(topic, [order(n) for n in range(100, 130)])
    assert drain(file, session).rows_in == 30
    assert ids(file) == list(range(130))


@ON_BOTH
def test_run_commit_log_lost_batch_is_not_written_again(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    topics.send(topic, [*(order(n) for n in range(50)), b"bad"])
    file = pipeline_file(topic)
    drain(file, session)
    forget_commit(file)
    events: list[Event] = []
    run(load(file), RunOptions(), events.append, session=session)
    assert [e.metrics.skipped for e in events if isinstance(e, BatchDone)] == [True]
    assert SparkCheckpoint(str(file.parent / "checkpoints/orders")).last_committed() == 0
    assert ids(file) == list(range(50))
    assert read_table(file.parent / "lake/quarantine").num_rows == 1


def test_run_new_partitions_are_read_without_a_restart(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic, trigger={"every": "200 ms"}, source={"options": {"metadata.max.age.ms": "1000"}})
    stop, seen = StopRequest(), threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            if event.metrics.batch_id == 0:
                for future in topics.admin.create_partitions([NewPartitions(topic, 3)]).values():
                    future.result(10)
                topics.wait_for(topic, 3)
                topics.send(topic, [order(1), order(2)], partition=2)
            elif event.metrics.rows_in:
                seen.set()
                stop.ask()

    threading.Timer(60, stop.ask).start()
    run(load(file), RunOptions(), listen, stop, session=session)
    assert seen.is_set()
    assert ids(file) == [0, 1, 2]


@ON_BOTH
def test_run_pattern_finds_topics_that_come_later(session: Any, topics: Any, pipeline_file: Write) -> None:
    first = topics.create(1, prefix="first")
    prefix = f"of-{first}"
    topics.send(first, [order(0)])
    file = pipeline_file("", source={"pattern": f"({first}|{prefix}-.*)"})
    drain(file, session)
    second = topics.create(2, prefix=prefix)
    topics.send(second, [order(1), order(2)])
    drain(file, session)
    assert ids(file) == [0, 1, 2]


def test_run_assign_reads_only_the_partitions_named(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(3)
    topics.send(topic, [order(n) for n in range(9)])
    file = pipeline_file(topic, source={"assign": {topic: [0, 2]}})
    drain(file, session)
    assert ids(file) == [0, 2, 3, 5, 6, 8]


@ON_BOTH_LONG
def test_run_start_offsets_and_time_are_honoured(
    session: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    old, new = datetime.now(UTC) - timedelta(hours=2), datetime.now(UTC)
    topics.send(topic, [order(n) for n in range(5)], timestamp=int(old.timestamp() * 1000))
    topics.send(topic, [order(n) for n in range(5, 8)], timestamp=int(new.timestamp() * 1000))
    by_offset = pipeline_file(topic, folder=tmp_path / "a", source={"start": {topic: {"0": 3}}})
    drain(by_offset, session)
    assert ids(by_offset) == [3, 4, 5, 6, 7]
    when = (new - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    by_time = pipeline_file(topic, folder=tmp_path / "b", source={"start": when})
    drain(by_time, session)
    assert ids(by_time) == [5, 6, 7]
    latest = pipeline_file(topic, folder=tmp_path / "c", source={"start": "latest"})
    assert drain(latest, session).rows_in == 0


def test_run_changed_start_is_said_and_not_used(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    drain(pipeline_file(topic), session)
    topics.send(topic, [order(1)])
    file = pipeline_file(topic, source={"start": "latest"})
    events: list[Event] = []
    run(load(file), RunOptions(), events.append, session=session)
    (notice,) = [e.text for e in events if isinstance(e, Notice)]
    assert notice.startswith("`start: latest` applies to the first run only")
    assert ids(file) == [0, 1]


def test_run_start_beyond_the_log_is_refused(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    with pytest.raises(MissingError) as raised:
        drain(pipeline_file(topic, source={"start": {topic: {"0": 99}}}), session)
    assert raised.value.code == "START_OUT_OF_RANGE"


def test_run_topic_missing_is_refused_with_what_is_there(session: Any, pipeline_file: Write) -> None:
    with pytest.raises(MissingError) as raised:
        drain(pipeline_file("no-such-topic"), session)
    assert raised.value.code == "TOPIC_MISSING"


def trim(topics: Any, topic: str, before: int) -> None:
    for future in topics.admin.delete_records([ClientPartition(topic, 0, before)]).values():
        future.result(10)


def test_run_data_loss_fail_stops_with_the_exact_range(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic)
    topics.send(topic, [order(n) for n in range(10)])
    drain(file, session)
    topics.send(topic, [order(n) for n in range(10, 30)])
    trim(topics, topic, 17)
    with pytest.raises(TerminalError) as raised:
        drain(file, session)
    assert raised.value.code == "DATA_LOSS"
    assert list(raised.value.context) == [f"{topic}[0] 10-17"]
    assert ids(file) == list(range(10))


@ON_BOTH
def test_run_data_loss_record_goes_on_and_writes_the_gap(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic, source={"on_data_loss": "record"})
    topics.send(topic, [order(n) for n in range(10)])
    drain(file, session)
    topics.send(topic, [order(n) for n in range(10, 30)])
    trim(topics, topic, 17)
    drain(file, session)
    assert ids(file) == [*range(10), *range(17, 30)]
    (gap,) = read_table(file.parent / "lake/quarantine_gaps").to_pylist()
    assert (gap["topic"], gap["partition"], gap["from_offset"], gap["to_offset"]) == (topic, 0, 10, 17)


def test_run_aborted_transactions_are_no_loss(session: Any, topics: Any, stack: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    producer = Producer({"bootstrap.servers": stack.bootstrap, "transactional.id": f"tx-{topic}", "log_level": 0})
    producer.init_transactions(30)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        topic_value = str(order(number)).replace("'", '"').encode()
        producer.produce(topic, topic_value, partition=0)
        producer.flush(10)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    file = pipeline_file(topic)
    drain(file, session)
    assert ids(file) == [0, 2]


@ON_BOTH_LONG
def test_run_open_transaction_is_waited_for_not_lost(
    session: Any, topics: Any, stack: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    producer = Producer({"bootstrap.servers": stack.bootstrap, "transactional.id": f"tx-{topic}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, str(order(1)).replace("'", '"').encode(), partition=0)
    producer.flush(10)
    topics.send(topic, [order(2)])
    file = pipeline_file(topic)
    drain(file, session)
    assert ids(file) == [0]
    producer.commit_transaction(30)
    drain(file, session)
    assert ids(file) == [0, 1, 2]


def test_run_compacted_topic_holes_are_no_loss(session: Any, topics: Any, stack: Any, pipeline_file: Write) -> None:
    topic = topics.create(
        1, **{"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    )
    padding = {"customer_id": "c" * 2_000}
    topics.send(topic, [{**order(n), **padding} for n in range(2_000)], key=b"same")
    reader, whole = KafkaReader(KafkaSettings(stack.bootstrap)), [OffsetRange(topic, 0, 0, 2_000)]

    def left() -> int:
        return sum(batch.num_rows for batch in reader.read(whole))

    deadline = time.monotonic() + 60
    while (before := left()) == 2_000 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert before < 2_000, "the broker did not compact the topic"
    file = pipeline_file(topic)
    drain(file, session)
    # The broker may go on compacting meanwhile.
    assert left() <= len(ids(file)) <= before
    assert ids(file)[-1] == 1_999


@LANES_LONG
def test_run_without_quarantine_stops_at_the_bad_record(
    session: Any, topics: Any, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0), b"{broken", order(1)])
    file = pipeline_file(topic, quarantine=None, lane=lane)
    with pytest.raises(TerminalError) as raised:
        drain(file, session)
    assert raised.value.code == "BAD_RECORD"
    assert f"{topic}[0]" in str(raised.value)
    assert "1" in str(raised.value)
    assert not (file.parent / "lake/out").exists() or ids(file) == []


def test_run_quarantine_keeps_bytes_and_coordinates(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    topics.send(topic, [b"\xff\x00{"], key=b"k\xfe", headers=[("h", b"\x01")])
    file = pipeline_file(topic)
    drain(file, session)
    (bad,) = read_table(file.parent / "lake/quarantine").to_pylist()
    assert list(bad) == [
        "pipeline", "batch_id", "stage", "code", "message", "key", "value", "headers",
        "topic", "partition", "offset", "timestamp", "quarantined_at",
    ]  # fmt: skip
    assert (bad["pipeline"], bad["batch_id"], bad["stage"], bad["code"]) == ("orders", 0, "decode", "INVALID_UTF8")
    assert (bad["key"], bad["value"], bad["headers"]) == (b"k\xfe", b"\xff\x00{", [{"key": "h", "value": b"\x01"}])
    assert (bad["topic"], bad["partition"], bad["offset"]) == (topic, 0, 1)


@ON_BOTH_LONG
def test_run_fresh_checkpoint_on_an_old_table_stops_then_resumes_from_it(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(2)
    file = pipeline_file(topic)
    # The bad record leaves a commit of the first query in the quarantine, which has none of the second.
    topics.send(topic, [*(order(n) for n in range(10)), b"bad"])
    drain(file, session)
    shutil.rmtree(file.parent / "checkpoints")
    topics.send(topic, [order(n) for n in range(10, 14)])
    with pytest.raises(TerminalError) as raised:
        drain(file, session)
    assert raised.value.code == "SINK_HOLDS_OTHER_RUN"
    assert "--resume-from-table" in str(raised.value)
    assert drain(file, session, resume_from_table=True).rows_in == 4
    assert ids(file) == list(range(14))
    topics.send(topic, [order(14)])
    drain(file, session)
    assert ids(file) == list(range(15))
    assert read_table(file.parent / "lake/quarantine").num_rows == 1


def test_run_fresh_checkpoint_duplicates_accepted_reads_again(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic)
    topics.send(topic, [order(0)])
    drain(file, session)
    shutil.rmtree(file.parent / "checkpoints")
    drain(file, session, accept_duplicates=True)
    assert ids(file) == [0, 0]


def test_run_lost_metadata_file_stops(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic)
    topics.send(topic, [order(0)])
    drain(file, session)
    (file.parent / "checkpoints/orders/metadata").unlink()
    with pytest.raises(TerminalError) as raised:
        drain(file, session)
    assert raised.value.code == "CHECKPOINT_METADATA_LOST"


@ON_BOTH_LONG
def test_run_checkpoint_with_other_offsets_stops_with_both_sides(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic)
    topics.send(topic, [order(n) for n in range(6)])
    drain(file, session)
    checkpoint = file.parent / "checkpoints/orders"
    for name in ("commits/0", "commits/.0.crc", "offsets/.0.crc"):
        (checkpoint / name).unlink(missing_ok=True)
    offsets = checkpoint / "offsets/0"
    offsets.write_text(offsets.read_text().replace('"0":6', '"0":4'))
    with pytest.raises(TerminalError) as raised:
        drain(file, session)
    assert raised.value.code == "SINK_TOKEN_MISMATCH"
    assert "0-6" in str(raised.value) and "0-4" in str(raised.value)


def test_run_second_run_on_one_checkpoint_refuses(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic, trigger={"every": "200 ms"})
    stop, refused = StopRequest(), []

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            try:
                run(load(file), RunOptions(), session=session)
            except MissingError as error:
                refused.append(error.code)
            stop.ask()

    run(load(file), RunOptions(), listen, stop, session=session)
    assert refused == ["CHECKPOINT_IN_USE"]


@ON_BOTH
def test_run_stop_between_batches_leaves_no_open_batch(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(50)])
    file = pipeline_file(topic, trigger={"every": "100 ms"})
    stop = StopRequest()
    run(load(file), RunOptions(), lambda e: stop.ask() if isinstance(e, BatchDone) else None, stop, session=session)
    checkpoint = SparkCheckpoint(str(file.parent / "checkpoints/orders"))
    assert checkpoint.last_committed() == checkpoint.last_begun() == 0
    assert ids(file) == list(range(50))


def test_run_schema_moved_is_refused_unless_columns_may_be_added(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [{**order(0), "status": "new"}])
    drain(pipeline_file(topic), session)
    wider = {"format": "json", "schema": "order_id BIGINT NOT NULL, status STRING"}
    topics.send(topic, [{**order(1), "status": "paid"}])
    with pytest.raises(MissingError) as raised:
        drain(pipeline_file(topic, decode=wider), session)
    assert raised.value.code == "SINK_SCHEMA_MISMATCH"
    sink = {"name": "out", "type": "delta", "path": "lake/out", "evolve": "add_columns"}
    file = pipeline_file(topic, decode=wider, sinks=[sink])
    drain(file, session)
    rows = read_table(file.parent / "lake/out", ["order_id", "status"]).to_pylist()
    assert sorted(rows, key=lambda r: r["order_id"]) == [
        {"order_id": 0, "status": None},
        {"order_id": 1, "status": "paid"},
    ]


def test_run_two_sinks_one_behind_is_brought_up_alone(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(5)])
    sinks = [{"name": n, "type": "delta", "path": f"lake/{n}"} for n in ("one", "two")]
    file = pipeline_file(topic, sinks=sinks)
    drain(file, session)
    # As after a crash between the two commits: the second sink and Spark have nothing of batch 0.
    shutil.rmtree(file.parent / "lake/two")
    forget_commit(file)
    drain(file, session)
    assert ids(file, "lake/one") == ids(file, "lake/two") == list(range(5))


def test_run_sql_step_takes_the_frame_lane_and_keeps_coordinates(spark: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    topics.send(topic, [*(order(n) for n in range(20)), b"bad", None])
    sql = "SELECT order_id, amount * 2 AS twice FROM input WHERE order_id % 2 = 0"
    file = pipeline_file(topic, transforms=[{"sql": sql}])
    drain(file, spark)
    rows = read_table(file.parent / "lake/out").to_pylist()
    assert sorted(r["order_id"] for r in rows) == list(range(0, 20, 2))
    assert {r["twice"] for r in rows} == {3.0}
    assert all(r["_penstock"]["topic"] == topic for r in rows)
    assert read_table(file.parent / "lake/quarantine").num_rows == 2


def test_run_sql_that_reads_nothing_still_quarantines(spark: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0), b"bad"])
    file = pipeline_file(topic, transforms=[{"sql": "SELECT * FROM input WHERE 1 = 2"}])
    drain(file, spark)
    assert ids(file) == []
    assert read_table(file.parent / "lake/quarantine").num_rows == 1


def test_run_few_offsets_wait_until_there_are_enough(spark: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(5)])
    source = {"min_offsets": 5, "max_delay": "5 minutes"}
    file = pipeline_file(topic, source=source, trigger={"every": "100 ms"})
    stop = StopRequest()
    batches: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            batches.append(event.metrics.rows_in)
            if len(batches) == 1:
                topics.send(topic, [order(5), order(6)])
                threading.Timer(1, lambda: topics.send(topic, [order(n) for n in range(7, 11)])).start()
            else:
                stop.ask()

    threading.Timer(60, stop.ask).start()
    run(load(file), RunOptions(), listen, stop, session=spark)
    # Without the least, the two would have gone in a batch of their own.
    assert batches == [5, 6]
