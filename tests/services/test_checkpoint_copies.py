"""Backup, restore, fork and adopt with a real broker and Delta tables: each record is there once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import COLUMNS
from tests.orders import drain, ids, order
from tests.sessions import ON_BOTH_LONG
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.errors import PenstockError
from penstock.model import TopicPartition
from penstock.ops.checkpoint.adopt import apply_adopt, plan_adopt
from penstock.ops.checkpoint.backup import apply_backup, plan_backup
from penstock.ops.checkpoint.fork import apply_fork, plan_fork
from penstock.ops.checkpoint.restore import apply_restore, plan_restore

pytestmark = pytest.mark.services
Write = Callable[..., Path]
START = datetime(2026, 1, 1, tzinfo=UTC)


def order_at(minutes: float, number: int) -> dict[str, Any]:
    return order(number, event_time=(START + timedelta(minutes=minutes)).isoformat())


def refused(call: Callable[[], object]) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        call()
    return raised.value


@ON_BOTH_LONG
def test_restore_of_an_older_backup_leaves_each_record_once(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    file = pipeline_file(topic)
    config = load(file)
    for batch in range(4):
        topics.send(topic, [order(10 * batch + n) for n in range(10)])
        drain(file, session)
        if batch == 1:
            apply_backup(plan_backup(config))
    done = apply_restore(plan_restore(config))
    assert (done.backup.batch, done.reconciled.forward and done.reconciled.forward.batch_id) == (1, 3)
    topics.send(topic, [order(40 + n) for n in range(10)])
    assert drain(file, session).rows_in == 10
    checkpoint = SparkCheckpoint(config.checkpoint)
    assert (checkpoint.last_begun(), checkpoint.last_committed()) == (4, 4)
    assert ids(file) == list(range(50))
    # The driver dies between the sink's commit and Spark's: the batch is open in the restored checkpoint too.
    shutil.rmtree(config.checkpoint)
    apply_restore(plan_restore(config))
    Path(config.checkpoint, "commits/4").unlink()
    assert drain(file, session).rows_in == 0
    assert ids(file) == list(range(50))


def windows(file: Path, table: str) -> list[tuple[int, int]]:
    rows = read_table(file.parent / table, ["window_start", "orders"]).to_pylist()
    return sorted(((row["window_start"] - START) // timedelta(minutes=10), row["orders"]) for row in rows)


@pytest.mark.long
def test_state_restored_or_forked_gives_each_window_once(
    spark: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    watermark = {"watermark": {"column": "event_time", "delay": "5 minutes"}}
    window = {"size": "10 minutes", "aggregates": {"orders": "count(*)"}}
    file = pipeline_file(topic, transforms=[watermark, {"window": window}])
    config = load(file)
    for batch in range(3):
        topics.send(topic, [order_at(10 * batch + n, n) for n in range(batch + 1)])
        drain(file, spark)
        if batch == 0:
            apply_backup(plan_backup(config))
    assert len(apply_restore(plan_restore(config)).reconciled.again) > 1
    topics.send(topic, [order_at(100, 0)])
    drain(file, spark)
    assert SparkCheckpoint(config.checkpoint).again() == []
    assert windows(file, "lake/out") == [(0, 1), (1, 2), (2, 3)]

    # The window of the last event is in the state of the fork, and nowhere else.
    plan = plan_fork(config, str(tmp_path / "forks/state"))
    apply_fork(plan)
    assert "SINK_HOLDS_OTHER_RUN" in plan.sinks[0]
    topics.send(topic, [order_at(101, 1), order_at(200, 0)])
    sinks = [{"name": "forked", "type": "delta", "path": "lake/forked"}]
    drain(pipeline_file(topic, checkpoint="forks/state", transforms=config_steps(file), sinks=sinks), spark)
    assert windows(file, "lake/forked") == [(10, 2)]


def config_steps(file: Path) -> Any:
    return yaml.safe_load(file.read_text())["transforms"]


def test_fork_behind_a_batch_or_at_offsets_starts_there(
    session: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(2)
    file = pipeline_file(topic)
    for batch in range(2):
        topics.send(topic, [order(10 * batch + n) for n in range(10)])
        drain(file, session)
    topics.send(topic, [order(20 + n) for n in range(10)])
    config = load(file)

    plan = plan_fork(config, str(tmp_path / "forks/last"))
    apply_fork(plan)
    assert "ends exactly there" in plan.sinks[0]
    assert drain(pipeline_file(topic, checkpoint="forks/last"), session).rows_in == 10
    assert ids(file) == list(range(30))

    first = plan_fork(config, str(tmp_path / "forks/first"), at=0)
    apply_fork(first)
    assert "20 of its offsets would be read again" in first.sinks[0]
    again = pipeline_file(topic, name="again", checkpoint="forks/first")
    assert drain(again, session).rows_in == 20
    assert refused(lambda: plan_fork(config, str(tmp_path / "forks/first"))).code == "CHECKPOINT_OCCUPIED"

    spec = f"{topic}:0=14,{topic}:1=12"
    apply_fork(plan_fork(config, str(tmp_path / "forks/offsets"), offsets=spec))
    sinks = [{"name": "out", "type": "delta", "path": "lake/some"}]
    some = pipeline_file(topic, name="some", checkpoint="forks/offsets", sinks=sinks)
    assert drain(some, session).rows_in == 4
    assert ids(some, "lake/some") == [25, 27, 28, 29]
    beyond = refused(lambda: plan_fork(config, str(tmp_path / "forks/no"), offsets=f"{topic}:0=14,{topic}:1=99"))
    assert (beyond.code, beyond.context) == (
        "OFFSETS_OUTSIDE_LOG", {f"{topic}[1]": "asked for 99, the log holds 0-15"},
    )  # fmt: skip
    partly = refused(lambda: plan_fork(config, str(tmp_path / "forks/no"), offsets=f"{topic}:0=14"))
    assert (partly.code, partly.context["not named"]) == ("OFFSETS_INCOMPLETE", f"{topic}[1]")
    later = plan_fork(config, str(tmp_path / "forks/no"), offsets="2099-01-01T00:00:00Z")
    assert later.starts == ({TopicPartition(topic, 0): 15, TopicPartition(topic, 1): 15},)
    assert refused(lambda: plan_fork(config, str(tmp_path / "forks/no"), at=7)).code == "BATCH_MISSING"


@pytest.mark.long
def test_adopt_goes_on_in_the_table_of_a_job_written_by_hand(
    spark: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(2)

    def hand_written_job() -> None:
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.brokers)
        raw = kafka.option("subscribe", topic).option("startingOffsets", "earliest").load()
        rows = raw.selectExpr(f"from_json(CAST(value AS STRING), '{COLUMNS}') AS o").select("o.*")
        writer = rows.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "old"))
        writer.trigger(availableNow=True).start(str(tmp_path / "lake/out")).awaitTermination()

    for batch in range(2):
        topics.send(topic, [order(10 * batch + n) for n in range(10)])
        hand_written_job()
    topics.send(topic, [order(20 + n) for n in range(10)])
    sinks = [{"name": "out", "type": "delta", "path": "lake/out", "coordinates": False}]
    file = pipeline_file(topic, sinks=sinks)
    config, old = load(file), str(tmp_path / "old")
    before = sorted(str(path) for path in Path(old).rglob("*"))

    plan = plan_adopt(config, old)
    assert (plan.after, sum(sum(one.values()) for one in plan.starts)) == (1, 20)
    apply_adopt(plan)
    assert drain(file, spark).rows_in == 10
    assert ids(file) == list(range(30))
    assert sorted(str(path) for path in Path(old).rglob("*")) == before
    assert refused(lambda: plan_adopt(config, old)).code == "CHECKPOINT_OCCUPIED"

    fresh = load(pipeline_file(topic, checkpoint="checkpoints/fresh", sinks=sinks))
    Path(old, "commits/1").unlink()
    assert refused(lambda: plan_adopt(fresh, old)).code == "ADOPT_BATCH_OPEN"
    starts = [sum(plan_adopt(fresh, old, how).starts[0].values()) for how in ("again", "skip")]  # type: ignore[arg-type]
    assert starts == [10, 20]
    other = load(pipeline_file(topics.create(1), checkpoint="checkpoints/fresh", sinks=sinks))
    assert refused(lambda: plan_adopt(other, old, "skip")).code == "ADOPT_OTHER_TOPICS"
