"""A whole pipeline on a real S3 server: every kind of table, checkpoint, quarantine, backups; and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.committing import commit
from tests.local_spark import LocalSession
from tests.orders import order
from tests.services.lakes import every_table
from tests.services.running import PENSTOCK, Running, wait_for

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.dashboard.panels import QuarantineQuery, files_panel
from penstock.engine.listener import BatchDone, Event, Retrying
from penstock.errors import MissingError
from penstock.model import BatchToken, OffsetRange, SlotAttempt
from penstock.ops.checkpoint.backup import apply_backup, plan_backup
from penstock.ops.checkpoint.repair import verify_checkpoint
from penstock.ops.checkpoint.restore import apply_restore, plan_restore
from penstock.ops.checkpoint.show import show_checkpoint
from penstock.ops.compact import apply_compact, plan_compact
from penstock.ops.plan import plan_run
from penstock.ops.snapshot import take_snapshot
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


ON_SPARK_TOO = pytest.mark.parametrize(
    "session", ["local", pytest.param("spark", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    yield s3.bucket()
    s3.calm()


@pytest.fixture
def session(request: pytest.FixtureRequest, s3: Any) -> Any:
    """The stand-in, which reaches the store too, or Spark."""
    if getattr(request, "param", "local") == "local":
        return LocalSession(storage=s3.storage)
    return request.getfixturevalue("spark")


@pytest.fixture
def spark(spark: Any, s3: Any) -> Any:
    """The shared session, which reaches the store too."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in s3.storage.for_spark().items():
        hadoop.set(name.removeprefix("spark.hadoop."), value)
    return spark


def _sinks(bucket: str, folder: Path) -> list[dict[str, Any]]:
    return every_table(lambda path: f"s3://{bucket}/{path}", f"sqlite:///{folder}/catalog.db")


@pytest.fixture
def on_s3(s3: Any, bucket: str, pipeline_file: Write, tmp_path: Path) -> Write:
    """Writes a pipeline with everything on S3."""

    def write(topic: str, **keys: Any) -> Path:
        told = {
            "storage": s3.section,
            "checkpoint": f"s3://{bucket}/checkpoints/orders",
            "quarantine": {"table": f"s3://{bucket}/lake/quarantine"},
            "sinks": _sinks(bucket, tmp_path),
        }
        return pipeline_file(topic, **{**told, **keys})

    return write


def _rows(s3: Any, uri: str, columns: str = "*") -> pa.Table:
    table = DeltaTable(uri, storage_options=s3.storage.for_delta())
    found = QueryBuilder().register("held", table).execute(f"SELECT {columns} FROM held")
    return pa.RecordBatchReader.from_stream(found).read_all()


def _ids(s3: Any, bucket: str, table: str = "out") -> list[int]:
    return sorted(_rows(s3, f"s3://{bucket}/lake/{table}", "order_id").column(0).to_pylist())


def _file_ids(s3: Any, bucket: str) -> list[int]:
    import pyarrow.dataset as ds

    fs, root = s3.storage.filesystem(f"s3://{bucket}/lake/files")
    files = [path for path in fs.find(root) if path.endswith(".parquet")]
    return sorted(ds.dataset(files, format="parquet", filesystem=fs).to_table(["order_id"]).column(0).to_pylist())


def _ice_ids(s3: Any, bucket: str, folder: Path) -> list[int]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "penstock",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"s3://{bucket}/lake/ice",
        **s3.storage.for_iceberg(f"s3://{bucket}"),
    )
    rows = catalog.load_table("shop.orders").scan(selected_fields=("order_id",)).to_arrow()
    return sorted(rows.column(0).to_pylist())


@ON_SPARK_TOO
def test_everything_on_s3_run_twice_is_there_once(
    s3: Any, bucket: str, session: Any, topics: Any, on_s3: Write, tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.send(topic, [*(order(n) for n in range(40)), b"bad"])
    config = load(on_s3(topic))
    assert run(config, session=session).rows_out == 40
    topics.send(topic, [order(n) for n in range(30, 60)])
    assert run(config, session=session).rows_in == 30
    # Spark's commit of the last batch is lost, as by a kill at the worst moment.
    s3.remove(f"{bucket}/checkpoints/orders/commits/1")
    events: list[Event] = []
    run(config, RunOptions(), events.append, session=session)
    assert [e.metrics.skipped for e in events if isinstance(e, BatchDone)] == [True]
    twice = sorted([*range(60), *range(30, 40)])
    assert _ids(s3, bucket) == twice
    assert _ids(s3, bucket, "merged") == list(range(60))
    assert _file_ids(s3, bucket) == twice
    assert _ice_ids(s3, bucket, tmp_path) == twice
    assert _rows(s3, f"s3://{bucket}/lake/quarantine").num_rows == 1
    _look_around(config, s3, bucket, session)


def _look_around(config: Any, s3: Any, bucket: str, session: Any) -> None:
    """What commands and the dashboard show of it."""
    assert show_checkpoint(take_snapshot(config)).committed == 1
    assert [one.code for one in verify_checkpoint(take_snapshot(config)).findings if one.blocks] == []
    assert plan_run(config).problems == ()
    assert files_panel(take_snapshot(config, brokers=None)) == {"blocking": None}
    assert QuarantineQuery()(config)["today"] == 1
    copy = apply_backup(plan_backup(config), storage=s3.storage)
    assert copy.batch == 1
    s3.remove(f"{bucket}/checkpoints/orders/metadata")
    apply_restore(plan_restore(config))
    assert SparkCheckpoint(config.checkpoint, s3.storage).query_id() == copy.query_id
    plan = plan_compact(config, "out", timedelta(minutes=2), timedelta(hours=1))
    [done] = apply_compact(plan, session=session)
    assert done.error is None and done.compacted.removed >= 2 and done.compacted.added == 1
    assert len(_ids(s3, bucket)) == 70


def test_spark_writes_its_checkpoint_without_a_rename(
    s3: Any, bucket: str, spark: Any, topics: Any, on_s3: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1)])
    s3.forget()
    run(load(on_s3(topic, sinks=_sinks(bucket, Path())[:1])), session=spark)
    puts = [one for one in s3.log() if one["method"] == "PUT" and "/checkpoints/orders/" in one["path"]]
    written = {one["path"].partition("/checkpoints/orders/")[2]: one for one in puts if "Hadoop" in one["agent"]}
    assert {"offsets/0", "commits/0", "metadata", "sources/0/0"} <= {name for name in written if "tmp" not in name}
    assert not [name for name in written if "tmp" in name]
    assert not [one for one in s3.log() if "/checkpoints/orders/" in one["path"] and "copy" in one["agent"].lower()]


@pytest.mark.parametrize(
    ("through", "session"),
    [("driver", "local"), pytest.param("spark", "spark", marks=pytest.mark.long)],
    indirect=["session"],
)
def test_merge_on_s3_updates_rows_by_either_way(
    s3: Any, bucket: str, session: Any, topics: Any, on_s3: Write, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.sinks.delta import merge

    if through == "spark":
        monkeypatch.setattr(merge, "fits_driver", lambda *given: False)
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(20)])
    config = load(on_s3(topic, sinks=_sinks(bucket, Path())[1:2]))
    run(config, session=session)
    topics.send(topic, [{**order(n), "amount": 9.0} for n in range(10, 30)])
    s3.forget()
    run(config, session=session)
    rows = _rows(s3, f"s3://{bucket}/lake/merged", "order_id, amount").to_pylist()
    assert Counter(row["amount"] for row in rows) == {1.5: 10, 9.0: 20}
    log = [one for one in s3.log() if one["method"] == "PUT" and "/_delta_log/0" in one["path"]]
    mine = [one for one in log if one["path"].endswith(".json") and ("Hadoop" in one["agent"]) == (through == "spark")]
    assert mine and {one["if_none_match"] for one in mine} == {"*"}


@pytest.mark.long
def test_iceberg_merge_on_s3_updates_rows(
    s3: Any, bucket: str, spark: Any, topics: Any, on_s3: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(20)])
    sink = {**_sinks(bucket, tmp_path)[3], "mode": "merge", "keys": ["order_id"]}
    config = load(on_s3(topic, sinks=[sink]))
    run(config, session=spark)
    topics.send(topic, [{**order(n), "amount": 9.0} for n in range(10, 30)])
    run(config, session=spark)
    assert _ice_ids(s3, bucket, tmp_path) == list(range(30))


@pytest.mark.long
def test_spark_commit_that_another_writer_overtakes_loses_no_row_of_either(
    s3: Any, bucket: str, spark: Any, topics: Any, on_s3: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.sinks.delta import DeltaSink, merge

    monkeypatch.setattr(merge, "fits_driver", lambda *given: False)
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(5)])
    config = load(on_s3(topic, sinks=_sinks(bucket, Path())[1:2]))
    run(config, session=spark)
    topics.send(topic, [order(n) for n in range(5, 10)])
    uri = f"s3://{bucket}/lake/merged"
    version = DeltaTable(uri, storage_options=s3.storage.for_delta()).version()
    # Spark's put of the next version is on its way while another writer makes it.
    s3.fault("delay", method="PUT", path=rf"/_delta_log/{version + 1:020}\.json$", agent="Hadoop", seconds=6)
    other = DeltaSink("other", "out", uri, storage=s3.storage)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, config, session=spark)
        wait_for(lambda: _asked(s3, f"_delta_log/{version + 1:020}.json", "Hadoop"), "Spark's put", 60)
        _append(other, [100, 101])
        running.result()
    assert _ids(s3, bucket, "merged") == [*range(10), 100, 101]


def _asked(s3: Any, path: str, agent: str) -> bool:
    return any(one["method"] == "PUT" and one["path"].endswith(path) and agent in one["agent"] for one in s3.log())


def _append(sink: Any, ids: list[int]) -> None:
    """Rows of another pipeline, in one commit."""
    held = pa.schema(sink._table.open().schema().to_arrow())
    sink.prepare(held)
    token = BatchToken("other", "q", 0, (OffsetRange("other", 0, 0, len(ids)),))
    rows = pa.RecordBatch.from_pylist([{"order_id": one} for one in ids], schema=held)
    stage = sink.stage(token, SlotAttempt(0, "a"), held)
    stage.write(rows)
    commit(sink, token, [stage.finish()])


@pytest.mark.parametrize("act", ["swallow", pytest.param("drop", marks=pytest.mark.long)])
def test_commit_whose_answer_is_lost_is_there_once(
    s3: Any, bucket: str, session: Any, topics: Any, on_s3: Write, tmp_path: Path, act: str
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(20)])
    config = load(on_s3(topic, sinks=[one for one in _sinks(bucket, tmp_path) if one["name"] in ("out", "files")]))
    run(config, session=session)
    topics.send(topic, [order(n) for n in range(20, 40)])
    s3.fault(act, method="PUT", path=r"/_delta_log/0+2\.json$")
    s3.fault(act, method="PUT", path=r"/_manifest\.json$")
    run(config, session=session)
    assert _ids(s3, bucket) == list(range(40))
    assert _file_ids(s3, bucket) == list(range(40))


def test_store_that_fails_for_a_while_is_tried_again_with_the_cause(
    s3: Any, bucket: str, session: Any, topics: Any, on_s3: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(20)])
    config = load(on_s3(topic, sinks=_sinks(bucket, Path())[:1]))
    run(config, session=session)
    topics.send(topic, [order(n) for n in range(20, 40)])
    s3.fault("error", method="PUT", path="/lake/out/part-", times=12)
    s3.fault("delay", method="GET", path="/checkpoints/", times=5, seconds=0.5)
    events: list[Event] = []
    run(config, RunOptions(), events.append, session=session)
    assert _ids(s3, bucket) == list(range(40))
    told = [event.error.code for event in events if isinstance(event, Retrying)]
    assert set(told) <= {"STORAGE_UNAVAILABLE", "SINK_UNAVAILABLE"}


def test_wrong_key_stops_a_run_at_once(s3: Any, bucket: str, session: Any, topics: Any, on_s3: Write) -> None:
    topic = topics.create(1)
    config = load(on_s3(topic, storage={**s3.section, "secret_key": "${env:TEST_S3_ACCESS_KEY}"}))
    for attempt in (lambda: run(config, session=session), lambda: plan_run(config)):
        with pytest.raises(MissingError) as raised:
            attempt()
        assert raised.value.code == "STORAGE_REFUSED"


@pytest.mark.long
def test_command_on_s3_killed_and_run_again_has_each_row_once(
    s3: Any, bucket: str, topics: Any, on_s3: Write, tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.send(topic, [order(n) for n in range(200)])
    file = on_s3(
        topic,
        sinks=_sinks(bucket, tmp_path)[:1],
        trigger={"every": "200 ms"},
        source={"max_offsets": 40},
        spark={"spark.master": "local[2]"},
    )
    with Running(tmp_path, "run", str(file)) as first:
        wait_for(lambda: len(_committed(s3, bucket)) >= 2, "two batches", 120)
        refused = subprocess.run(
            [PENSTOCK, "run", str(file)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
        )
        assert refused.returncode == 3 and "CHECKPOINT_IN_USE" in refused.stderr
        [status] = json.loads(subprocess.check_output([PENSTOCK, "status", "--json", str(file)], timeout=60))
        assert status["state"] == "running"
        first.send(signal.SIGKILL)
        first.process.wait()
    topics.send(topic, [order(n) for n in range(200, 240)])
    began = time.monotonic()
    with Running(tmp_path, "run", str(file), name="again") as second:
        wait_for(lambda: len(set(_ids(s3, bucket))) == 240, "every row", 120)
        took = time.monotonic() - began
        stopped = subprocess.run([PENSTOCK, "stop", str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert second.process.wait(30) == 0
    assert took < 90
    assert _ids(s3, bucket) == list(range(240))


def _committed(s3: Any, bucket: str) -> list[str]:
    begin = "checkpoints/orders/commits/"
    return [key for key in s3.keys(bucket) if key.startswith(begin) and key.removeprefix(begin).isdigit()]
