"""A pipeline whose tables, checkpoint, quarantine and backups are in HDFS, and what is told where that cannot be."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from tests.hdfs_server import running_hdfs
from tests.orders import order
from tests.services.lakes import every_table
from tests.services.running import Running

from penstock.checkpoint import checkpoint_lock
from penstock.config import load
from penstock.errors import MissingError
from penstock.ops.checkpoint.backup import apply_backup, backups_there, plan_backup
from penstock.ops.plan import plan_run
from penstock.storage import ChangedError, Storage
from penstock.storage.reaching import check_reachable
from penstock.supervision.run import run

pytestmark = [pytest.mark.services, pytest.mark.long]


@pytest.fixture
def on_hdfs(hdfs: Any, pipeline_file: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Writes a pipeline with everything in one folder of HDFS."""

    def write(topic: str, bucket: str, **keys: Any) -> Path:
        def at(path: str) -> str:
            return str(hdfs.uri(bucket, path))

        told = {
            "storage": hdfs.section,
            "checkpoint": at("checkpoints/orders"),
            "checkpoint_backup": {"every": "1 hour", "to": at("backups")},
            "quarantine": {"table": at("lake/quarantine")},
            "sinks": every_table(at, f"sqlite:///{tmp_path}/catalog.db"),
        }
        return pipeline_file(topic, **{**told, **keys})

    return write


def held(hdfs: Any, bucket: str, table: str) -> pa.Table:
    rows = DeltaTable(hdfs.uri(bucket, f"lake/{table}"), storage_options=hdfs.storage.for_delta())
    found = QueryBuilder().register("held", rows).execute("SELECT * FROM held")
    return pa.RecordBatchReader.from_stream(found).read_all()


def test_everything_on_hdfs_run_twice_is_there_once(
    hdfs: Any, spark: Any, topics: Any, on_hdfs: Callable[..., Path], tmp_path: Path
) -> None:
    bucket, topic = hdfs.bucket(), topics.create(2)
    config = load(on_hdfs(topic, bucket))
    assert plan_run(config).problems == ()
    topics.send(topic, [*(order(n) for n in range(40)), b"bad"])
    assert run(config, session=spark).rows_out == 40
    topics.send(topic, [order(n) for n in range(30, 60)])
    assert run(config, session=spark).rows_in == 30

    catalog = SqlCatalog(
        "penstock",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=hdfs.uri(bucket, "lake/ice"),
        **hdfs.storage.for_iceberg(hdfs.uri(bucket, "lake")),
    )
    files = ds.dataset(f"{bucket}/lake/files", format="parquet", partitioning="hive", filesystem=hdfs.arrow())
    twice = sorted([*range(60), *range(30, 40)])
    assert sorted(held(hdfs, bucket, "out")["order_id"].to_pylist()) == twice
    assert sorted(held(hdfs, bucket, "merged")["order_id"].to_pylist()) == list(range(60))
    assert sorted(files.to_table(["order_id"])["order_id"].to_pylist()) == twice
    assert sorted(catalog.load_table("shop.orders").scan().to_arrow()["order_id"].to_pylist()) == twice
    assert held(hdfs, bucket, "quarantine").num_rows == 1
    # Another reader than the writer.
    read = spark.read.format("delta").load(hdfs.uri(bucket, "lake/out"))
    assert sorted(row.order_id for row in read.select("order_id").collect()) == twice
    copy = apply_backup(plan_backup(config), storage=hdfs.storage)
    assert copy.batch in [one.batch for one in backups_there(config)]


def test_run_killed_on_hdfs_goes_on_at_once_and_nothing_is_twice(
    hdfs: Any, topics: Any, on_hdfs: Callable[..., Path]
) -> None:
    bucket, topic = hdfs.bucket(), topics.create(2)
    file = on_hdfs(topic, bucket, source={"max_offsets": 200}, trigger={"every": "200 ms"})
    topics.send(topic, [order(n) for n in range(2_000)])
    with Running(file.parent, "run", str(file), "--log-format", "text") as first:
        first.await_text("batch 1")
        first.send(signal.SIGKILL)
        first.process.wait(30)
    with Running(file.parent, "run", str(file), "--available-now", "--log-format", "text") as second:
        assert second.process.wait(180) == 0, second.complained
    for table in ("out", "merged"):
        assert sorted(held(hdfs, bucket, table)["order_id"].to_pylist()) == list(range(2_000)), table


def test_lease_on_hdfs_is_given_to_one_of_many(hdfs: Any) -> None:
    checkpoint = hdfs.uri(hdfs.bucket(), "checkpoint")
    first = checkpoint_lock(checkpoint, hdfs.storage)
    second = checkpoint_lock(checkpoint, hdfs.storage)
    with first, pytest.raises(MissingError) as raised, second:
        raise AssertionError("two have it")
    assert raised.value.code == "CHECKPOINT_IN_USE"
    with checkpoint_lock(checkpoint, hdfs.storage) as again:
        again.check()


def test_put_over_of_many_at_once_is_done_by_one_each_time(hdfs: Any) -> None:
    filesystem, root = hdfs.storage.filesystem(hdfs.uri(hdfs.bucket(), "notes"))
    note = f"{root}/note"
    mark = filesystem.put_new(note, b"first")

    def over(who: int, mark: str) -> str | None:
        try:
            return str(filesystem.put_over(note, f"{mark} {who}".encode(), mark))
        except ChangedError:
            return None

    with ThreadPoolExecutor(6) as pool:
        for _ in range(8):
            won = [one for one in pool.map(over, range(6), [mark] * 6) if one is not None]
            assert len(won) == 1
            assert filesystem.read(note).mark == won[0]
            with pytest.raises(ChangedError):
                filesystem.put_over(note, b"late", mark)
            mark = won[0]


@pytest.mark.parametrize(
    ("place", "code", "cause"),
    [
        ("hdfs://127.0.0.1:9/lake", "STORAGE_UNAVAILABLE", "Connection refused"),
        ("hdfs://unknown/lake", "HDFS_NOT_NAMED", "No NameNode"),
    ],
)
def test_check_reachable_tells_the_cause_soon(place: str, code: str, cause: str) -> None:
    began = time.monotonic()
    with pytest.raises(MissingError, match=cause) as raised:
        check_reachable(Storage(), [place])
    assert (raised.value.code, raised.value.exit_code) == (code, 3)
    assert time.monotonic() - began < 20


def test_name_node_that_hangs_is_told_and_waited_for(tmp_path: Path) -> None:
    with running_hdfs(tmp_path) as server:
        filesystem, root = server.storage.filesystem(server.uri("own", "x"))
        filesystem.put_new(f"{root}/note", b"1")
        server.stop_name_node(signal.SIGSTOP)
        try:
            with pytest.raises(MissingError, match="no answer within 5 s"):
                check_reachable(server.storage, [server.root])
        finally:
            server.resume_name_node()
        assert filesystem.read(f"{root}/note").body == b"1"
