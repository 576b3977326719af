"""A pipeline on a real standalone cluster: submitted, inside spark-submit, with executors and workers that die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.services.running import PENSTOCK, Running, wait_for

from penstock.assembly import starting
from penstock.config import load
from penstock.errors import MissingError
from penstock.spark.jars import jar_folder
from penstock.spark.session import spark_home
from penstock.supervision.run import run

pytestmark = pytest.mark.services

ORDERS = 12_000
UPPER = """import pyarrow.compute as pc

def upper(rows):
    names = rows.schema.names
    return rows.set_column(names.index("customer_id"), "customer_id", pc.utf8_upper(rows.column("customer_id")))
"""
INSTALLED = {"environment": "installed", "python": sys.executable}
ABRUPT_END = "terminate called"


@dataclass
class Streamed:
    """One pipeline over one topic, whose orders are numbered from 0 as they are sent."""

    topics: Any
    topic: str
    file: Path
    sent: int = 0

    def send(self, count: int) -> None:
        self.topics.send(self.topic, orders(count, self.sent))
        self.sent += count

    def await_every_row(self, what: str) -> None:
        wait_for(lambda: len(ids(self.file.parent)) == self.sent, f"every row {what}", 180)

    def is_right(self) -> None:
        """Every order that was sent is there, once."""
        assert ids(self.file.parent) == list(range(self.sent))


def orders(count: int, first: int = 0) -> list[dict[str, Any]]:
    at = "2026-01-01T00:00:00Z"
    return [
        {"order_id": n, "customer_id": f"c{n % 7}", "amount": float(n), "event_time": at}
        for n in range(first, first + count)
    ]


def submitted(file: Path, cluster: Any) -> Running:
    return Running(file.parent, "submit", str(file), "--master", cluster.url, "--log-format", "text")


@pytest.fixture
def streamed(topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path) -> Streamed:
    """A pipeline in many small batches, whose orders are sent while it runs."""
    topic = topics.create(4)
    file = pipeline_file(topic, source={"max_offsets": 1_000}, trigger={"every": "200 ms"})
    one = Streamed(topics, topic, file)
    one.send(ORDERS)
    return one


def ids(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder / "lake/out").to_pyarrow_table(columns=["order_id"]).column(0).to_pylist())


@pytest.mark.long
def test_submit_in_client_mode_runs_on_the_executors_and_ends_clean(
    cluster: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(4)
    topics.send(topic, [*orders(ORDERS), b"{broken"])
    (tmp_path / "steps.py").write_text(UPPER)
    file = pipeline_file(
        topic,
        transforms=[{"map_arrow": "steps.upper"}],
        sinks=[
            {"name": "out", "type": "delta", "path": "lake/out"},
            {"name": "merged", "type": "delta", "path": "lake/merged", "mode": "merge", "keys": ["customer_id"]},
        ],
    )
    with submitted(file, cluster) as run:
        assert run.process.wait(180) == 0, run.complained
        run.await_nobody_left()
        assert f"{ORDERS + 1:,} rows in, {ORDERS:,} out, 1 quarantined" in run.printed
    assert ids(tmp_path) == list(range(ORDERS))
    customers = DeltaTable(tmp_path / "lake/merged").to_pyarrow_table(columns=["customer_id"]).column(0).to_pylist()
    assert sorted(customers) == [f"C{n}" for n in range(7)]
    wait_for(lambda: not cluster.executors(), "no executor is left")
    assert cluster.executor_logs(), "no executor has run"
    assert ABRUPT_END not in cluster.executor_logs(), "a client was left open in a worker"


def test_submit_to_a_master_that_is_not_there_says_so_before_spark_starts(
    topics: Any, pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_MASTER_SECONDS", 0.5)
    with socket.socket() as held, pytest.raises(MissingError) as raised:
        held.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{held.getsockname()[1]}"
        run(load(pipeline_file(topics.create(1))).on_master(master))
    assert raised.value.code == "MASTER_UNREACHABLE"
    assert "connection refused" in str(raised.value)


@pytest.mark.long
def test_submit_while_an_executor_is_killed_the_batch_is_carried_on(cluster: Any, streamed: Streamed) -> None:
    with submitted(streamed.file, cluster) as run:
        run.await_text("batch 1")
        cluster.executors()[0].kill()
        streamed.send(4_000)
        streamed.await_every_row("with another executor")
        run.interrupt_group()
        assert run.process.wait(60) == 0, run.complained
        assert "stopping: finishing the current batch" in run.complained
        run.await_nobody_left()
    streamed.is_right()


@pytest.mark.long
def test_submit_while_a_worker_is_killed_the_other_one_goes_on(cluster: Any, streamed: Streamed) -> None:
    try:
        with submitted(streamed.file, cluster) as run:
            run.await_text("batch 1")
            cluster.kill_worker(1)
            streamed.send(4_000)
            streamed.await_every_row("with one worker")
            run.send(signal.SIGTERM)
            assert run.process.wait(60) == 0, run.complained
    finally:
        cluster.start()
    streamed.is_right()


@pytest.mark.long
def test_submit_while_the_master_is_killed_and_comes_back_nothing_stops(cluster: Any, streamed: Streamed) -> None:
    try:
        with submitted(streamed.file, cluster) as run:
            run.await_text("batch 1")
            cluster.kill_master()
            streamed.send(2_000)
            streamed.await_every_row("without a master")
            cluster.start()
            cluster.executors()[0].kill()
            streamed.send(2_000)
            streamed.await_every_row("with another executor")
            run.send(signal.SIGTERM)
            assert run.process.wait(60) == 0, run.complained
    finally:
        cluster.start()
    streamed.is_right()


def spark_submit(cluster: Any, folder: Path, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    app = folder / "app.py"
    app.write_text("from penstock.cli.main import main\n\nmain()\n")
    command = [str(spark_home() / "bin/spark-submit"), "--master", cluster.url, *options, str(app)]
    python = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "COLUMNS": "200",
    }
    return subprocess.run(
        [*command, "run", str(file), "--available-now", "--log-format", "text"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **python},
    )


@pytest.mark.long
def test_run_inside_spark_submit_uses_its_jvm_and_its_settings(
    cluster: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.send(topic, orders(ORDERS))
    file = pipeline_file(topic, spark={"spark.sql.shuffle.partitions": "3"})
    jars = ",".join(str(jar) for jar in jar_folder("spark").glob("*.jar"))
    done = spark_submit(cluster, tmp_path, file, "--jars", jars, "--conf", "spark.sql.shuffle.partitions=5")
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{ORDERS:,} rows in, {ORDERS:,} out" in done.stdout
    # Spark's runner of Python programs has both streams in one.
    assert "spark-submit has 5, which overrides 3 of the file" in done.stdout
    assert ids(tmp_path) == list(range(ORDERS))


@pytest.mark.long
def test_run_inside_spark_submit_without_the_jars_says_how_to_give_them(
    cluster: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    done = spark_submit(cluster, tmp_path, pipeline_file(topics.create(1)))
    assert done.returncode == 3, done.stderr[-4000:]
    assert "SPARK_JARS_MISSING" in done.stdout
    assert "--jars" in done.stdout


@pytest.mark.long
def test_rendered_script_is_run_by_spark_submit(
    cluster: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.send(topic, orders(ORDERS))
    file = pipeline_file(topic, cluster=INSTALLED)
    run_rendered(cluster, file, tmp_path / "out")
    assert ids(tmp_path / "out/pipeline") == list(range(ORDERS))


@pytest.mark.long
def test_rendered_script_of_a_pipeline_on_s3_brings_the_jars_of_s3(
    cluster: Any, s3: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic, bucket = topics.create(2), s3.bucket()
    topics.send(topic, orders(ORDERS))
    file = pipeline_file(
        topic,
        cluster=INSTALLED,
        storage=s3.section,
        checkpoint=f"s3://{bucket}/checkpoints/orders",
        quarantine={"table": f"s3://{bucket}/lake/quarantine"},
        sinks=[{"name": "out", "type": "delta", "path": f"s3://{bucket}/lake/out"}],
    )
    run_rendered(cluster, file, tmp_path / "out")
    table = DeltaTable(f"s3://{bucket}/lake/out", storage_options=s3.storage.for_delta())
    found = QueryBuilder().register("held", table).execute("SELECT order_id FROM held ORDER BY order_id")
    assert pa.RecordBatchReader.from_stream(found).read_all().column(0).to_pylist() == list(range(ORDERS))


def run_rendered(cluster: Any, file: Path, folder: Path) -> None:
    command = [PENSTOCK, "submit", str(file), "--master", cluster.url, "--render", str(folder)]
    written = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "submit.sh" in written.stdout
    environment = {"SPARK_HOME": str(spark_home()), "PENSTOCK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [str(folder / "submit.sh")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.long
def test_submit_with_packed_packages_runs_by_a_bare_python(
    cluster: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    """The executors have none but the Python that the environment was made from."""
    bare = Path(sys.base_prefix) / f"bin/python3.{sys.version_info.minor}"
    topic = topics.create(2)
    topics.send(topic, orders(ORDERS))
    (tmp_path / "steps.py").write_text(UPPER)
    file = pipeline_file(
        topic,
        transforms=[{"map_arrow": "steps.upper"}],
        cluster={"environment": "pack", "python": str(bare)},
    )
    with submitted(file, cluster) as run:
        assert run.process.wait(300) == 0, run.complained
    assert ids(tmp_path) == list(range(ORDERS))
