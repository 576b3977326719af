"""Every cause, caused for real on a broker, real targets and Spark where it matters: it is the first in the list."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.producers import RegistryProducer
from tests.services.running import Running, wait_for
from tests.slow_proxy import slowed

from penstock.config import load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.ops.diagnosis import Cause, diagnose
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]

COLUMNS = "id BIGINT NOT NULL, who STRING, at TIMESTAMP"
JSON = {"format": "json", "schema": COLUMNS}
START = datetime(2026, 1, 1, tzinfo=UTC)
# Batches of 100 offsets that are as long as they are asked to be: neither the cap nor the trigger is at fault.
STEADY = {"target_batch": "300 ms", "max_batch": "1 minute", "min_offsets": 100, "max_offsets": 100}
WATERMARK = {"watermark": {"column": "at", "delay": "1 minute"}}
DEDUPE = {"dedupe": {"keys": ["id"], "within": "10 minutes"}}
POSTGRES = {"name": "pg", "type": "postgres", "url": "${env:DIAGNOSED}", "table": "orders"}
TABLE = "CREATE TABLE orders (id bigint NOT NULL, who text, at timestamptz)"
SLEEPY = """
CREATE FUNCTION sleepy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
CREATE TRIGGER sleepy BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION sleepy()
"""


def events(count: int, who: str | None = None, seconds: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"id": number, "who": who or f"w{number % 60}", "at": (START + timedelta(seconds=number * seconds)).isoformat()}
        for number in range(count)
    ]


class Pipeline:
    """A pipeline that reads events, without end where nothing else is said."""

    def __init__(self, session: Any, write: Write, topic: str) -> None:
        self._session, self._write, self.topic = session, write, topic
        self.stop = StopRequest()

    def write(self, **keys: Any) -> Path:
        self.file = self._write(self.topic, **{"decode": JSON, "trigger": None, **keys})
        return self.file

    def go(self, batches: int | None = None, **options: Any) -> None:
        """Run until so many batches are done, or all is read."""
        done = 0

        def listen(event: Event) -> None:
            nonlocal done
            done += isinstance(event, BatchDone)
            if done == batches:
                self.stop.ask()

        # Batches that never come are a failure, not a test without an end.
        patience = threading.Timer(120, self.stop.ask)
        patience.start()
        try:
            run(load(self.file), RunOptions(available_now=batches is None, **options), listen, self.stop, self._session)
        finally:
            patience.cancel()
        assert done >= (batches or 0)

    def causes(self) -> tuple[Cause, ...]:
        return diagnose(load(self.file)).causes

    def first(self) -> str:
        found = self.causes()
        assert found, diagnose(load(self.file))
        return found[0].code


@pytest.fixture
def pipeline(session: Any, topics: Any, pipeline_file: Write) -> Pipeline:
    """Of a topic with two partitions."""
    return Pipeline(session, pipeline_file, topics.create(2))


@pytest.fixture
def on_spark(spark: Any, topics: Any, pipeline_file: Write) -> Pipeline:
    """The same on Spark: for what it has alone, its heap and its state among them."""
    return Pipeline(spark, pipeline_file, topics.create(2))


@pytest.fixture
def database(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With a table; its URL, which the environment has too."""
    name = postgres.create_database()
    postgres.execute(TABLE, name)
    monkeypatch.setenv("DIAGNOSED", postgres.url(name))
    yield postgres.url(name)
    postgres.drop_database(name)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do something over and over in another thread."""
    over = threading.Event()

    def go() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def test_healthy_pipeline_has_no_cause_while_it_drains_and_when_it_has(topics: Any, pipeline: Pipeline) -> None:
    topics.send(pipeline.topic, events(5_000))
    pipeline.write(flow={"min_offsets": 100, "target_batch": "5 seconds"})
    pipeline.go(batches=2)
    assert pipeline.causes() == ()
    pipeline.stop = StopRequest()
    pipeline.go()
    found = diagnose(load(pipeline.file))
    assert found.causes == ()
    assert any(line.startswith("brokers: 2 partitions, 0 offsets wait") for line in found.looked)
    assert any(line.startswith("table out: ") for line in found.looked)


def test_run_that_failed_is_first_with_its_error_and_what_waits(topics: Any, pipeline: Pipeline) -> None:
    topics.send(pipeline.topic, events(200))
    pipeline.write()
    pipeline.go()
    topics.send(pipeline.topic, events(300))
    stopped = diagnose(load(pipeline.file))
    assert stopped.causes == ()
    assert "300 offsets wait" in (stopped.idle or "")
    log = pipeline.file.parent / "lake/out/_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("no folder any more")
    with pytest.raises(PenstockError) as raised:
        pipeline.go(give_up_after=0.1)
    [cause] = pipeline.causes()
    assert (cause.code, cause.summary) == (
        "NOT_RUNNING",
        f"no run is active: the last run was ended by {raised.value.code}",
    )
    assert any(line.startswith("300 offsets wait, the oldest unread record is ") for line in cause.evidence)


def test_cap_low_is_first_where_it_is(topics: Any, pipeline: Pipeline) -> None:
    topics.send(pipeline.topic, events(3_000))
    pipeline.write(source={"max_offsets": 100})
    pipeline.go(batches=5)
    assert pipeline.first() == "CAP_LOW"


@pytest.mark.long
def test_trigger_long_is_first_where_it_is(topics: Any, pipeline: Pipeline) -> None:
    topics.send(pipeline.topic, events(3_000))
    pipeline.write(flow=STEADY, trigger={"every": "4 seconds"})
    pipeline.go(batches=4)
    assert pipeline.first() == "TRIGGER_LONG"


@pytest.mark.long
def test_slow_sink_is_first_where_a_trigger_of_the_database_sleeps(
    topics: Any, pipeline: Pipeline, database: str
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(SLEEPY)
    topics.send(pipeline.topic, events(3_000))
    pipeline.write(sinks=[POSTGRES], flow=STEADY)
    pipeline.go(batches=4)
    [cause, *_] = pipeline.causes()
    assert cause.code == "SLOW_SINK"
    assert "sink pg" in cause.summary


def test_batch_stuck_is_first_where_somebody_holds_the_table(topics: Any, pipeline: Pipeline, database: str) -> None:
    topics.send(pipeline.topic, events(500))
    pipeline.write(sinks=[POSTGRES], flow={**STEADY, "max_batch": "1 second"})
    running = threading.Thread(target=pipeline.go, args=(1,))
    with psycopg.connect(database) as holder:
        holder.execute("LOCK TABLE orders IN SHARE ROW EXCLUSIVE MODE")
        running.start()
        try:
            # On a slow machine the batch is stuck before it comes to the table.
            locked = lambda: [(one.code, "lock on orders" in one.change) for one in pipeline.causes()]  # noqa: E731
            wait_for(lambda: locked() == [("BATCH_STUCK", True)], "a batch that is stuck at the table", 90)
        finally:
            holder.rollback()
            running.join(60)
    # It goes on once the table is free, and then is no cause any more.
    assert "BATCH_STUCK" not in [cause.code for cause in pipeline.causes()]


@pytest.mark.long
def test_slow_broker_is_first_where_fetch_settings_make_it_wait(topics: Any, pipeline: Pipeline) -> None:
    topics.send(pipeline.topic, events(3_000))
    pipeline.write(source={"options": {"fetch.min.bytes": "10000000", "fetch.wait.max.ms": "2000"}}, flow=STEADY)
    pipeline.go(batches=3)
    [cause, *_] = pipeline.causes()
    assert (cause.code, cause.change) == ("SLOW_BROKER", "remove fetch.min.bytes from source.options")


@pytest.mark.long
def test_slow_registry_is_first_where_it_answers_late(topics: Any, pipeline: Pipeline, registry: Any) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}]
    schema = {"type": "record", "name": "Event", "fields": fields}
    producer = RegistryProducer(topics.brokers, registry.url)
    producer.avro(pipeline.topic, schema, [{"id": number, "who": "a"} for number in range(1_000)])
    with slowed(registry.url, 1.0) as url:
        pipeline.write(decode={"format": "avro", "registry": {"url": url}}, flow=STEADY)
        pipeline.go(batches=4)
        [cause, *_] = pipeline.causes()
    assert cause.code == "SLOW_REGISTRY"
    assert cause.change.startswith("decode.version")


@pytest.mark.long
def test_gc_pressure_is_first_where_the_jvm_does_little_else(topics: Any, on_spark: Pipeline, spark: Any) -> None:
    topics.send(on_spark.topic, events(1_000))
    # Longer than the time between two looks at the garbage.
    on_spark.write(flow=STEADY, trigger={"every": "1 second"})
    system = spark.sparkContext._jvm.java.lang.System

    def collect() -> None:
        began = time.monotonic()
        system.gc()
        time.sleep((time.monotonic() - began) / 2)

    with meanwhile(collect):
        on_spark.go(batches=9)
    assert on_spark.first() == "GC_PRESSURE"


@pytest.mark.long
def test_gc_pressure_is_first_where_the_heap_of_a_run_is_too_small(topics: Any, on_spark: Pipeline) -> None:
    topics.send(on_spark.topic, events(3_000))
    rubbish = "transform(sequence(1, 20000), n -> md5(concat(who, n)))"
    on_spark.write(
        transforms=[{"sql": f"SELECT *, size({rubbish}) + length({rubbish}[7]) AS rubbish FROM input"}],
        spark={"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Xmn4m"},
        flow=STEADY,
    )
    with Running(on_spark.file.parent, "run", str(on_spark.file)) as running:
        running.await_text("batch 3", seconds=300)
        # In the first batches of a busy machine the JVM has more to compile than to collect.
        first = lambda: [cause.code for cause in on_spark.causes()][:1]  # noqa: E731
        wait_for(lambda: first() == ["GC_PRESSURE"], "a heap that is found too small", 300)
        running.send(signal.SIGKILL)
        running.process.wait()
    [first, second, *_] = on_spark.causes()
    assert (first.code, second.code) == ("NOT_RUNNING", "GC_PRESSURE")
    assert "the last run was killed" in first.summary


def test_quarantine_storm_is_first_where_records_turn_bad(topics: Any, pipeline: Pipeline) -> None:
    pipeline.write()
    topics.send(pipeline.topic, events(200))
    pipeline.go()
    topics.send(pipeline.topic, [b"<xml/>"] * 150)
    pipeline.go()
    [cause, *_] = pipeline.causes()
    assert cause.code == "QUARANTINE_STORM"
    assert "--code MALFORMED_JSON" in cause.change


def test_small_files_are_first_where_nothing_joins_them(topics: Any, pipeline: Pipeline) -> None:
    topics.send(pipeline.topic, events(720))
    sink = {"name": "out", "type": "delta", "path": "lake/out", "partition_by": ["who"]}
    pipeline.write(sinks=[sink], source={"max_offsets": 240})
    pipeline.go()
    assert pipeline.first() == "SMALL_FILES"


@pytest.mark.long
def test_state_grows_is_first_where_event_time_stands_still(topics: Any, on_spark: Pipeline) -> None:
    topics.send(on_spark.topic, events(1_000, seconds=0))
    on_spark.write(transforms=[WATERMARK, DEDUPE], source={"max_offsets": 250})
    on_spark.go()
    [cause, *_] = on_spark.causes()
    assert cause.code == "STATE_GROWS"
    assert "does not advance" in cause.evidence[1]


@pytest.mark.long
def test_few_partitions_are_first_where_cores_have_nothing_to_read(
    spark: Any, topics: Any, pipeline_file: Write
) -> None:
    pipeline = Pipeline(spark, pipeline_file, topics.create(1))
    topics.send(pipeline.topic, events(2_000))
    pipeline.write(transforms=[WATERMARK, DEDUPE], flow=STEADY)
    pipeline.go(batches=3)
    assert pipeline.first() == "FEW_PARTITIONS"


@pytest.mark.long
def test_hot_partition_is_first_where_most_records_are_in_one(spark: Any, topics: Any, pipeline_file: Write) -> None:
    pipeline = Pipeline(spark, pipeline_file, topics.create(4))
    topics.send(pipeline.topic, events(3_000), partition=2)
    topics.send(pipeline.topic, events(200))
    pipeline.write(transforms=[WATERMARK, DEDUPE], flow=STEADY)
    pipeline.go(batches=3)
    [cause, *_] = pipeline.causes()
    assert cause.code == "HOT_PARTITION"
    assert f"{pipeline.topic}[2]" in cause.summary


@pytest.mark.long
def test_skewed_keys_are_first_where_a_join_has_one_that_most_rows_share(
    spark: Any, topics: Any, pipeline_file: Write
) -> None:
    pipeline = Pipeline(spark, pipeline_file, topics.create(2))
    people = topics.create(2)
    topics.send(pipeline.topic, events(8_000, who="unknown", seconds=0.01))
    topics.send(people, [{"who": "unknown", "name": str(n), "seen_at": START.isoformat()} for n in range(40)])

    def side(topic: str, schema: str, column: str) -> dict[str, Any]:
        watermark = {"watermark": {"column": column, "delay": "1 hour"}}
        decode = {"format": "json", "schema": schema}
        source = {"type": "kafka", "brokers": topics.brokers, "topics": [topic], "start": "earliest"}
        return {**source, "decode": decode, "transforms": [watermark]}

    join = {"left": "orders", "right": "people", "on": ["who"], "within": "1 hour"}
    pipeline.write(
        source=None,
        decode=None,
        sources={
            "orders": side(pipeline.topic, COLUMNS, "at"),
            "people": side(people, "who STRING, name STRING, seen_at TIMESTAMP", "seen_at"),
        },
        transforms=[{"join": join}],
        flow={**STEADY, "min_offsets": 2_000, "max_offsets": 2_000},
    )
    pipeline.go(batches=3)
    assert pipeline.first() == "SKEWED_KEYS"


@pytest.mark.long
def test_input_above_rate_is_first_where_nothing_else_explains_it(
    topics: Any, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "steps.py").write_text(
        "import time\n\n\ndef slowly(rows):\n    time.sleep(0.02 * rows.num_rows)\n    return rows\n"
    )
    topics.send(pipeline.topic, events(300))
    pipeline.write(transforms=[{"map_arrow": "steps.slowly"}], flow=STEADY)

    def produce() -> None:
        topics.send(pipeline.topic, events(200))
        time.sleep(0.1)

    with meanwhile(produce):
        pipeline.go(batches=4)
    assert pipeline.first() == "INPUT_ABOVE_RATE"
