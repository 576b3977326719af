"""Checkpoints broken by real faults: `verify` names each, `run` refuses it, the way out works, the table is right.

Files are cut and lost, a driver is killed, a disk fills up, a topic is made again, retention passes, a table goes back.
Where a driver has to die at one exact moment, it is made to, or the commit it did not write is taken away. Afterwards
every record is in the table once, or in the gaps.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from deltalake import DeltaTable
from tests.crash.broken import TWO_SINKS, Case
from tests.crash.harness import Crashes, wait_for
from tests.orders import order
from tests.sessions import ON_BOTH_LONG
from tests.spark_checkpoint import lose
from tests.tables import read_table

from penstock.config import load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.ops.checkpoint.repair import verify_checkpoint
from penstock.ops.snapshot import take_snapshot
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = [pytest.mark.services, pytest.mark.crash]
long = pytest.mark.long
New = Callable[..., Case]
REPAIR = "penstock checkpoint repair FILE"
RECORD = {"on_data_loss": "record"}


@pytest.fixture
def case(spark: Any, topics: Any, pipeline_file: Callable[..., Path]) -> New:
    """Makes a pipeline over a topic of its own; keywords are those of the pipeline file."""

    def make(partitions: int = 2, **keys: Any) -> Case:
        return Case(topics, spark, topics.create(partitions), pipeline_file, keys)

    return make


@pytest.fixture
def case_on_session(session: Any, topics: Any, pipeline_file: Callable[..., Path]) -> New:
    """The same on the stand-in for Spark, or on Spark where a mark asks for it."""

    def make(partitions: int = 2, **keys: Any) -> Case:
        return Case(topics, session, topics.create(partitions), pipeline_file, keys)

    return make


def cut(root: Path, name: str, keep: float) -> None:
    """A write of which only the beginning came to the disk."""
    file = root / name
    body = file.read_bytes()
    file.write_bytes(body[: int(len(body) * keep)])


def zeroed(root: Path, name: str) -> None:
    """A file whose length came to the disk and whose bytes did not, as after a power cut."""
    file = root / name
    file.write_bytes(b"\0" * file.stat().st_size)


def open_and_zeroed(root: Path, last: int) -> None:
    lose(root, f"commits/{last}")
    zeroed(root, f"offsets/{last}")


DAMAGES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "offsets_cut": ("CHECKPOINT_FILE_BROKEN", lambda root, last: cut(root, f"offsets/{last}", 0.6)),
    "offsets_empty": ("CHECKPOINT_FILE_BROKEN", lambda root, last: cut(root, f"offsets/{last}", 0)),
    "open_offsets_zeroed": ("CHECKPOINT_FILE_BROKEN", open_and_zeroed),
    "offsets_before_cut": ("CHECKPOINT_FILE_BROKEN", lambda root, last: cut(root, f"offsets/{last - 1}", 0.6)),
    "offsets_before_lost": ("CHECKPOINT_GAP", lambda root, last: lose(root, f"offsets/{last - 1}")),
    "offsets_lost_commit_there": ("CHECKPOINT_GAP", lambda root, last: lose(root, f"offsets/{last}")),
    "commit_cut": ("CHECKPOINT_FILE_BROKEN", lambda root, last: cut(root, f"commits/{last}", 0.6)),
    "metadata_lost": ("CHECKPOINT_METADATA_LOST", lambda root, last: lose(root, "metadata")),
    "metadata_empty": ("CHECKPOINT_FILE_BROKEN", lambda root, last: cut(root, "metadata", 0)),
}


@pytest.mark.parametrize(
    ("damage", "session"),
    [("offsets_cut", "local"), *(pytest.param(name, "spark", marks=long) for name in DAMAGES)],
    indirect=["session"],
)
def test_run_with_a_damaged_file_is_refused_and_right_after_the_repair(case_on_session: New, damage: str) -> None:
    one = case_on_session(sinks=TWO_SINKS)
    one.go_on(3)
    code, hurt = DAMAGES[damage]
    hurt(one.root, one.last)
    one.send()
    found = one.blocked(code, REPAIR)
    assert {f["way_out"] for f in found.findings if f["blocks"]} == {REPAIR}
    one.follow(REPAIR)
    assert one.verify().status == 0
    one.drain()
    one.right("lake/out", "lake/more")


@long
def test_run_with_an_empty_note_of_the_topics_is_refused_until_a_backup_is_restored(case: New) -> None:
    one = case()
    one.go_on()
    one.done("checkpoint", "backup", "FILE")
    one.go_on()
    cut(one.root, ".penstock.topics", 0)
    one.send()
    found = one.blocked("CHECKPOINT_FILE_BROKEN", "penstock checkpoint restore FILE")
    one.follow(found.way_out("CHECKPOINT_FILE_BROKEN"))
    assert one.verify().status == 0
    one.drain()
    one.right()


@long
def test_run_with_an_older_copy_put_back_is_refused_and_right_after_the_repair(case: New) -> None:
    one = case(sinks=TWO_SINKS)
    one.go_on(2)
    copy = one.root.with_name("copy")
    shutil.copytree(one.root, copy)
    one.go_on(3)
    shutil.rmtree(one.root)
    shutil.copytree(copy, one.root)
    one.send()
    found = one.blocked("CHECKPOINT_WENT_BACK", REPAIR)
    one.follow(found.way_out("CHECKPOINT_WENT_BACK"))
    assert one.verify().status == 0
    one.drain()
    one.right("lake/out", "lake/more")


@long
@pytest.mark.parametrize("way", ["penstock checkpoint restore FILE", "penstock run FILE --resume-from-table"])
def test_run_without_its_checkpoint_is_refused_and_right_after_either_way_out(case: New, way: str) -> None:
    one = case()
    one.go_on()
    one.done("checkpoint", "backup", "FILE")
    one.go_on(2)
    shutil.rmtree(one.root)
    one.send()
    one.blocked("SINK_HOLDS_OTHER_RUN", way)
    one.follow(way)
    one.drain()
    assert one.verify().status == 0
    one.go_on()
    one.right()


@long
@pytest.mark.parametrize("point", ["offsets", "staged", "between", "committed"])
def test_driver_killed_leaves_an_open_batch_and_nothing_that_blocks(case: New, point: str) -> None:
    one = case(sinks=TWO_SINKS)
    one.go_on(2)
    one.send()
    crashes = Crashes(one.file)
    try:
        crashes.kill_at(point, whom="all")
        wait_for(lambda: not crashes.processes(), 60, "the end of every process of the run")
    finally:
        crashes.end_all()
    found = one.verify()
    assert (found.status, found.blocking) == (0, set())
    assert found.state == "batch 1 committed, batch 2 begun"
    one.done("run", "FILE")
    assert one.last == 2
    one.right("lake/out", "lake/more")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own, of this size, at a folder; skipped where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@long
def test_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(case: New) -> None:
    one = case(partitions=1, trigger={"every": "20 ms"})
    with small_disk(one.root, "160k"):
        one.send()
        with pytest.raises(PenstockError) as full:
            fill_up(one)
        assert (full.value.code, full.value.exit_code) == ("DISK_FULL", 4)
        assert "free space" in (full.value.hint or "")
        found = one.verify()
        assert found.blocking == set()
        one.refused("CHECKPOINT_UNWRITABLE", "No space left on device", "is the disk full")
        (one.root / "ballast").unlink()
        one.change(trigger={"available_now": True})
        one.drain()
        one.right()
        # What the writes left that failed is in nobody's way, and a repair takes it away.
        if one.verify().findings:
            one.follow(REPAIR)
        assert one.verify().findings == []
        one.go_on()
        one.right()


def fill_up(one: Case) -> None:
    """Run while the disk under the checkpoint fills up, to the last byte."""

    def more(event: Event) -> None:
        if isinstance(event, BatchDone) and one.sent < 500:
            one.send(1)
            if one.sent == 15:
                with suppress_full(), (one.root / "ballast").open("wb", buffering=0) as ballast:
                    while ballast.write(b"x" * 512):
                        pass

    run(load(one.file), RunOptions(), more, session=one.spark)


@contextmanager
def suppress_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        assert error.errno == 28, error


@pytest.mark.parametrize(
    "records", [pytest.param(12, marks=long), pytest.param(45, marks=long)], ids=["shorter", "longer"]
)
def test_topic_made_again_is_refused_then_read_from_its_start_with_the_gap_told(case: New, records: int) -> None:
    one = case(partitions=1)
    one.go_on(3)
    one.topics.create_again(one.topic, 1)
    one.send(records)
    one.blocked("TOPIC_RECREATED", "on_data_loss: record", "penstock gaps FILE")
    one.change(source=RECORD)
    assert one.verify().status == 0
    one.drain()
    one.right()
    one.done("gaps", "FILE")
    assert one.gaps() == [(0, 30, None)]
    one.change(source={"on_data_loss": "fail"})
    one.go_on()
    one.right()


@ON_BOTH_LONG
def test_topic_made_again_under_an_open_batch_is_read_once(case_on_session: New) -> None:
    """The batch that was begun ends where the old log did, beyond the end of the new one."""
    one = case_on_session(partitions=1, source=RECORD)
    one.go_on(2)
    old = one.send()
    killed_before_any_sink(one)
    one.topics.create_again(one.topic, 1)
    new = one.send(12)
    one.drain()
    assert one.ids() == [*range(20), *new]
    assert one.gaps() == [(0, 20, None)]
    assert old.stop == new.start
    new = range(new.start, one.send(30).stop)
    one.drain()
    assert one.ids() == [*range(20), *new]


def killed_before_any_sink(one: Case) -> None:
    """A batch is begun, and no sink has it: its run ends when it is to be staged."""
    from penstock.engine.batch import Batch

    def die(*_: Any) -> None:
        raise RuntimeError("the driver dies here")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Batch, "_stage", die)
        with pytest.raises(PenstockError, match="dies here"):
            one.drain()
    assert one.checkpoint.last_begun() == one.last + 1


@long
def test_topic_made_again_when_one_of_two_sinks_has_the_open_batch_leaves_a_gap_in_the_other(case: New) -> None:
    one = case(partitions=1, source=RECORD, sinks=TWO_SINKS)
    one.go_on(2)
    one.send()
    killed_before_the_second_sink(one)
    one.topics.create_again(one.topic, 1)
    new = one.send(50)
    one.drain()
    assert one.ids("lake/out") == [*range(30), *new]
    assert one.ids("lake/more") == [*range(20), *new]
    assert one.gaps() == [(0, 20, 30), (0, 30, None)]


def killed_before_the_second_sink(one: Case) -> None:
    from penstock.sinks.delta import DeltaSink

    real = DeltaSink.land

    def land(self: Any, position: Any, manifests: Any, onto: Any) -> None:
        # Claims land without rows, in every sink, before any sink gets rows.
        if self.name == "more" and manifests:
            raise RuntimeError("the driver dies here")
        real(self, position, manifests, onto)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeltaSink, "land", land)
        with pytest.raises(PenstockError, match="dies here"):
            one.drain()


@long
@pytest.mark.parametrize("loss", ["fail", "record"])
def test_topic_made_again_under_a_run_and_grown_past_it_is_not_gone_on_with(case: New, loss: str) -> None:
    one = case(partitions=1, trigger={"every": "20 ms"}, source={"on_data_loss": loss})
    one.send()
    stop, again = StopRequest(), threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            if again.is_set():
                stop.ask()
            else:
                one.topics.create_again(one.topic, 1)
                one.send(15)
                again.set()

    if loss == "fail":
        with pytest.raises(PenstockError) as refused:
            run(load(one.file), RunOptions(), listen, stop, session=one.spark)
        assert refused.value.code == "TOPIC_RECREATED"
        assert one.ids() == [*range(10)]
        one.blocked("TOPIC_RECREATED", "on_data_loss: record")
    else:
        run(load(one.file), RunOptions(), listen, stop, session=one.spark)
        one.right()
        assert one.gaps() == [(0, 10, None)]


def retention_passes(one: Case, **offsets: int) -> None:
    """Remove every record before an offset: `p0=13`."""
    where = [ClientPartition(one.topic, int(name[1:]), offset) for name, offset in offsets.items()]
    for future in one.topics.admin.delete_records(where).values():
        future.result(10)


@long
def test_retention_past_the_offsets_is_refused_then_recorded_to_the_offset(case: New) -> None:
    one = case()
    one.go_on(2)
    one.send()
    retention_passes(one, p0=13)
    found = one.verify()
    assert found.blocking == {"OFFSETS_BEFORE_LOG"}
    assert "on_data_loss: record" in found.way_out("OFFSETS_BEFORE_LOG")
    one.refused("DATA_LOSS", "10-13", "on_data_loss: record")
    one.change(source=RECORD)
    assert one.verify().status == 0
    one.drain()
    assert one.gaps() == [(0, 10, 13)]
    assert one.ids() == sorted({*range(30)} - {20, 22, 24})
    one.change(source={"on_data_loss": "fail"})
    assert one.verify().findings == []


WINDOWS = [
    {"watermark": {"column": "event_time", "delay": "5 minutes"}},
    {"window": {"size": "10 minutes", "aggregates": {"orders": "count(*)"}}},
]


@pytest.mark.long
def test_retention_past_a_batch_that_only_the_state_has_not_is_told(case: New) -> None:
    """Every sink has the batch, so no row of it is written again; what the windows count is read again."""
    one = case(partitions=1, transforms=WINDOWS)
    one.go_on(2)
    lose(one.root, f"commits/{one.last}")
    retention_passes(one, p0=15)
    assert [f.code for f in verify_checkpoint(take_snapshot(load(one.file))).findings] == ["OFFSETS_BEFORE_LOG"]
    with pytest.raises(PenstockError) as refused:
        one.drain()
    assert refused.value.code == "DATA_LOSS"
    one.change(source=RECORD)
    one.drain()
    assert one.gaps() == [(0, 10, 15)]
    one.topics.send(one.topic, [{**order(0), "event_time": "2026-01-02T00:00:00Z"}])
    one.drain()
    assert read_table(one.file.parent / "lake/out", ["orders"]).to_pylist() == [{"orders": 15}]


@long
def test_partition_taken_out_of_the_file_is_refused_and_right_when_it_is_put_back(case: New) -> None:
    one = case(partitions=2)
    one.go_on(2)
    one.change(source={"assign": {one.topic: [0]}})
    one.send()
    one.blocked("PARTITION_GONE", "add the topic to source.topics", "on_data_loss: record")
    one.change(source={"assign": {one.topic: [0, 1]}})
    assert one.verify().status == 0
    one.drain()
    one.right()


@long
def test_partition_taken_out_with_a_gap_and_put_back_is_refused_then_read_on_where_it_was_left(case: New) -> None:
    one = case(partitions=2, source=RECORD)
    one.go_on(2)
    one.change(source={"assign": {one.topic: [0]}})
    one.send()
    one.drain()
    assert one.gaps() == [(1, 10, None)]
    one.change(source={"assign": {one.topic: [0, 1]}})
    found = one.blocked("PARTITION_BACK", "penstock checkpoint fork FILE")
    one.follow(found.way_out("PARTITION_BACK").replace("PATH", "checkpoints/fork"))
    one.change(checkpoint="checkpoints/fork")
    one.drain()
    one.right()


@long
def test_topic_made_again_with_fewer_partitions_is_refused_then_read_from_its_start(case: New) -> None:
    one = case(partitions=2)
    one.go_on(2)
    one.topics.create_again(one.topic, 1)
    one.send(25)
    one.blocked("TOPIC_RECREATED", "on_data_loss: record")
    one.change(source=RECORD)
    one.drain()
    one.right()
    assert one.gaps() == [(0, 10, None), (1, 10, None)]


@long
def test_table_that_was_restored_is_refused_and_caught_up(case: New) -> None:
    one = case()
    one.go_on(4)
    put_back(one, 2)
    one.send()
    one.blocked("TARGET_WENT_BACK", "penstock run FILE --catch-up")
    assert one.ids() == [*range(20)]
    one.drain(catch_up=True)
    one.right()
    assert one.verify().status == 0
    one.go_on()
    one.right()


def put_back(one: Case, batches: int, table: str = "lake/out") -> None:
    """RESTORE the table to what it was so many batches ago."""
    there = DeltaTable(one.file.parent / table)
    there.restore(there.version() - batches)


@long
def test_table_and_checkpoint_both_put_back_agree_and_a_run_reads_the_rest_again(case: New) -> None:
    one = case()
    one.go_on(2)
    copy = one.root.with_name("copy")
    shutil.copytree(one.root, copy)
    one.go_on(2)
    put_back(one, 2)
    shutil.rmtree(one.root)
    shutil.copytree(copy, one.root)
    assert one.verify().blocking == set()
    one.drain()
    one.right()
    one.go_on()
    one.right()


@long
def test_one_of_two_tables_restored_is_refused_and_caught_up_alone(case: New) -> None:
    one = case(partitions=1, sinks=TWO_SINKS)
    one.go_on(4)
    put_back(one, 2, "lake/more")
    found = one.blocked("TARGET_WENT_BACK", "penstock run FILE --catch-up")
    assert one.ids("lake/more") == [*range(20)]
    assert "20-40" in str(found.findings)
    one.send()
    one.drain(catch_up=True)
    one.right("lake/out", "lake/more")


@long
def test_table_that_was_dropped_is_refused_and_filled_again(case: New) -> None:
    one = case(partitions=1)
    one.go_on(2)
    shutil.rmtree(one.file.parent / "lake/out")
    one.blocked("TARGET_WENT_BACK", "penstock run FILE --catch-up")
    one.drain(catch_up=True)
    one.right()
    one.go_on()
    one.right()
