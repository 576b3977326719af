"""Work that is not spread: partitions and keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.ops.diagnosis.evidences import (
    COLUMNS,
    WATERMARK,
    batches,
    behind,
    brokers,
    caught_up,
    causes,
    codes,
    config,
)

from penstock.kafka import LogBounds
from penstock.model import TopicPartition
from penstock.ops.snapshot import Brokers

TOPIC = [{"name": "out", "type": "kafka", "topic": "clean"}]


def test_hot_partition_is_found_where_one_has_most_of_the_backlog(tmp_path: Path) -> None:
    hot = behind(
        config(tmp_path, sinks=TOPIC),
        brokers=brokers(1_000, 90_000, 2_000, 1_500),
        arrived={TopicPartition("orders", 1): 900, TopicPartition("orders", 0): 100},
    )
    [cause] = causes(hot)
    assert cause.code == "HOT_PARTITION"
    assert cause.evidence[0].startswith("orders[1]: 90,000 offsets wait, 95 % of all")
    assert cause.evidence[1] == "90 % of the new records went there"
    assert codes(caught_up(hot)) == []
    assert codes(replace(hot, brokers=brokers(30_000, 40_000, 25_000, 20_000))) == []
    # A topic beside it that has nothing does not make another one's partitions hot.
    even = {TopicPartition(topic, p): LogBounds(0, lag) for topic, lag in (("a", 40_000), ("b", 0)) for p in (0, 1)}
    assert codes(replace(hot, brokers=Brokers(even, seconds=0.003))) == []
    # Three times the median, but not where most of the records are.
    assert codes(replace(hot, brokers=brokers(*[10_000] * 9, 35_000))) == []


def test_hot_partition_that_is_split_comes_behind_a_slow_sink(tmp_path: Path) -> None:
    slow = batches(phases={"commit:out": 6.0})
    assert codes(behind(config(tmp_path), batches=slow, brokers=brokers(100, 60_000))) == ["SLOW_SINK", "HOT_PARTITION"]


def test_few_partitions_are_found_where_each_is_read_by_one_task(tmp_path: Path) -> None:
    few = behind(config(tmp_path, sinks=TOPIC), brokers=brokers(50_000), cores=4)
    [cause] = causes(few)
    assert (cause.code, cause.summary) == ("FEW_PARTITIONS", "1 partition for 4 cores")
    assert cause.change.endswith("--alter --topic orders --partitions 4")
    assert codes(caught_up(few)) == []
    assert codes(replace(few, cores=1)) == []
    state = config(tmp_path, transforms=[WATERMARK, {"dedupe": {"keys": ["id"], "within": "1 hour"}}])
    assert codes(behind(state, brokers=brokers(50_000))) == ["FEW_PARTITIONS"]
    # Without state and without transactions a partition is split among the slots.
    assert codes(behind(config(tmp_path), brokers=brokers(50_000), cores=4)) == []


def joined(folder: Path, **keys: Any) -> Any:
    def side(topic: str) -> dict[str, Any]:
        decode = {"format": "json", "schema": COLUMNS if topic == "orders" else "who STRING, name STRING, at TIMESTAMP"}
        source = {"type": "kafka", "brokers": "127.0.0.1:1", "topics": [topic], "decode": decode}
        return {**source, "transforms": [WATERMARK]}

    rename = {"rename": {"at": "seen_at"}}
    people = {**side("people"), "transforms": [rename, {"watermark": {"column": "seen_at", "delay": "10 minutes"}}]}
    join = {"join": {"left": "orders", "right": "people", "on": ["who"], "within": "1 hour"}}
    return config(folder, sources={"orders": side("orders"), "people": people}, transforms=[join], **keys)


def test_skewed_keys_are_found_where_one_task_of_a_join_has_the_rows(tmp_path: Path) -> None:
    pipeline = joined(tmp_path)
    skewed = behind(pipeline, batches=batches(slot_rows_out=(9_000, 400, 300, 300)))
    [cause] = causes(skewed)
    assert cause.code == "SKEWED_KEYS"
    assert cause.summary == "the join by who: one task has 90 % of the rows"
    assert cause.change.startswith('sources.orders.transforms: add - where: "who IS NOT NULL')
    assert codes(caught_up(skewed)) == []
    assert codes(behind(pipeline, batches=batches(slot_rows_out=(2_800, 2_500, 2_400, 2_300)))) == []
    assert codes(behind(pipeline, batches=batches(slot_rows_out=(90, 3)))) == []
    two_tasks = joined(tmp_path, spark={"spark.sql.shuffle.partitions": "2"})
    assert codes(behind(two_tasks, batches=batches(slot_rows_out=(9_000, 1_000)))) == ["SKEWED_KEYS"]
    one_task = joined(tmp_path, spark={"spark.sql.shuffle.partitions": "1"})
    assert codes(behind(one_task, batches=batches(slot_rows_out=(10_000,)))) == []
    # Skewed, and over in no time: it is not what the batches are long by.
    quick = batches(slot_rows_out=(9_000, 400, 300, 300), slot_seconds=(1.5, 0.2))
    assert codes(behind(pipeline, batches=quick)) == []
    # Without a step that brings equal keys together it is the partitions that differ.
    assert codes(behind(config(tmp_path), batches=batches(slot_rows_out=(9_000, 400)))) == []
