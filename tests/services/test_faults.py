"""Faults while a pipeline runs: those that may pass are tried again and told, the others end it in words."""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.cli.command import command
from tests.conftest import Topics
from tests.orders import order
from tests.services.running import PENSTOCK, Running, wait_for

import penstock
from penstock.devstack import DevStack
from penstock.errors import MissingError
from penstock.kafka import Cluster, KafkaSettings
from penstock.model import TopicPartition
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

pytestmark = pytest.mark.services
Write = Callable[..., Path]
STACK = ("Traceback", "at org.apache", "at java.", "Py4J", "py4j")


def run_to_its_end(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, "run", str(file)], capture_output=True, text=True, timeout=120, check=False)


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The error as printed, which must be words and no stack."""
    assert not [sign for sign in STACK if sign in done.stderr], done.stderr
    return [line for line in done.stderr.splitlines() if " note: " not in line]


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[DevStack]:
    """A broker of the test's own, to be killed."""
    stack = DevStack(tmp_path / "dev", java=find_java().executable, classpath=broker_classpath(), brokers=1)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.mark.long
def test_broker_away_for_a_while_is_waited_for_and_nothing_is_lost(
    fragile: DevStack, pipeline_file: Write, tmp_path: Path
) -> None:
    topics = Topics(fragile.bootstrap)
    topic = topics.create(2)
    topics.send(topic, [order(n) for n in range(100)])
    source = {"brokers": fragile.bootstrap, "options": {"socket.timeout.ms": "3000"}}
    file = pipeline_file(topic, source=source, trigger={"every": "200 ms"})
    with Running(tmp_path, "run", str(file)) as running:
        running.await_text("batch 0:")
        fragile.kill(1)
        running.await_text("retry 1 in 1 s", seconds=120)
        assert "BROKER_UNREACHABLE" in running.complained
        fragile.restart(1)
        topics.send(topic, [order(n) for n in range(100, 150)])

        def landed() -> bool:
            assert running.process.poll() is None, running.complained
            return DeltaTable(tmp_path / "lake/out").to_pyarrow_table(columns=["order_id"]).num_rows >= 150

        wait_for(landed, "the orders sent after the fault", 120)
        running.send(signal.SIGTERM)
        assert running.process.wait(40) == 0, running.complained
        assert not [sign for sign in STACK if sign in running.complained], running.complained
    ids = DeltaTable(tmp_path / "lake/out").to_pyarrow_table(columns=["order_id"]).column(0).to_pylist()
    assert sorted(ids) == list(range(150))


@pytest.mark.long
def test_broker_away_for_too_long_ends_with_try_again(fragile: DevStack, pipeline_file: Write, tmp_path: Path) -> None:
    topics = Topics(fragile.bootstrap)
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic, source={"brokers": fragile.bootstrap}, trigger={"every": "200 ms"})
    with Running(tmp_path, "run", str(file), "--give-up-after", "10") as running:
        running.await_text("batch 0:")
        fragile.kill(1)
        assert running.process.wait(120) == 75, running.complained
        lines = running.complained.splitlines()
        # What the consumer group has to say may come first.
        retries = [line for line in lines if "retry" in line]
        assert retries[0].endswith("retry 1 in 1 s")
        assert lines[-4].startswith("BROKER_UNREACHABLE ")
        assert lines[-3] == f"  brokers: {fragile.bootstrap}"
        assert not [sign for sign in STACK if sign in running.complained], running.complained


def test_bounds_leave_out_a_topic_that_was_deleted(topics: Any) -> None:
    kept, deleted = topics.create(1), topics.create(2)
    cluster = Cluster(KafkaSettings(topics.brokers))
    wanted = [TopicPartition(kept, 0), TopicPartition(deleted, 0), TopicPartition(deleted, 1)]
    assert list(cluster.bounds(wanted)) == wanted
    topics.admin.delete_topics([deleted])[deleted].result(10)
    wait_for(lambda: deleted not in topics.admin.list_topics(timeout=10).topics, "the deletion")
    assert list(cluster.bounds(wanted)) == wanted[:1]
    assert cluster.bounds(wanted[1:]) == {}


def test_sql_that_spark_refuses_ends_before_a_batch_with_the_cause(
    spark: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    steps = [{"where": "amount > 0"}, {"sql": "SELECT *, no_such_function(amount) AS x FROM input"}]
    file = pipeline_file(topic, transforms=steps)
    with pytest.raises(MissingError) as refused:
        penstock.load(file).run(session=spark)
    assert str(refused.value).splitlines()[0] == "SQL_REFUSED transforms[1]: Spark rejects the query"
    cause = refused.value.context["cause"]
    assert cause.startswith("[UNRESOLVED_ROUTINE] Cannot resolve routine `no_such_function`")
    assert not [sign for sign in STACK if sign in str(refused.value)]
    assert not (file.parent / "lake/out").exists()


@pytest.mark.long
def test_sql_that_fails_on_a_row_ends_with_the_cause(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    done = run_to_its_end(pipeline_file(topic, transforms=[{"sql": "SELECT *, CAST(customer_id AS INT) x FROM input"}]))
    assert done.returncode == 4
    first, cause, log, _ = told(done)
    assert first == "BATCH_FAILED running the batch: the Spark job failed"
    assert cause.startswith(
        '  cause: [CAST_INVALID_INPUT] The value \'c\' of the type "STRING" cannot be cast to "INT"'
    )
    assert Path(log.removeprefix("  log: ")).is_file()


@pytest.mark.parametrize(
    ("where", "exit_code", "code"),
    [
        ("lake/out", 3, "SINK_PATH_NOT_A_TABLE"),
        ("checkpoints/orders", 3, "FILE_UNUSABLE"),
        ("lake/quarantine", 3, "SINK_PATH_NOT_A_TABLE"),
    ],
)
def test_place_that_cannot_be_written_is_told_before_a_batch(
    topics: Any, pipeline_file: Write, where: str, exit_code: int, code: str
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic)
    blocked = file.parent / where
    blocked.parent.mkdir()
    blocked.write_text("a file where a folder should be")
    # It ends before it starts Spark.
    done = command("run", str(file), folder=file.parent)
    summary = told(done)[0]
    assert (done.returncode, summary.partition(" ")[0]) == (exit_code, code), done.stderr
    assert str(blocked) in done.stderr
    assert not list(file.parent.glob("lake/**/*.parquet"))


@pytest.mark.long
def test_disk_that_is_full_ends_with_the_cause(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n, customer_id=secrets.token_hex(1_000)) for n in range(1_000)])
    file = pipeline_file(topic, name=f"full-{topic}")
    # No file may grow beyond 300 kB, which the table's must: for who writes it, as on a disk that is full.
    script = f"ulimit -f 300; exec {PENSTOCK} run {file}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4
    first = told(done)[0]
    assert first.startswith("SINK_FAILED sink out: ")
    assert "File too large" in first
    assert not list((file.parent / "lake/out").glob("*.parquet")), "what was staged is removed"
