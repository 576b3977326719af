"""`penstock preview` against a real broker: real messages on the screen, and nothing written anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cli.command import command, penstock
from tests.orders import order

from penstock.config import load
from penstock.ops.preview import preview

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def ids(found: Any) -> list[int]:
    return [row["order_id"] for row in found.seen.sinks["out"]]


def test_preview_shows_rows_and_bad_records_and_writes_nothing(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1), order(2, amount=-5.0), b"{oops", order(3)])
    file = pipeline_file(topic, transforms=[{"where": "amount >= 0"}, {"derive": {"day": "date(event_time)"}}])
    before = {group.group_id for group in topics.admin.list_consumer_groups().result(10).valid}
    done = penstock("preview", file.name, folder=file.parent)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines == [
        "orders  4 messages, direct lane",
        "",
        "sink out: 2 rows",
        "order_id  customer_id  amount  event_time            day",
        "       1  c               1.5  2026-01-01T00:00:00Z  2026-01-01",
        "       3  c               1.5  2026-01-01T00:00:00Z  2026-01-01",
        "",
        "quarantine: 1 record",
        f"{'topic':{len(topic)}}  partition  offset  code            message",
        next(line for line in lines if "MALFORMED_JSON" in line),
        "",
        "nothing was written",
    ]
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    assert {group.group_id for group in topics.admin.list_consumer_groups().result(10).valid} == before
    narrow = command("preview", file.name, folder=file.parent, COLUMNS="40")
    assert max(map(len, narrow.stdout.splitlines())) <= 40


def test_preview_takes_the_newest_or_the_oldest_over_all_partitions(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(3)
    producer = Producer({"bootstrap.servers": topics.brokers, "log_level": 0})
    for number in range(30):
        value = json.dumps(order(number)).encode()
        producer.produce(topic, value, partition=number % 3, timestamp=1_700_000_000_000 + number)
    assert producer.flush(30) == 0
    config = load(pipeline_file(topic))
    assert sorted(ids(preview(config, 5))) == [25, 26, 27, 28, 29]
    assert sorted(ids(preview(config, 5, "earliest"))) == [0, 1, 2, 3, 4]
    assert sorted(ids(preview(config, 100))) == list(range(30))


def test_preview_reads_on_where_offsets_have_holes(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    producer = Producer({"bootstrap.servers": topics.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for number in range(10):
        producer.begin_transaction()
        producer.produce(topic, json.dumps(order(number)).encode())
        producer.commit_transaction(30)
    assert sorted(ids(preview(load(pipeline_file(topic)), 6))) == [4, 5, 6, 7, 8, 9]


def test_preview_empty_topic_shows_no_rows(topics: Any, pipeline_file: Write) -> None:
    found = preview(load(pipeline_file(topics.create(2))), 20)
    assert (found.messages, found.seen.sinks, found.seen.quarantine) == (0, {"out": []}, [])


def test_preview_as_json_without_a_quarantine_still_shows_bad_records(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1), b"\xff"])
    file = pipeline_file(topic, quarantine=None)
    done = command("preview", file.name, "--json", "--limit", "5", folder=file.parent)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["messages"], told["lane"]) == (2, "direct")
    assert told["sinks"]["out"][0]["_penstock"]["offset"] == 0
    assert [(bad["code"], bad["value"]) for bad in told["quarantine"]] == [("INVALID_UTF8", "0xff")]


@pytest.mark.long
def test_preview_frame_lane_uses_spark(topics: Any, spark: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1), order(2)])
    config = load(pipeline_file(topic, transforms=[{"sql": "SELECT count(*) AS n FROM input"}]))
    found = preview(config, 5, session=spark)
    assert (found.lane, found.seen.sinks) == ("frame", {"out": [{"n": 2}]})


def test_preview_topic_missing_names_it(pipeline_file: Write) -> None:
    file = pipeline_file("no-such-topic")
    done = command("preview", file.name, folder=file.parent)
    assert done.returncode == 3
    assert done.stderr.startswith("TOPIC_MISSING no such topic: no-such-topic")
