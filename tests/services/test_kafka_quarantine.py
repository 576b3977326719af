"""The quarantine as a topic against a real broker, read back by a plain consumer of committed records."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.committed import committed
from tests.committing import commit, holds, last_commit
from tests.contract.rows import START, token

from penstock.contracts import SlotSink
from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import BAD_SCHEMA, BatchToken, Manifest, OffsetRange, Position, Rule, SlotAttempt, TopicPartition
from penstock.quarantine import QUARANTINE_SCHEMA, Quarantine
from penstock.sinks.kafka import QuarantineTopic
from penstock.sinks.kafka.transaction import SlotTransaction

pytestmark = pytest.mark.services

_numbers = itertools.count()


def bad(offsets: Sequence[int], **columns: Any) -> pa.RecordBatch:
    rows = [
        {
            "stage": "decode",
            "code": "MALFORMED_JSON",
            "message": "line 1: unexpected end",
            "key": b"\x00key",
            "value": b"{\xff",
            "headers": [{"key": "code", "value": b"theirs"}, {"key": "none", "value": None}],
            "topic": "orders",
            "partition": 3,
            "offset": offset,
            "timestamp": START,
            **columns,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=BAD_SCHEMA)


@pytest.fixture
def make(topics: Any, tmp_path: Path) -> Callable[..., QuarantineTopic]:
    """Makes the sinks of one quarantine topic."""
    pipeline, topic = f"orders{next(_numbers)}", topics.create(1, prefix="quarantine", **{"max.message.bytes": "9000"})
    settings, staging = KafkaSettings(topics.brokers), str(tmp_path / "staged")
    return lambda **more: QuarantineTopic(pipeline, "quarantine", settings, staging, **{"topic": topic, **more})


def ready(sink: QuarantineTopic) -> QuarantineTopic:
    sink.prepare(QUARANTINE_SCHEMA)
    return sink


def stage(
    sink: QuarantineTopic, batch: BatchToken, offsets: Sequence[int], slot: int = 0, tried: str = "0"
) -> Manifest:
    """What a task does: with a copy of the sink."""
    there = pickle.loads(pickle.dumps(Quarantine(sink, "orders")))
    stage = there.stage(batch, SlotAttempt(slot, tried), BAD_SCHEMA)
    stage.write(bad(offsets))
    manifest: Manifest = stage.finish()
    return manifest


def forward(batch_id: int, start: int, end: int, query: str = "5f0c7f3e-0000") -> BatchToken:
    return replace(token(batch_id, start, end, query), rule=Rule.FORWARD)


def offsets_in(sink: QuarantineTopic) -> list[int]:
    found = committed(sink.settings.brokers, sink.topic)
    return sorted(int(dict(message.headers())["offset"]) for message in found)


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "staged").rglob("*") if path.is_file())


def test_bad_records_keep_their_bytes_and_carry_the_reason_as_headers(make: Callable[..., QuarantineTopic]) -> None:
    sink = ready(make())
    commit(sink, forward(7, 0, 9), [stage(sink, forward(7, 0, 9), [41])])
    [message] = committed(sink.settings.brokers, sink.topic)
    headers = message.headers()
    assert (message.key(), message.value()) == (b"\x00key", b"{\xff")
    assert message.timestamp()[1] == int(START.timestamp() * 1000)
    assert [name for name, _ in headers] == [
        *(name for name in QUARANTINE_SCHEMA.names if name not in ("key", "value", "headers")),
        "code",
        "none",
    ]
    assert headers[:9] == [
        ("pipeline", b"orders"),
        ("batch_id", b"7"),
        ("stage", b"decode"),
        ("code", b"MALFORMED_JSON"),
        ("message", b"line 1: unexpected end"),
        ("topic", b"orders"),
        ("partition", b"3"),
        ("offset", b"41"),
        ("timestamp", b"2026-01-01T00:00:00.000000Z"),
    ]
    assert headers[-2:] == [("code", b"theirs"), ("none", None)]
    assert datetime.fromisoformat(headers[9][1].decode()) <= datetime.now(UTC)


def test_null_key_value_and_headers_stay_null(make: Callable[..., QuarantineTopic]) -> None:
    sink = ready(make())
    batch = forward(0, 0, 9)
    writing = Quarantine(sink, "orders").stage(batch, SlotAttempt(0, "0"), BAD_SCHEMA)
    writing.write(bad([1], key=None, value=None, headers=None))
    commit(sink, batch, [writing.finish()])
    [message] = committed(sink.settings.brokers, sink.topic)
    assert (message.key(), message.value(), len(message.headers())) == (None, None, 10)


def test_bad_records_of_several_slots_are_committed_together_and_their_files_removed(
    make: Callable[..., QuarantineTopic], tmp_path: Path
) -> None:
    sink, batch = ready(make()), forward(1, 4, 8)
    assert not isinstance(sink, SlotSink)
    manifests = [stage(sink, batch, offsets, slot) for slot, offsets in enumerate([[4, 5], [], [7]])]
    assert [m.rows for m in manifests] == [2, 0, 1]
    assert len(files(tmp_path)) == 2
    assert (offsets_in(sink), sink.position()) == ([], None)
    commit(sink, batch, manifests)
    assert offsets_in(sink) == [4, 5, 7]
    assert files(tmp_path) == []
    assert ready(make()).position() == Position.first(batch)


def test_quarantine_may_miss_batches_and_adds_nothing_twice(make: Callable[..., QuarantineTopic]) -> None:
    for batch, offset in ((forward(1, 4, 8), 4), (forward(1, 4, 8), 4), (forward(5, 8, 9), 8)):
        sink = ready(make())
        commit(sink, batch, [stage(sink, batch, [offset])])
    assert offsets_in(sink) == [4, 8]
    held = sink.position()
    assert held is not None
    assert (held.last, held.number) == (forward(5, 8, 9), 2)
    assert holds(sink, forward(1, 4, 8))
    with pytest.raises(TerminalError, match="FENCED"):
        commit(sink, forward(0, 4, 8, "another"), [stage(sink, forward(0, 4, 8, "another"), [4])])


def test_batch_that_has_landed_lands_again_with_further_records(
    make: Callable[..., QuarantineTopic], tmp_path: Path
) -> None:
    sink, batch = ready(make()), forward(1, 4, 8)
    commit(sink, batch, [stage(sink, batch, [4])])
    held = ready(make()).position()
    assert held is not None
    assert held.last == batch
    more = [stage(sink, batch, [6, 7], tried="1")]
    sink.discard(batch, more)
    sink.land(Position.after(held, batch), more, held)
    assert offsets_in(sink) == [4, 6, 7]
    found = sink.position()
    assert found is not None
    assert (found.last, found.number, files(tmp_path)) == (batch, 2, [])


def test_land_onto_a_position_that_has_moved_sends_nothing_and_keeps_the_files(
    make: Callable[..., QuarantineTopic], tmp_path: Path
) -> None:
    late, sink = ready(make()), ready(make())
    mine = [stage(late, forward(1, 4, 8), [4])]
    commit(sink, forward(0, 0, 6, "another"), [stage(sink, forward(0, 0, 6, "another"), [0])])
    with pytest.raises(TransientError, match="SINK_COMMIT_CONFLICT"):
        late.land(Position.first(forward(1, 4, 8)), mine, None)
    assert (offsets_in(sink), len(files(tmp_path))) == ([0], 1)
    with pytest.raises(TerminalError, match="FENCED"):
        commit(late, forward(1, 4, 8), mine)


def test_driver_that_hangs_between_its_look_and_its_commit_is_fenced_by_the_next(
    make: Callable[..., QuarantineTopic],
) -> None:
    hung, batch = ready(make()), forward(0, 0, 9)
    transaction = SlotTransaction(hung._slot_id(0))
    transaction.begin()
    [records] = hung._staged([stage(hung, batch, [1])])
    transaction.send(records, hung.topic)
    sink = ready(make())
    commit(sink, batch, [stage(sink, batch, [1], tried="1")])
    marker = SlotTransaction(hung._slot_id(0)).marker
    assert marker is not None
    with pytest.raises(TransientError):
        transaction.commit(marker)
    assert offsets_in(sink) == [1]


def test_staged_files_of_other_attempts_go_once_the_batch_is_committed(
    make: Callable[..., QuarantineTopic], tmp_path: Path
) -> None:
    sink, batch, other = ready(make()), forward(0, 0, 4), forward(1, 4, 8)
    stage(sink, batch, [1], tried="dead")
    counted = stage(sink, batch, [1], tried="counted")
    kept = stage(sink, other, [5])
    sink.discard(batch, [counted])
    assert len(files(tmp_path)) == 3  # it is not committed yet
    commit(sink, batch, [counted])
    sink.discard(batch, [counted])
    assert files(tmp_path) == list(kept.items)


def test_position_of_a_quarantine_is_moved_without_records(make: Callable[..., QuarantineTopic]) -> None:
    sink = ready(make())
    moved = replace(token(0, 0, 5, "moved"), rule=Rule.MOVES, reason="by hand")
    commit(sink, moved, ())
    assert (last_commit(make()), offsets_in(sink)) == (moved, [])


def test_quarantine_that_0_7_wrote_is_continued_and_its_writers_are_fenced(
    make: Callable[..., QuarantineTopic],
) -> None:
    sink = make()
    TopicAdmin(sink.settings).create(sink.markers, 4, 1, {"cleanup.policy": "compact"})
    old = {
        2: BatchToken("orders", "q", 5, (OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 0, 9))),
        1: BatchToken("orders", "q", 7, (OffsetRange("orders", 0, 30, 40),)),
    }
    writer = Producer({"bootstrap.servers": sink.settings.brokers, "log_level": 0})
    for moment, (slot, one) in enumerate(old.items()):
        body = {"token": one.to_json(), "slots": 2, "number": 3 - moment, "partitions": 1}
        value, at = json.dumps(body).encode(), int(START.timestamp()) * 1000 + moment
        writer.produce(sink.markers, value, b"marker", partition=slot, timestamp=at)
    assert writer.flush(30) == 0
    running = SlotTransaction(sink._slot_id(1))
    running.begin()
    held = ready(sink).position()
    assert held is not None
    assert (held.last, held.number) == (old[1], 3)
    assert held.next == {TopicPartition("orders", 0): 40, TopicPartition("orders", 1): 9}
    assert running.marker is not None
    with pytest.raises(TransientError):
        running.commit(running.marker)
    batch = replace(token(9, 40, 50, "q"), rule=Rule.FORWARD)
    commit(sink, batch, [stage(sink, batch, [41])])
    found = ready(make()).position()
    assert found == Position.after(held, batch)
    assert found.number == 4


def test_bad_record_too_large_with_its_headers_stops_and_is_not_lost(make: Callable[..., QuarantineTopic]) -> None:
    writing = Quarantine(ready(make()), "orders").stage(token(0, 0, 9), SlotAttempt(0, "0"), BAD_SCHEMA)
    with pytest.raises(TerminalError) as stopped:
        writing.write(bad([5], value=b"x" * 8900))
    writing.abort()
    assert stopped.value.code == "SINK_RECORD_TOO_LARGE"
    assert stopped.value.context["record"] == "orders[3] offset 5"


def test_position_larger_than_the_topics_records_is_committed(make: Callable[..., QuarantineTopic]) -> None:
    sink = ready(make())
    ranges = tuple(OffsetRange("orders", n, n, 2**40 + n) for n in range(600))
    batch = BatchToken("orders", "q", 0, ranges, rule=Rule.FORWARD)
    assert len(batch.to_json()) > 9000
    commit(sink, batch, [stage(sink, batch, [1])])
    assert last_commit(make()) == batch


def test_check_and_prepare_refuse_a_topic_that_is_not_there_and_markers_that_expire(
    make: Callable[..., QuarantineTopic],
) -> None:
    absent = make(topic=f"absent-{next(_numbers)}")
    for look in (absent.check, absent.prepare):
        with pytest.raises(MissingError, match="SINK_TOPIC_MISSING"):
            look(QUARANTINE_SCHEMA)
    sink = make()
    TopicAdmin(sink.settings).create(sink.markers, 1, 1, {"cleanup.policy": "delete"})
    with pytest.raises(MissingError, match="SINK_MARKERS_EXPIRE"):
        sink.check(QUARANTINE_SCHEMA)


@pytest.mark.parametrize("of_each", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_many_bad_records_are_sent_from_several_files_in_one_transaction(
    make: Callable[..., QuarantineTopic], tmp_path: Path, of_each: int
) -> None:
    sink, batch = ready(make()), forward(0, 0, 3 * of_each)
    manifests = [
        stage(sink, batch, range(low, low + of_each), slot) for slot, low in enumerate(range(0, 3 * of_each, of_each))
    ]
    assert sink._timeout(manifests) > sink.transaction_timeout
    commit(sink, batch, manifests)
    assert offsets_in(sink) == list(range(3 * of_each))
    assert files(tmp_path) == []
