"""Lag against a real broker: what was sent and not read, in offsets and in time, and the consumer group beside it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as ClientPartition
from tests.orders import drain, order
from tests.services.running import wait_for
from tests.sessions import ON_BOTH_LONG
from tests.spark_checkpoint import write_checkpoint
from typer.testing import CliRunner

from penstock.assembly.targets import targets_of
from penstock.checkpoint import SparkCheckpoint
from penstock.cli.status import lag
from penstock.config import load
from penstock.engine.listener import BatchDone, Event
from penstock.errors import MissingError, PenstockError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.ages import first_unread
from penstock.kafka.groups import GroupCommitter, GroupOffsets
from penstock.metrics.history import GroupNoted, history_of
from penstock.model import TopicPartition
from penstock.ops.lag import LagReport, find_lag
from penstock.ops.snapshot import take_snapshot
from penstock.preflight.standings import standings

pytestmark = pytest.mark.services
Write = Callable[..., Path]
app = typer.Typer()
app.command()(lag)


def ago(seconds: float) -> int:
    """A record's timestamp."""
    return int((time.time() - seconds) * 1000)


def lags(report: LagReport) -> dict[int, int]:
    return {one.partition: one.lag for one in report.partitions}


def group_offsets(topics: Any, group: str, topic: str) -> dict[int, int]:
    """What the brokers say of a group, asked by the client's own admin calls."""
    asked = topics.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(10).topic_partitions
    return {at.partition: at.offset for at in found if at.topic == topic}


@contextmanager
def member_of(group: str, topics: Any, topic: str) -> Iterator[None]:
    """Somebody who has joined the group: the brokers then refuse commits from outside."""
    consumer = Consumer({"bootstrap.servers": topics.brokers, "group.id": group, "enable.auto.commit": False})
    joined, over = threading.Event(), threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: joined.set())

    def heed() -> None:
        while not over.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=heed)
    thread.start()
    try:
        assert joined.wait(30)
        yield
    finally:
        over.set()
        thread.join()
        consumer.close()


def test_lag_is_what_was_sent_and_not_read_in_offsets_and_in_time(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(3)
    topics.send(topic, [order(n) for n in range(4)], partition=0, timestamp=ago(3600))
    topics.send(topic, [order(n) for n in range(6)], partition=0, timestamp=ago(200))
    topics.send(topic, [order(n) for n in range(5)], partition=1)
    topics.send(topic, [order(n) for n in range(1500)], partition=2, timestamp=ago(50))
    file = pipeline_file(topic)
    never = find_lag(take_snapshot(load(file)))
    assert (never.total, never.never_ran, never.running) == (1515, True, False)
    assert never.behind_seconds == pytest.approx(3600, abs=20)
    assert {one.committed for one in never.partitions} == {None}

    write_checkpoint(file.parent / "checkpoints/orders", [{0: 4, 1: 5, 2: 0}], topic=topic)
    found = find_lag(take_snapshot(load(file)))
    assert lags(found) == {0: 6, 1: 0, 2: 1500}
    assert found.total == 1506
    one, two, three = found.partitions
    assert (one.committed, one.end, one.group) == (4, 10, None)
    assert one.seconds_behind == pytest.approx(200, abs=20)
    assert two.seconds_behind == 0.0
    assert three.seconds_behind == pytest.approx(50, abs=20)
    assert found.behind_seconds == one.seconds_behind
    assert [str(hot) for hot in found.hot] == [f"{topic}[2]"]
    assert "consumer group penstock.orders has no offsets" in (found.group_note or "")

    topics.send(topic, [order(n) for n in range(100)], partition=1)
    before = replace(found, at=found.at - timedelta(seconds=10))
    again = find_lag(take_snapshot(load(file)), before)
    assert again.growth == pytest.approx(100 / (again.at - before.at).total_seconds())
    assert "the pipeline is not running, and" in again.text


def test_lag_of_some_partitions_and_of_a_pattern_counts_those_alone(topics: Any, pipeline_file: Write) -> None:
    topic, other = topics.create(2, prefix="lagging"), topics.create(1, prefix="lagging")
    topics.send(topic, [order(n) for n in range(7)], partition=0)
    topics.send(topic, [order(n) for n in range(3)], partition=1)
    topics.send(other, [order(n) for n in range(5)])
    assigned = find_lag(take_snapshot(load(pipeline_file(topic, source={"assign": {topic: [1]}, "group": False}))))
    assert (assigned.total, len(assigned.partitions), assigned.group) == (3, 1, None)
    assert "source.group is false" in (assigned.group_note or "")
    pattern = find_lag(take_snapshot(load(pipeline_file(topic, source={"pattern": f"({topic}|{other})"}))))
    assert {str(one): one.lag for one in pattern.partitions} == {f"{topic}[0]": 7, f"{topic}[1]": 3, f"{other}[0]": 5}
    late = load(pipeline_file(topic, source={"start": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}))
    assert find_lag(take_snapshot(late)).total == 0
    with pytest.raises(MissingError) as raised:
        find_lag(take_snapshot(load(pipeline_file("no-such-topic"))))
    assert raised.value.code == "TOPIC_MISSING"


def test_lag_of_transactions_ends_at_the_last_stable_offset(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    settings = {"bootstrap.servers": topics.brokers, "transactional.id": f"tx-{topic}", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)

    def send(count: int, seconds: float, *, end: str) -> None:
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, json.dumps(order(number)).encode(), partition=0, timestamp=ago(seconds))
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)

    # Records 0-2, their marker 3; aborted 4-7, marker 8; records 9-10, marker 11; an open one from 12 on.
    send(3, 1000, end="commit")
    send(4, 800, end="abort")
    send(2, 300, end="commit")
    send(5, 100, end="open")
    file = pipeline_file(topic)
    write_checkpoint(file.parent / "checkpoints/orders", [{0: 4}], topic=topic)
    (one,) = find_lag(take_snapshot(load(file))).partitions
    assert (one.end, one.lag) == (12, 8)
    assert one.seconds_behind == pytest.approx(300, abs=20)
    # What is behind the last record is a marker alone: nothing is unread.
    at = TopicPartition(topic, 0)
    assert first_unread(KafkaSettings(topics.brokers), {at: 11}) == {}
    producer.abort_transaction(30)
    assert first_unread(KafkaSettings(topics.brokers), {at: 12}) == {}
    assert find_lag(take_snapshot(load(file))).partitions[0].end == 18

    for future in topics.admin.delete_records([ClientPartition(topic, 0, 10)]).values():
        future.result(10)
    cut = find_lag(take_snapshot(load(file)))
    assert cut.partitions[0].seconds_behind == pytest.approx(300, abs=20)
    assert any("6 offsets expired (topic retention)" in note for note in cut.notes)


def test_group_is_told_without_anybody_joining_and_is_an_empty_group_to_others(topics: Any, tmp_path: Path) -> None:
    topic, name = topics.create(2), f"penstock.{tmp_path.name}"
    topics.send(topic, [order(n) for n in range(20)])
    group = GroupOffsets(KafkaSettings(topics.brokers), name)
    assert group.committed([TopicPartition(topic, 0)]) == {}
    group.commit({TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 10})
    assert group.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)]) == {
        TopicPartition(topic, 0): 7,
        TopicPartition(topic, 1): 10,
    }
    # What kafka-consumer-groups and every lag exporter ask for.
    assert group_offsets(topics, name, topic) == {0: 7, 1: 10}
    described = topics.admin.describe_consumer_groups([name])[name].result(10)
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    assert name in {one.group_id for one in topics.admin.list_consumer_groups().result(10).valid}


def test_group_with_members_is_refused_told_once_and_caught_up_with_later(topics: Any, tmp_path: Path) -> None:
    topic, name = topics.create(1), f"penstock.{tmp_path.name}"
    told: list[str | None] = []
    committer = GroupCommitter(KafkaSettings(topics.brokers), name, told.append)
    with member_of(name, topics, topic):
        with pytest.raises(TerminalError) as raised:
            GroupOffsets(KafkaSettings(topics.brokers), name).commit({TopicPartition(topic, 0): 1})
        assert raised.value.code == "GROUP_IN_USE"
        for offset in (1, 2, 3):
            committer.put({TopicPartition(topic, 0): offset})
        wait_for(lambda: told, "a word of the failure")
        committer.put({TopicPartition(topic, 0): 4})
    wait_for(lambda: len(told) > 1, "the group to be written again")
    committer.close()
    assert (told[0] or "").startswith("GROUP_IN_USE")
    assert told[1:] == [None]
    assert group_offsets(topics, name, topic) == {0: 4}


def test_run_tells_its_group_what_the_sinks_have_and_goes_on_where_it_cannot(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(3)
    name = f"orders-{topic}"
    file = pipeline_file(topic, name=name)
    topics.send(topic, [order(n) for n in range(90)])
    config = load(file)
    with member_of(config.group or "", topics, topic):
        assert drain(file, session).rows_out == 90
        assert group_offsets(topics, f"penstock.{name}", topic) == {}
        assert any(entry.fact.error for entry in history_of(config.checkpoint).read(GroupNoted))
        refused = find_lag(take_snapshot(config))
        assert refused.total == 0
        assert "GROUP_IN_USE" in (refused.group_note or "")

    topics.send(topic, [order(n) for n in range(90, 120)])
    drain(file, session)
    (out,) = (one for one in standings(targets_of(config)) if one.sink == "out")
    assert out.token is not None
    held = {at.partition: end for at, end in out.token.ends.items()}
    assert group_offsets(topics, f"penstock.{name}", topic) == held == {0: 40, 1: 40, 2: 40}
    topics.send(topic, [order(n) for n in range(5)], partition=1, timestamp=ago(100))
    found = find_lag(take_snapshot(config))
    assert (lags(found), found.group_note) == ({0: 0, 1: 5, 2: 0}, None)
    assert {one.partition: one.group for one in found.partitions} == held

    GroupOffsets(KafkaSettings(topics.brokers), f"penstock.{name}").commit({TopicPartition(topic, 0): 3})
    moved = find_lag(take_snapshot(config))
    assert lags(moved) == {0: 0, 1: 5, 2: 0}
    assert "changed by someone else" in (moved.group_note or "")
    done = CliRunner().invoke(app, [str(file), "--json"])
    body = json.loads(done.stdout)
    assert (body["total"], body["partitions"][0]["committed"], body["partitions"][0]["group"]) == (5, 40, 3)
    done = CliRunner().invoke(app, [str(file)])
    assert "5 behind, the oldest unread record is 1 min" in done.stdout


@ON_BOTH_LONG
def test_group_is_never_ahead_of_a_sink_whose_commit_failed(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    name = f"orders-{topic}"
    sinks = [{"name": one, "type": "delta", "path": f"lake/{one}", "mode": "append"} for one in ("first", "second")]
    file = pipeline_file(topic, name=name, sinks=sinks)
    config = load(file)
    topics.send(topic, [order(n) for n in range(20)])
    drain(file, session)
    assert group_offsets(topics, f"penstock.{name}", topic) == {0: 10, 1: 10}
    topics.send(topic, [order(n) for n in range(20, 30)])
    log = file.parent / "lake/second/_delta_log"

    def damage(event: Event) -> None:
        if getattr(event, "phase", "") == "commit:second":
            log.rename(log.with_name("away"))
            log.write_text("no folder any more")
        assert not isinstance(event, BatchDone)

    with pytest.raises(PenstockError):
        drain(file, session, damage, give_up_after=0.1)
    log.unlink()
    log.with_name("away").rename(log)
    assert {one.sink: one.token and one.token.batch_id for one in standings(targets_of(config)) if not one.sparse} == {
        "first": 1,
        "second": 0,
    }
    assert group_offsets(topics, f"penstock.{name}", topic) == {0: 10, 1: 10}
    found = find_lag(take_snapshot(config))
    assert {one.partition: one.committed for one in found.partitions} == {0: 10, 1: 10}
    assert (found.total, found.group_note) == (10, None)

    drain(file, session)
    assert group_offsets(topics, f"penstock.{name}", topic) == {0: 15, 1: 15}
    assert SparkCheckpoint(config.checkpoint).last_committed() == 1
    assert find_lag(take_snapshot(config)).total == 0
