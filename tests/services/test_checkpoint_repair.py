"""Damaged checkpoints of a real pipeline: found, put right, and the next run leaves the tables right to the row."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.cli.command import command
from tests.orders import drain, ids, order
from tests.services.running import wait_for
from tests.sessions import ON_BOTH_LONG
from tests.spark_checkpoint import lose, write_checkpoint

from penstock.assembly.targets import targets_of
from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.engine.patience import StopRequest
from penstock.model import COORDINATES_FIELD, BatchToken, Guarantee, OffsetRange, SlotAttempt, TopicPartition
from penstock.ops.checkpoint.repair import apply_repair, plan_repair, verify_checkpoint
from penstock.ops.checkpoint.show import show_checkpoint
from penstock.ops.snapshot import take_snapshot
from penstock.preflight.options import RunOptions
from penstock.preflight.standings import Standing, standings
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]
SINKS = [
    {"name": "out", "type": "delta", "path": "lake/out", "mode": "append"},
    {"name": "files", "type": "parquet", "path": "lake/files"},
]


def cut(root: Path, *names: str) -> None:
    """Files that came to no bytes, as a full disk leaves them."""
    for name in names:
        (root / name).write_bytes(b"")
        ((root / name).parent / f".{Path(name).name}.crc").unlink(missing_ok=True)


def empty_offsets_that_the_sinks_have(root: Path, last: int) -> None:
    cut(root, f"offsets/{last}")
    lose(root, f"commits/{last}")


def empty_offsets_that_no_sink_has(root: Path, last: int) -> None:
    cut(root, f"offsets/{last + 1}")


def offsets_before_the_newest_gone(root: Path, last: int) -> None:
    lose(root, f"offsets/{last - 1}")


def newest_offsets_gone(root: Path, last: int) -> None:
    lose(root, f"offsets/{last}")


def empty_commit(root: Path, last: int) -> None:
    cut(root, f"commits/{last}")


def metadata_gone(root: Path, last: int) -> None:
    lose(root, "metadata")


def older_copy_put_back(root: Path, last: int) -> None:
    lose(root, *(f"{log}/{batch}" for log in ("offsets", "commits") for batch in (last - 2, last - 1, last)))


DAMAGES = {
    empty_offsets_that_the_sinks_have: "CHECKPOINT_FILE_BROKEN",
    empty_offsets_that_no_sink_has: "CHECKPOINT_FILE_BROKEN",
    offsets_before_the_newest_gone: "CHECKPOINT_GAP",
    newest_offsets_gone: "CHECKPOINT_GAP",
    empty_commit: "CHECKPOINT_FILE_BROKEN",
    metadata_gone: "CHECKPOINT_METADATA_LOST",
    older_copy_put_back: "CHECKPOINT_WENT_BACK",
}


@ON_BOTH_LONG
def test_repair_damaged_checkpoints_go_on_with_the_tables_right_to_the_row(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(2)
    file = pipeline_file(topic, sinks=SINKS)
    config, sent = load(file), 0
    root = Path(config.checkpoint)

    def send_and_drain() -> None:
        nonlocal sent
        topics.send(topic, [order(sent + n) for n in range(5)])
        sent += 5
        drain(file, session)

    for _ in range(3):
        send_and_drain()
    assert verify_checkpoint(take_snapshot(config)).findings == ()
    for damage, code in DAMAGES.items():
        last = SparkCheckpoint(config.checkpoint).last_committed()
        assert last is not None
        damage(root, last)
        found = verify_checkpoint(take_snapshot(config))
        assert code in [one.code for one in found.findings if one.blocks], damage
        assert {one.way_out for one in found.findings if one.blocks} == {"penstock checkpoint repair FILE"}, damage
        done = apply_repair(plan_repair(take_snapshot(config, brokers=None)))
        assert (done.refused, done.left) == ((), ()), damage
        assert not verify_checkpoint(take_snapshot(config)).blocks, damage
        send_and_drain()
        assert ids(file) == [*range(sent)], damage
        files = ds.dataset(root.parents[1] / "lake/files", format="parquet").to_table(["order_id"], use_threads=False)
        assert sorted(files.column(0).to_pylist()) == [*range(sent)], damage


def moved(topics: Any, topic: str, offset: int) -> None:
    """Retention has passed everything before this offset of partition 0."""
    from confluent_kafka import TopicPartition as ClientPartition

    for future in topics.admin.delete_records([ClientPartition(topic, 0, offset)]).values():
        future.result(10)


def test_verify_holds_the_offsets_against_the_brokers(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    topics.send(topic, [order(n) for n in range(20)])
    file = pipeline_file(topic)
    config = load(file)
    write_checkpoint(Path(config.checkpoint), [{0: 4, 1: 4}, {0: 8, 1: 9}], topic=topic)
    assert [(one.code, one.blocks) for one in verify_checkpoint(take_snapshot(config)).findings] == [
        ("SINK_HOLDS_NOTHING", False)
    ]
    shown = show_checkpoint(take_snapshot(config))
    assert ([p.lag for p in shown.partitions], shown.lag) == ([2, 1], 3)

    moved(topics, topic, 9)
    write_checkpoint(Path(config.checkpoint), [{0: 4, 1: 4}, {0: 8, 1: 11, 2: 1}], topic=topic)
    done = command("checkpoint", "verify", "--json", file.name, folder=file.parent)
    body = json.loads(done.stdout)
    assert (done.returncode, body["blocks"]) == (3, True)
    assert {one["code"]: one["context"] for one in body["findings"] if one["blocks"]} == {
        "OFFSETS_BEFORE_LOG": {f"{topic}[0] 8": "the log holds 9-10"},
        "OFFSETS_BEYOND_LOG": {f"{topic}[1] 11": "the log holds 0-10"},
        "PARTITION_GONE": {f"{topic}[2] from 1": "not on the brokers, or not in the file"},
    }
    record = load(pipeline_file(topic, source={"on_data_loss": "record"}))
    assert not verify_checkpoint(take_snapshot(record)).blocks


def test_verify_tells_a_topic_that_was_made_again(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(10)])
    config = load(pipeline_file(topic))
    write_checkpoint(Path(config.checkpoint), [{0: 4}, {0: 8}], topic=topic)
    SparkCheckpoint(config.checkpoint).note_topic_ids({topic: "of-the-old-one"})
    assert [one.code for one in verify_checkpoint(take_snapshot(config)).findings if one.blocks] == ["TOPIC_RECREATED"]


def test_verify_open_batch_that_every_sink_has_is_not_read_again(
    session: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(10)])
    file = pipeline_file(topic)
    config = load(file)
    drain(file, session)
    lose(Path(config.checkpoint), "commits/0")
    moved(topics, topic, 6)
    assert verify_checkpoint(take_snapshot(config)).findings == ()
    shown = show_checkpoint(take_snapshot(config))
    assert shown.open is not None
    assert (shown.open.batch, shown.agree) == (0, True)
    assert {at: p.begun for p in shown.partitions for at in [TopicPartition(p.topic, p.partition)]} == {
        TopicPartition(topic, 0): 10
    }
    shutil.rmtree(tmp_path / "lake/out")
    assert [one.code for one in verify_checkpoint(take_snapshot(config)).findings if one.blocks] == [
        "OFFSETS_BEFORE_LOG"
    ]


def test_standing_of_a_torn_kafka_sink_tells_the_batch_that_some_slot_has(
    topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    source, target = topics.create(2), topics.create(1)
    name = f"torn-{target}"
    kafka = {"name": "out", "type": "kafka", "topic": target, "key": "order_id", "slots": 2}
    file = pipeline_file(source, name, sinks=[kafka], quarantine=None)
    pipeline = targets_of(load(file))
    (sink,) = pipeline.sinks
    assert standings(pipeline) == [Standing("out", Guarantee.EXACTLY_ONCE, None, None)]
    schema = pa.schema([pa.field("order_id", pa.int64()), COORDINATES_FIELD])
    sink.prepare(schema)
    token = BatchToken(name, "q", 0, (OffsetRange(source, 0, 0, 1), OffsetRange(source, 1, 0, 1)))
    sink.stage(token, SlotAttempt(0, "a"), schema).finish()
    (torn,) = standings(pipeline)
    assert (torn.token, torn.newest, torn.torn) == (None, token, "0: batch 0, 1: none")


def test_verify_and_show_beside_a_running_stream_find_nothing(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    config, stop = load(pipeline_file(topic, sinks=SINKS, trigger={"every": "50 ms"})), StopRequest()
    runner = threading.Thread(target=run, args=(config, RunOptions()), kwargs={"stop": stop, "session": session})
    checkpoint = SparkCheckpoint(config.checkpoint)
    topics.send(topic, [order(0)])
    runner.start()
    try:
        wait_for(lambda: checkpoint.last_committed() is not None, "the first batch")
        first, looks = checkpoint.last_committed() or 0, 0
        while (checkpoint.last_committed() or 0) < first + 5:
            topics.send(topic, [order(looks)])
            looks += 1
            found = verify_checkpoint(take_snapshot(config))
            assert found.findings == ()
            assert "; in use by process" in found.state
            shown = show_checkpoint(take_snapshot(config))
            assert (shown.agree, shown.problems) == (True, ())
    finally:
        stop.ask()
        runner.join(60)
    assert looks >= 4
