"""The Kafka sink against a real broker, read back by a plain consumer of committed records."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.committed import committed
from tests.committing import commit, holds, last_commit
from tests.contract.kit_kafka import LosingAnswer
from tests.contract.rows import SCHEMA, START, Killed, records, token
from tests.transactions import timeout_of

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import (
    COORDINATES_FIELD,
    BatchToken,
    Manifest,
    OffsetRange,
    Position,
    Rule,
    SlotAttempt,
    TopicPartition,
)
from penstock.sinks.commit import move
from penstock.sinks.kafka import ChosenTopics, KafkaSink
from penstock.sinks.kafka.markers import change_needed, order_of_change
from penstock.sinks.kafka.stage import KafkaStage, SlotOutcome
from penstock.sinks.kafka.transaction import SlotTransaction

pytestmark = pytest.mark.services

_numbers = itertools.count()
QUERY = "5f0c7f3e-0000"


@pytest.fixture
def make(topics: Any) -> Callable[..., KafkaSink]:
    """Makes sinks of one pipeline on one topic."""
    pipeline, topic = f"orders{next(_numbers)}", topics.create(3, prefix="out")

    def sink(**settings: Any) -> KafkaSink:
        given = {"topic": topic, "slots": 1, **settings}
        return KafkaSink(pipeline, "out", KafkaSettings(topics.brokers), **given)

    return sink


def ready(sink: KafkaSink, schema: pa.Schema = SCHEMA) -> KafkaSink:
    sink.prepare(schema)
    sink.pin(2)
    return sink


def ready_again(make: Callable[..., KafkaSink], patience: float = 120.0) -> KafkaSink:
    """A sink after the broker stood still: it answers, is fenced by its controller, and let back in after a while."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return ready(make())
        except TransientError:
            if time.monotonic() > deadline:
                raise


def begin(sink: KafkaSink, batch: BatchToken, slot: int = 0) -> KafkaStage:
    return sink.stage(batch, SlotAttempt(slot, "0"), SCHEMA)


def land(sink: KafkaSink, batch: BatchToken, rows: pa.RecordBatch | None = None) -> list[Manifest]:
    """A batch through every slot; a slot has the rows whose offset is its number, counted round."""
    slots = sink.pin(1)
    first, last = batch.ranges[0].start, batch.ranges[0].end
    manifests = []
    for slot in range(slots):
        stage = begin(sink, batch, slot)
        assert not stage.write(records(n for n in range(first, last) if n % slots == slot) if rows is None else rows)
        manifests.append(stage.finish())
    commit(sink, batch, manifests)
    return manifests


def messages(sink: KafkaSink, topic: str | None = None) -> list[Any]:
    return committed(sink.settings.brokers, topic or sink.topic or "")


def ids(sink: KafkaSink) -> list[int]:
    return sorted(json.loads(message.value())["id"] for message in messages(sink))


def flush(stage: KafkaStage) -> None:
    """Until what was written is at the broker, so that a death leaves an open transaction there."""
    assert stage._transaction is not None
    assert stage._transaction._producer.flush(30) == 0


def rows_of(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    places = [{"topic": "orders", "partition": 0, "offset": n, "timestamp": START} for n in range(count)]
    own = {"id": pa.array(range(count), pa.int64()), "_penstock": pa.array(places, COORDINATES_FIELD.type)}
    return pa.RecordBatch.from_pydict({**own, **columns})


def test_rows_with_key_headers_partition_and_value_become_such_records(make: Callable[..., KafkaSink]) -> None:
    rows = rows_of(
        {
            "_penstock_key": pa.array(["a", None, "ü"]),
            "_penstock_value": pa.array([b"\xff\x00", None, b""], pa.binary()),
            "_penstock_partition": pa.array([2, 0, 2], pa.int32()),
            "_penstock_header:kind": pa.array(["order", None, "order"]),
            "_penstock_header:trace": pa.array([b"\x01", b"\x02", None], pa.binary()),
        }
    )
    sink = ready(make())
    land(sink, token(0, 0, 3), rows)
    found = {message.value(): message for message in messages(sink)}
    assert [found[value].partition() for value in (b"\xff\x00", None, b"")] == [2, 0, 2]
    assert [found[value].key() for value in (b"\xff\x00", None, b"")] == [b"a", None, "ü".encode()]
    assert found[b"\xff\x00"].headers() == [("kind", b"order"), ("trace", b"\x01")]
    assert found[None].headers() == [("trace", b"\x02")]
    assert found[b""].headers() == [("kind", b"order")]
    assert found[None].timestamp()[1] == int(START.timestamp() * 1000)


def test_rows_that_name_their_topic_go_there_and_others_are_refused(
    make: Callable[..., KafkaSink], topics: Any
) -> None:
    other = topics.create(1, prefix="routed")
    sink = ready(make())
    names = [other, None, sink.topic, "no spaces allowed", other]
    stage = begin(sink, token(0, 0, 5))
    refused = stage.write(rows_of({"_penstock_topic": pa.array(names)}))
    stage.finish()
    assert [(r.record.start, r.code) for r in refused] == [(1, "SINK_TOPIC_NULL"), (3, "SINK_TOPIC_INVALID")]
    assert [json.loads(m.value())["id"] for m in messages(sink, other)] == [0, 4]
    assert ids(sink) == [2]


def test_row_for_a_topic_that_is_not_there_is_refused_and_the_others_are_written(
    make: Callable[..., KafkaSink], topics: Any
) -> None:
    sink = ready(make())
    stage = begin(sink, token(0, 0, 4))
    names = [sink.topic, "never-made", sink.markers, "__consumer_offsets"]
    refused = stage.write(rows_of({"_penstock_topic": pa.array(names)}))
    stage.finish()
    assert [(r.record.start, r.code) for r in refused] == [
        (1, "SINK_TOPIC_MISSING"),
        (2, "SINK_TOPIC_NOT_ALLOWED"),
        (3, "SINK_TOPIC_NOT_ALLOWED"),
    ]
    assert ids(sink) == [0]
    assert "never-made" not in TopicAdmin(sink.settings).names()
    # It is looked for again by the next stage.
    made = topics.create(1, prefix="routed")
    stage = begin(sink, token(1, 4, 5))
    assert not stage.write(rows_of({"_penstock_topic": pa.array([made])}))
    stage.abort()


def test_rows_create_no_more_topics_than_may_be_there(make: Callable[..., KafkaSink]) -> None:
    prefix = f"bounded-{next(_numbers)}-{time.time_ns()}"
    sink = ready(make(create=True, chosen=ChosenTopics((f"{prefix}-.*",), most=2)))
    stage = begin(sink, token(0, 0, 5))
    names = [*(f"{prefix}-{n}" for n in range(4)), "other"]
    refused = stage.write(rows_of({"_penstock_topic": pa.array(names)}))
    stage.finish()
    assert [r.code for r in refused] == ["SINK_TOPIC_LIMIT"] * 2 + ["SINK_TOPIC_NOT_ALLOWED"]
    made = [name for name in TopicAdmin(sink.settings).names() if name.startswith(prefix)]
    assert made == names[:2]


def test_row_for_a_new_topic_with_create_makes_it(make: Callable[..., KafkaSink]) -> None:
    name = f"made-{next(_numbers)}-{time.time_ns()}"
    sink = ready(make(create=True))
    land(sink, token(0, 0, 1), rows_of({"_penstock_topic": pa.array([name])}))
    assert len(messages(sink, name)) == 1


def test_record_over_the_topics_limit_is_refused_and_its_neighbours_land(topics: Any) -> None:
    small = topics.create(1, prefix="small", **{"max.message.bytes": "5000"})
    sink = ready(KafkaSink(f"orders{next(_numbers)}", "out", KafkaSettings(topics.brokers), topic=small, slots=1))
    # Random bytes do not compress: several of these in one batch would be over the limit too.
    values = [b"a" * 10, b"b" * 5000, b"c" + os.urandom(4899), *(b"d" + os.urandom(899) for _ in range(50))]
    stage = begin(sink, token(0, 0, len(values)))
    refused = stage.write(rows_of({"_penstock_value": pa.array(values)}))
    stage.finish()
    assert [(r.record.start, r.code) for r in refused] == [(1, "SINK_RECORD_TOO_LARGE")]
    assert "5000" in refused[0].message
    assert [m.value() for m in messages(sink)] == [v for v in values if v[:1] != b"b"]


def test_record_larger_than_the_clients_default_lands_where_the_topic_takes_it(topics: Any) -> None:
    large = topics.create(1, prefix="large", **{"max.message.bytes": "4000000"})
    sink = ready(KafkaSink(f"orders{next(_numbers)}", "out", KafkaSettings(topics.brokers), topic=large, slots=1))
    land(sink, token(0, 0, 1), rows_of({"_penstock_value": pa.array([b"x" * 3_000_000])}))
    assert [len(m.value()) for m in messages(sink)] == [3_000_000]


def test_partition_that_the_topic_does_not_have_is_refused(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    stage = begin(sink, token(0, 0, 4))
    refused = stage.write(rows_of({"_penstock_partition": pa.array([0, 3, -1, None], pa.int32())}))
    stage.finish()
    assert [(r.record.start, r.code) for r in refused] == [
        (1, "SINK_PARTITION_INVALID"),
        (2, "SINK_PARTITION_INVALID"),
    ]
    assert ids(sink) == [0, 3]


def test_rows_of_one_slot_keep_their_order_in_each_partition(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    stage = begin(sink, token(0, 0, 30_000))
    for low in range(0, 30_000, 6000):
        keys = pa.array([str(n % 7) for n in range(low, low + 6000)])
        stage.write(records(range(low, low + 6000)).append_column("_penstock_key", keys))
    stage.finish()
    found = messages(sink)
    assert len(found) == 30_000
    for partition in range(3):
        seen = [json.loads(m.value())["id"] for m in found if m.partition() == partition]
        assert seen == sorted(seen)
    assert len({(m.key(), m.partition()) for m in found}) == 7


def test_stalled_writer_of_a_slot_cannot_commit_after_its_successor_began(make: Callable[..., KafkaSink]) -> None:
    stalled = begin(ready(make()), token(0, 0, 3))
    stalled.write(records(range(3)))
    flush(stalled)
    sink = make()
    sink._slots = 1
    successor = begin(sink, token(0, 0, 3))
    with pytest.raises(TransientError) as lost:
        stalled.finish()
    assert lost.value.code in ("SINK_TRANSACTION_LOST", "SINK_MARKER_MOVED")
    successor.write(records(range(3)))
    successor.finish()
    assert ids(sink) == [0, 1, 2]


def test_stalled_writer_that_goes_on_writing_is_told_that_its_transaction_is_lost(
    make: Callable[..., KafkaSink],
) -> None:
    stalled = begin(ready(make()), token(0, 0, 6))
    sink = make()
    sink._slots = 1
    successor = begin(sink, token(0, 0, 6))
    stalled.write(records(range(3)))
    deadline = time.monotonic() + 60
    with pytest.raises(TransientError) as lost:
        while time.monotonic() < deadline:  # the client hears that it is fenced in a thread of its own
            stalled.write(records(range(3, 6)))
            time.sleep(0.01)
    assert lost.value.code == "SINK_TRANSACTION_LOST"
    stalled.abort()
    successor.abort()
    assert ids(sink) == []


def test_open_transaction_of_a_dead_run_is_ended_by_prepare(make: Callable[..., KafkaSink]) -> None:
    dead = begin(ready(make()), token(0, 0, 3))
    dead.write(rows_of({"_penstock_partition": pa.array([0, 0], pa.int32())}))
    flush(dead)
    sink = make()
    behind = Producer({"bootstrap.servers": sink.settings.brokers, "log_level": 0})
    behind.produce(sink.topic, b'{"id": 99}', partition=0)
    assert behind.flush(30) == 0
    assert ids(sink) == []  # the open transaction holds readers up
    sink.prepare(SCHEMA)
    assert ids(sink) == [99]


def test_slot_that_has_the_batch_is_drained_with_the_same_refusals(make: Callable[..., KafkaSink]) -> None:
    rows = rows_of({"_penstock_partition": pa.array([0, 9], pa.int32())})
    refused, outcomes = [], []
    for _ in range(2):
        stage = begin(ready(make()), token(0, 0, 2))
        refused.append(stage.write(rows))
        outcomes.append(stage.finish().items[0])
    assert outcomes == [SlotOutcome.COMMITTED, SlotOutcome.DRAINED]
    assert refused[0] == refused[1] != []
    assert ids(make()) == [0]


@pytest.mark.parametrize("landed", [True, False])
def test_commit_without_an_answer_is_settled_by_the_marker(make: Callable[..., KafkaSink], landed: bool) -> None:
    sink = ready(make())
    stage = begin(sink, token(0, 0, 3))
    stage.abort()
    stage._transaction = LosingAnswer(sink._slot_id(0), landed=landed)
    stage._transaction.begin()
    stage.write(records(range(3)))
    if landed:
        assert stage.finish().items == (SlotOutcome.COMMITTED,)
    else:
        with pytest.raises(TransientError):
            stage.finish()
        assert ids(sink) == []
        assert land(sink, token(0, 0, 3))[0].items == (SlotOutcome.COMMITTED,)
    assert ids(sink) == [0, 1, 2]


def test_marker_that_lands_elsewhere_than_its_partition_ended_is_not_committed(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    stage = begin(sink, token(0, 0, 3))
    stage.write(records(range(3)))
    intruder = Producer({"bootstrap.servers": sink.settings.brokers, "log_level": 0})
    intruder.produce(sink.markers, b"{}", b"someone", partition=0)
    assert intruder.flush(30) == 0
    with pytest.raises(TransientError, match="SINK_MARKER_MOVED"):
        stage.finish()
    assert ids(sink) == []
    land(sink, token(0, 0, 3))
    assert ids(sink) == [0, 1, 2]


def test_batch_that_does_not_start_where_the_slot_ends_stops(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    land(sink, token(4, 0, 3))
    for batch, code in (
        (token(6, 4, 5), "TARGET_WENT_BACK"),
        (token(0, 4, 5, query="another"), "TARGET_WENT_BACK"),
        (token(0, 1, 5, query="another"), "FENCED"),
        (token(3, 0, 5), "CHECKPOINT_WENT_BACK"),
        (token(4, 0, 2), "SINK_TOKEN_MISMATCH"),
    ):
        with pytest.raises(TerminalError) as stopped:
            begin(sink, batch)
        assert stopped.value.code == code
    land(sink, token(0, 3, 5, query="another"))
    assert ids(sink) == [0, 1, 2, 3, 4]


def test_position_names_partitions_that_later_batches_do_not(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    both = BatchToken("orders", QUERY, 0, (OffsetRange("orders", 0, 0, 3), OffsetRange("orders", 1, 0, 7)))
    land(sink, both)
    land(sink, token(1, 3, 5, query=QUERY))
    held = ready(make()).position()
    assert held is not None
    assert held.next == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 7}
    assert held.number == 2
    with pytest.raises(TerminalError, match="FENCED"):
        begin(sink, BatchToken("orders", "another", 0, (OffsetRange("orders", 1, 0, 7),)))


def test_transaction_has_the_timeout_of_its_sink(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(transaction_timeout=timedelta(seconds=7)))
    stage = begin(sink, token(0, 0, 3))
    stage.write(records(range(3)))
    flush(stage)
    assert timeout_of(sink.settings.brokers, sink._slot_id(0).transactional_id) == timedelta(seconds=7)
    stage.abort()


@pytest.mark.long  # the broker looks for what has timed out every ten seconds
def test_transaction_that_outlives_its_timeout_costs_a_retry_and_no_data(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(transaction_timeout=timedelta(seconds=1)))
    stage = begin(sink, token(0, 0, 3))
    stage.write(rows_of({"_penstock_partition": pa.array([0, 0], pa.int32())}))
    flush(stage)
    behind = Producer({"bootstrap.servers": sink.settings.brokers, "log_level": 0})
    behind.produce(sink.topic, b'{"id": 99}', partition=0)
    assert behind.flush(30) == 0
    deadline = time.monotonic() + 60
    while ids(sink) != [99]:  # the brokers have then ended the transaction
        assert time.monotonic() < deadline
    with pytest.raises(TransientError):
        stage.finish()
    land(sink, token(0, 0, 2))
    assert ids(sink) == [0, 1, 99]


def test_no_thread_is_left_when_stages_are_done(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    land(sink, token(0, 0, 3))
    before = psutil.Process().num_threads()
    for number in range(1, 6):
        land(sink, token(number, number * 3, number * 3 + 3))
    begin(sink, token(6, 18, 20)).abort()
    assert psutil.Process().num_threads() <= before


@pytest.mark.long
def test_abort_while_the_broker_does_not_answer_ends_and_leaves_no_thread(
    make: Callable[..., KafkaSink], stack: Any
) -> None:
    sink = ready(make())
    land(sink, token(0, 0, 3))
    before = psutil.Process().num_threads()
    stage = begin(sink, token(1, 3, 6))
    stage.write(records(range(3, 6)))
    flush(stage)
    broker = psutil.Process(stack.nodes[0].pid)
    broker.suspend()
    try:
        began = time.monotonic()
        stage.abort()
        assert time.monotonic() - began < 15
        assert psutil.Process().num_threads() <= before
    finally:
        broker.resume()
        again = ready_again(make)
    land(again, token(1, 3, 6))
    assert ids(sink) == list(range(6))


def test_marker_topic_is_compacted_and_the_only_one_made(make: Callable[..., KafkaSink]) -> None:
    sink = make(slots=None)
    admin = TopicAdmin(sink.settings)
    before = set(admin.names())
    sink.check(SCHEMA)
    assert set(admin.names()) == before
    sink.prepare(SCHEMA)
    assert sink.pin(2) == 2
    assert set(admin.names()) - before == {sink.markers}
    facts = admin.describe([sink.markers])[sink.markers]
    assert (facts.partitions, facts.cleanup_policy) == (2, "compact")
    assert make(slots=None).pin(7) == 2
    assert make(slots=1).pin(7) == 1


def test_marker_topic_whose_records_expire_is_refused(make: Callable[..., KafkaSink]) -> None:
    sink = make()
    TopicAdmin(sink.settings).create(sink.markers, 1, 1, {"cleanup.policy": "compact,delete"})
    with pytest.raises(MissingError) as refused:
        sink.check(SCHEMA)
    assert refused.value.code == "SINK_MARKERS_EXPIRE"


def test_topic_that_is_not_there_is_refused_unless_it_may_be_made(make: Callable[..., KafkaSink], topics: Any) -> None:
    name = f"absent-{next(_numbers)}-{time.time_ns()}"
    there = topics.create(1, prefix="0-there")
    for look in (make(topic=name).check, make(topic=name).prepare):
        with pytest.raises(MissingError) as refused:
            look(SCHEMA)
        assert (refused.value.code, refused.value.exit_code) == ("SINK_TOPIC_MISSING", 3)
        assert there in refused.value.context["topics there"]
    sink = make(topic=name, create=True)
    sink.check(SCHEMA)
    assert name not in TopicAdmin(sink.settings).names()
    sink.prepare(SCHEMA)
    assert name in TopicAdmin(sink.settings).names()


def test_transaction_timeout_above_the_brokers_limit_is_found_by_check(make: Callable[..., KafkaSink]) -> None:
    with pytest.raises(MissingError) as refused:
        make(transaction_timeout=timedelta(hours=1)).check(SCHEMA)
    assert refused.value.code == "SINK_TRANSACTION_TIMEOUT"
    assert list(refused.value.context.values()) == ["1:00:00", "0:15:00"]


def test_topic_with_another_partition_count_is_refused_where_rows_choose_theirs(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    land(sink, token(0, 0, 3))
    TopicAdmin(sink.settings).add_partitions(str(sink.topic), 5)
    sink.check(SCHEMA)
    assert "5 partitions and had 3" in sink.notices[0]
    choosing = SCHEMA.append(pa.field("_penstock_partition", pa.int32()))
    with pytest.raises(MissingError) as refused:
        make().check(choosing)
    assert refused.value.code == "SINK_PARTITIONS_CHANGED"
    assert refused.value.context == {"before": "3", "now": "5"}
    make(partitions=5).check(choosing)


def test_position_with_slots_apart_is_what_all_of_them_have(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(slots=2))
    first, second = token(0, 2, 6), token(1, 6, 8)
    assert (sink.position(), sink.begun(), sink.torn()) == (None, None, None)
    begin(sink, first, 1).finish()
    assert (sink.position(), sink.begun()) == (None, Position.first(first))
    assert sink.torn() == "0: none, 1: batch 0"
    begin(sink, first, 0).finish()
    assert (sink.position(), sink.begun(), sink.torn()) == (Position.first(first), Position.first(first), None)
    begin(sink, second, 0).finish()
    assert sink.position() == Position.first(first)
    assert sink.begun() == Position.after(Position.first(first), second)
    assert sink.torn() == "0: batch 1, 1: batch 0"
    assert [m.items[0] for m in land(sink, second)] == [SlotOutcome.DRAINED, SlotOutcome.COMMITTED]
    assert (last_commit(sink), sink.torn()) == (second, None)


def test_position_that_is_moved_is_that_of_every_slot_and_batches_follow_it(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(slots=2))
    land(sink, token(0, 0, 4))
    begin(sink, token(1, 4, 8), 0).finish()
    target = BatchToken("orders", "moved", 0, (OffsetRange("orders", 0, 0, 2),))
    moved = move(make(slots=2), target, "tried again from 2")
    assert moved is not None
    fresh = make(slots=2)
    held = fresh.position()
    assert held is not None
    assert (held.last, held.last.rule, held.last.reason) == (target, Rule.MOVES, "tried again from 2")
    assert (held.next, fresh.torn()) == ({TopicPartition("orders", 0): 2}, None)
    assert held.number == 3  # above the slot that was ahead
    with pytest.raises(TerminalError, match="FENCED"):
        begin(ready(fresh), token(0, 0, 4, query="another"))
    land(fresh, token(0, 2, 3, query="another"))
    assert ids(fresh) == [0, 1, 2, 2, 3]


def test_move_that_died_in_the_middle_is_done_again_for_every_slot(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(slots=2))
    land(sink, token(0, 0, 4))
    begin(sink, token(1, 4, 8), 0).finish()
    target = BatchToken("orders", "moved", 0, (OffsetRange("orders", 0, 2, 2),))
    dying = ready(DiesAfterOneMarker(make(slots=2)))
    with pytest.raises(Killed):
        move(dying, target, "tried again from 2")
    assert dying.torn() is not None
    again = ready(make(slots=2))
    assert not holds(again, replace(target, rule=Rule.MOVES))
    move(again, target, "tried again from 2")
    assert (again.torn(), last_commit(again)) == (None, target)


class DiesAfterOneMarker(KafkaSink):
    def __init__(self, sink: KafkaSink) -> None:
        self.__dict__.update(sink.__dict__)
        self._left = 1

    def _write_marker(self, *of: Any) -> None:
        if not self._left:
            raise Killed
        self._left -= 1
        super()._write_marker(*of)


def test_move_onto_a_position_that_is_not_the_slots_any_more_writes_nothing(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(slots=2))
    land(sink, token(0, 0, 4))
    before = sink.position()
    land(sink, token(1, 4, 6))
    moved = replace(token(0, 0, 2, query="moved"), rule=Rule.MOVES)
    with pytest.raises(TransientError, match="SINK_COMMIT_CONFLICT"):
        sink.land(Position.after(before, moved), (), before)
    assert last_commit(sink) == token(1, 4, 6)


def test_move_overtaken_by_a_batch_between_its_look_and_its_marker_writes_nothing(
    make: Callable[..., KafkaSink],
) -> None:
    sink = ready(make())
    land(sink, token(0, 0, 4))
    before = sink.position()
    overtaken = OvertakenMove(ready(make()), lambda: land(sink, token(1, 4, 6)))
    moved = replace(token(0, 0, 2, query="moved"), rule=Rule.MOVES)
    with pytest.raises(TransientError, match="SINK_COMMIT_CONFLICT"):
        overtaken.land(Position.after(before, moved), (), before)
    assert last_commit(sink) == token(1, 4, 6)


class OvertakenMove(KafkaSink):
    def __init__(self, sink: KafkaSink, overtake: Callable[[], object]) -> None:
        self.__dict__.update(sink.__dict__)
        self._overtake = overtake

    def _write_marker(self, *of: Any) -> None:
        self._overtake()
        super()._write_marker(*of)


def test_move_of_a_sink_whose_slots_nobody_knows_is_refused_until_they_are_pinned(
    make: Callable[..., KafkaSink],
) -> None:
    sink = make(slots=None)
    with pytest.raises(TerminalError, match="SINK_SLOT_UNKNOWN"):
        move(sink, token(0, 0, 2, query="moved"), "begins at 2")
    sink.pin(2)
    move(sink, token(0, 0, 2, query="moved"), "begins at 2")
    assert last_commit(make(slots=None)) == token(0, 0, 2, query="moved")


def test_claim_keeps_each_slot_where_it_stands_and_stops_the_run_that_was_there_before(
    make: Callable[..., KafkaSink],
) -> None:
    first = ready(make(slots=2))
    land(first, token(0, 0, 2))
    batch = replace(token(1, 2, 4), quarantine={"quarantine": 1})
    stage = begin(first, batch)
    stage.write(records([2]))
    stage.finish()  # slot 0 alone has the batch

    second = ready(make(slots=2))
    held = second.position()
    assert held is not None and held.last == token(0, 0, 2)
    hanging = begin(first, batch, slot=1)
    hanging.write(records([3]))
    second.claim(batch, Position.claimed(held, batch, "claimed by run 2"))
    claimed = second.position()
    assert claimed is not None and (claimed.last, claimed.number) == (held.last, held.number + 1)
    begun = second.begun()
    assert begun is not None and begun.last == batch
    with pytest.raises(TransientError):
        hanging.finish()
    land(second, batch)
    assert ids(second) == [0, 1, 2, 3]


def test_claim_of_slots_that_another_run_has_written_since_is_refused(make: Callable[..., KafkaSink]) -> None:
    first, second = ready(make(slots=2)), ready(make(slots=2))
    assert second.position() is None
    land(first, replace(token(0, 0, 2), quarantine={"quarantine": 1}))
    ours = replace(token(0, 0, 2), quarantine={"quarantine": 2})
    with pytest.raises(TransientError, match="SINK_COMMIT_CONFLICT"):
        second.claim(ours, Position.claimed(None, ours, "claimed by run 2"))
    held = second.position()
    second.claim(ours, Position.claimed(held, ours, "claimed by run 2"))
    assert ids(second) == [0, 1]


def test_redriven_records_are_known_by_record_and_leave_the_position_where_it_was(
    make: Callable[..., KafkaSink],
) -> None:
    sink = ready(make(slots=2))
    land(sink, token(0, 0, 6))
    asked = [OffsetRange("orders", 0, 0, 100)]
    assert sink.records_held(asked) == set()
    redrive = replace(token(0, 1, 6, query="redrive"), rule=Rule.RECORDS)
    rows = records([1, 5]).append_column("_penstock_partition", pa.array([0, 9], pa.int32()))
    for _ in range(2):
        manifests = [begin(sink, redrive, slot) for slot in range(2)]
        refused = manifests[0].write(rows)
        assert [r.record.start for r in refused] == [5]
        assert not manifests[1].write(records(n for n in range(2, 40, 2)))
        commit(sink, redrive, [stage.finish() for stage in manifests])
    fresh = make(slots=2)
    held = {("orders", 0, 1), *(("orders", 0, n) for n in range(2, 40, 2))}
    assert fresh.records_held(asked) == held  # offset 5 was refused
    assert fresh.records_held([OffsetRange("orders", 0, 2, 5), OffsetRange("other", 0, 0, 9)]) == {
        ("orders", 0, 2),
        ("orders", 0, 4),
    }
    # Both slots find their marker after the many entries of the redrive.
    assert last_commit(fresh) == redrive
    land(ready(fresh), token(1, 6, 8))
    assert fresh.records_held(asked) == held
    assert ids(fresh) == sorted([*range(8), 1, *range(2, 40, 2)])


def test_two_redrives_of_the_same_records_at_once_write_each_once(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    land(sink, token(0, 0, 6))
    asked = [OffsetRange("orders", 0, 0, 6)]
    assert sink.records_held(asked) == set()  # what both of them find
    for query, offsets in (("first", [1, 2]), ("second", [2, 3])):
        redrive = replace(token(0, 1, 4, query=query), rule=Rule.RECORDS)
        stage = begin(sink, redrive)
        stage.write(records(offsets))
        stage.finish()
    assert sink.records_held(asked) == {("orders", 0, offset) for offset in (1, 2, 3)}
    assert ids(sink) == sorted([*range(6), 1, 2, 3])


def test_redrive_that_only_one_slot_has_does_not_hide_a_torn_batch(make: Callable[..., KafkaSink]) -> None:
    """Slots that have made a different number of commits: which one is older must still be seen."""
    sink = ready(make(slots=2))
    land(sink, token(0, 0, 4))
    for query in ("redrive", "another redrive"):
        begin(sink, replace(token(0, 1, 3, query=query), rule=Rule.RECORDS), 0).finish()
        sink = ready(make(slots=2))
    land(sink, token(1, 4, 6))
    begin(sink, token(2, 6, 8), 1).finish()
    assert last_commit(make(slots=2)) == token(1, 4, 6)
    assert not holds(make(slots=2), token(2, 6, 8))


def test_slots_that_0_7_wrote_are_continued_with_every_partition_they_name(make: Callable[..., KafkaSink]) -> None:
    sink = make(slots=1)
    TopicAdmin(sink.settings).create(sink.markers, 1, 1, {"cleanup.policy": "compact"})
    ranges = [("orders", 1, 0, 7), ("orders", 0, 0, 3), ("orders", 0, 3, 5)]
    old = [BatchToken("orders", QUERY, n, (OffsetRange(*r),)) for n, r in enumerate(ranges)]
    writer = Producer({"bootstrap.servers": sink.settings.brokers, "log_level": 0})
    for number, one in enumerate(old):
        body = {"token": one.to_json(), "slots": 1, "number": number + 1, "partitions": 3}
        writer.produce(sink.markers, json.dumps(body).encode(), b"marker", partition=0)
    assert writer.flush(30) == 0
    held = ready(sink).position()
    assert held is not None
    assert (held.last, held.number) == (old[-1], 3)
    assert held.next == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 7}
    with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
        begin(sink, BatchToken("orders", QUERY, 3, (OffsetRange("orders", 1, 9, 10),)))
    land(sink, token(3, 5, 6, query=QUERY))
    assert ready(make()).position() == Position.after(held, token(3, 5, 6, query=QUERY))


def test_commit_without_one_of_the_slots_is_refused(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(slots=2))
    manifest = begin(sink, token(0, 0, 2), 0).finish()
    with pytest.raises(TerminalError, match="SINK_SLOTS_INCOMPLETE"):
        commit(sink, token(0, 0, 2), [manifest])


@pytest.mark.parametrize(("before", "after"), [(3, 1), pytest.param(2, 3, marks=pytest.mark.long)])
def test_number_of_slots_changes_while_the_last_batch_is_whole(
    make: Callable[..., KafkaSink], before: int, after: int
) -> None:
    land(ready(make(slots=before)), token(0, 0, 6))
    sink = ready(make(slots=after))
    assert holds(sink, token(0, 0, 6))
    assert [m.items[0] for m in land(sink, token(0, 0, 6))] == [SlotOutcome.DRAINED] * after
    land(sink, token(1, 6, 12))
    assert ids(sink) == list(range(12))
    assert make(slots=None).pin(8) == after


def test_number_of_slots_with_a_torn_batch_is_refused_with_both_numbers(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make(slots=2))
    land(sink, token(0, 0, 4))
    begin(sink, token(1, 4, 8), 0).finish()
    for number in (1, 3):
        with pytest.raises(TerminalError) as refused:
            make(slots=number).prepare(SCHEMA)
        assert refused.value.code == "SINK_SLOTS_CHANGED"
        assert refused.value.context["in the file"] == str(number)
        assert refused.value.context["in the marker topic"] == "2"
        assert "slots: 2" in str(refused.value.hint)
    land(ready(make(slots=2)), token(1, 4, 8))
    ready(make(slots=3))


@pytest.mark.parametrize(("before", "after"), [(2, 3), pytest.param(3, 2, marks=pytest.mark.long)])
@pytest.mark.parametrize("goes_on_with", ["the old number", "the new number"])
def test_crash_in_the_middle_of_a_change_of_slots_loses_and_doubles_nothing(
    make: Callable[..., KafkaSink], before: int, after: int, goes_on_with: str
) -> None:
    sink = ready(make(slots=before))
    land(sink, token(0, 0, 6))
    if after > before:
        TopicAdmin(sink.settings).add_partitions(sink.markers, after)
    states = sink._states()
    marker = change_needed("out", states, after)
    assert marker is not None
    for slot in list(order_of_change(states, after))[:2]:
        sink._write_marker(slot, marker, states)
    restarted = make(slots=before if goes_on_with == "the old number" else after)
    assert last_commit(restarted) == token(0, 0, 6)
    ready(restarted)
    assert holds(restarted, token(0, 0, 6))
    assert {m.items[0] for m in land(restarted, token(0, 0, 6))} == {SlotOutcome.DRAINED}
    land(restarted, token(1, 6, 12))
    assert ids(restarted) == list(range(12))


def test_run_with_another_number_of_slots_beside_this_one_is_stopped(make: Callable[..., KafkaSink]) -> None:
    old = ready(make(slots=2))
    land(old, token(0, 0, 4))
    ready(make(slots=3))
    with pytest.raises(TerminalError, match="SINK_SLOTS_CHANGED"):
        begin(old, token(1, 4, 8), 1)


def test_slot_transaction_after_death_of_its_maker_is_replaced_in_order(make: Callable[..., KafkaSink]) -> None:
    sink = ready(make())
    for number in range(3):
        abandoned = SlotTransaction(sink._slot_id(0))
        abandoned.begin()
        land(sink, token(number, number, number + 1))
        abandoned.abort()
    assert ids(sink) == [0, 1, 2]
