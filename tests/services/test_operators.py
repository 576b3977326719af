"""What operators do to a pipeline: edits after a failed batch, restored copies, second drivers, lost checkpoints.

Whatever is done, each record is once in every target or once in the quarantine, or the run has stopped with a code.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField
from tests import orders
from tests.committed import committed
from tests.orders import order
from tests.services.running import wait_for
from tests.sessions import LANES_LONG, ON_BOTH_LONG
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.engine.listener import BatchDone, BatchPhase, Event
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.model import TopicPartition
from penstock.ops.checkpoint.repair import verify_checkpoint
from penstock.ops.redrive.redrive import Selection, apply_redrive, plan_redrive
from penstock.ops.snapshot import take_snapshot
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]
COLUMNS = "order_id BIGINT, amount DOUBLE"


drain = partial(orders.drain, give_up_after=20)


def edit(file: Path, **keys: Any) -> None:
    """Change top-level keys of a pipeline file, as a user with an editor does."""
    body = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**body, **keys}, sort_keys=False))


def refused(file: Path, session: Any, *listener: Callable[[Event], None], **options: Any) -> str:
    """The code that a run stops with."""
    with pytest.raises(PenstockError) as stopped:
        drain(file, session, *listener, **options)
    return stopped.value.code


def rename(file: Path, **names: str) -> None:
    """Give sinks other names, as a user with an editor does."""
    sinks = yaml.safe_load(file.read_text())["sinks"]
    edit(file, sinks=[{**sink, "name": names.get(sink["name"], sink["name"])} for sink in sinks])


def in_long(*sinks: str) -> list[Any]:
    """Sinks that `make long` tries: where another one of their family is in the default run."""
    return [pytest.param(sink, marks=pytest.mark.long) for sink in sinks]


def quarantined(file: Path) -> list[int]:
    """The offsets in the quarantine."""
    return sorted(row["offset"] for row in read_table(file.parent / "lake/quarantine").to_pylist())


@dataclass
class Places:
    """The targets of a pipeline with every sink, read by others than their writers, and put back to older copies."""

    folder: Path
    brokers: str
    clean: str
    fixture: Callable[[str], Any]
    pointer: str = ""
    slots: int = 2
    """Of the Kafka sink."""

    @property
    def database(self) -> Any:
        """A connection to a database, which is made when it is first asked for."""
        return self.fixture("database")

    def sinks(self) -> list[dict[str, Any]]:
        return [
            {"name": "delta", "type": "delta", "path": "lake/delta"},
            {"name": "iceberg", "type": "iceberg", "table": "shop.orders", "warehouse": "lake/iceberg"},
            {"name": "files", "type": "parquet", "path": "lake/files"},
            {
                "name": "pg",
                "type": "postgres",
                "url": "${env:TEST_DB}",
                "table": "orders",
                "create": True,
                "coordinates": True,
            },
            {"name": "out", "type": "kafka", "topic": self.clean, "key": "order_id", "slots": self.slots},
        ]

    def ids(self, sink: str) -> list[int]:
        """The order ids in one target."""
        return sorted(getattr(self, f"_{sink}")())

    def every(self) -> dict[str, list[int]]:
        return {sink["name"]: self.ids(sink["name"]) for sink in self.sinks()}

    def _delta(self) -> list[int]:
        return list(read_table(self.folder / "lake/delta").column("order_id").to_pylist())

    def _iceberg(self) -> list[int]:
        warehouse = self.folder / "lake/iceberg"
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
        return list(catalog.load_table("shop.orders").scan().to_arrow().column("order_id").to_pylist())

    def _files(self) -> list[int]:
        found = ds.dataset(self.folder / "lake/files", partitioning="hive").to_table(use_threads=False)
        return list(found.column("order_id").to_pylist())

    def _pg(self) -> list[int]:
        return [row[0] for row in self.database.execute("SELECT order_id FROM orders").fetchall()]

    def _out(self) -> list[int]:
        return [json.loads(m.value())["order_id"] for m in committed(self.brokers, self.clean)]

    def save(self, sink: str) -> None:
        """Take a copy of a target as it is now."""
        if sink == "pg":
            self.database.execute(
                "DROP TABLE IF EXISTS kept, kept_commits; CREATE TABLE kept AS SELECT * FROM orders;"
                " CREATE TABLE kept_commits AS SELECT * FROM penstock.penstock_commits"
            )
            return
        if sink == "iceberg":
            # An older copy of a table is an older pointer in its catalog: the files of both are there.
            with sqlite3.connect(self.folder / "lake/iceberg/catalog.db") as catalog:
                (self.pointer,) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
            return
        shutil.rmtree(self.folder / f"kept-{sink}", ignore_errors=True)
        shutil.copytree(self.folder / "lake" / sink, self.folder / f"kept-{sink}")

    def put_back(self, sink: str) -> None:
        """Put the copy in place of the target."""
        if sink == "pg":
            self.database.execute(
                "TRUNCATE orders, penstock.penstock_commits; INSERT INTO orders SELECT * FROM kept;"
                " INSERT INTO penstock.penstock_commits SELECT * FROM kept_commits"
            )
            return
        if sink == "iceberg":
            with sqlite3.connect(self.folder / "lake/iceberg/catalog.db") as catalog:
                catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (self.pointer,))
            return
        shutil.rmtree(self.folder / "lake" / sink)
        shutil.copytree(self.folder / f"kept-{sink}", self.folder / "lake" / sink)


@pytest.fixture
def database(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name = postgres.create_database()
    monkeypatch.setenv("TEST_DB", postgres.url(name))
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path, topics: Any, postgres: Any) -> Places:
    """The server is named here, so that the run knows which servers this file takes; the database is made when used."""
    return Places(tmp_path, topics.brokers, topics.create(2, prefix="clean"), request.getfixturevalue)


@pytest.fixture
def written(topics: Any, pipeline_file: Write, places: Places) -> Callable[..., tuple[str, Path]]:
    """A topic and a pipeline file with every sink, or those named; small batches."""

    def write(*names: str, **keys: Any) -> tuple[str, Path]:
        topic = topics.create(1)
        sinks = [sink for sink in places.sinks() if not names or sink["name"] in names]
        if not names or "pg" in names:
            assert places.database
        keys = {"decode": {"format": "json", "schema": COLUMNS}, "sinks": sinks, **keys}
        keys["source"] = {"max_offsets": 10, **keys.get("source", {})}
        return topic, pipeline_file(topic, name=f"orders-{topic}", **keys)

    return write


@LANES_LONG
def test_definition_edited_after_a_failed_batch_adds_the_newly_bad_record_to_the_quarantine(
    session: Any, topics: Any, written: Any, places: Places, lane: str
) -> None:
    places.database.execute("CREATE TABLE orders (order_id bigint, amount float8 CHECK (amount >= 0), _penstock jsonb)")
    topic, file = written("pg", lane=lane)
    topics.send(topic, [order(0), b"broken", order(2, amount=-1), order(3)])
    assert refused(file, session) == "SINK_ROW_REFUSED"
    assert quarantined(file) == [1]
    edit(file, transforms=[{"expect": {"positive": {"rule": "amount >= 0"}}}])
    summary = drain(file, session)
    assert quarantined(file) == [1, 2]
    assert places.ids("pg") == [0, 3]
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (4, 2, 2)


def test_record_that_is_quarantined_stays_out_of_the_targets_when_an_edit_makes_it_good(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    places.database.execute("CREATE TABLE orders (order_id bigint, amount float8 CHECK (amount >= 0), _penstock jsonb)")
    topic, file = written("pg", decode={"format": "json", "schema": "order_id BIGINT, amount DOUBLE NOT NULL"})
    topics.send(topic, [order(0), {"order_id": 1}, order(2, amount=-1)])
    assert refused(file, session) == "SINK_ROW_REFUSED"
    assert quarantined(file) == [1]
    edit(file, decode={"format": "json", "schema": COLUMNS}, transforms=[{"where": "amount >= 0 OR amount IS NULL"}])
    drain(file, session)
    assert (places.ids("pg"), quarantined(file)) == ([0], [1])


@pytest.mark.parametrize("sink", ["delta", "iceberg", "files", "pg"])
def test_target_put_back_to_an_older_copy_during_a_run_stops_it_and_catch_up_brings_the_rows(
    session: Any, topics: Any, written: Any, places: Places, sink: str
) -> None:
    topic, file = written(sink)
    topics.send(topic, [*(order(n) for n in range(15)), b"broken", *(order(n) for n in range(15, 39))])

    def restore(event: Event) -> None:
        if isinstance(event, BatchDone) and event.metrics.batch_id == 0:
            places.save(sink)
        if isinstance(event, BatchDone) and event.metrics.batch_id == 1:
            places.put_back(sink)

    assert refused(file, session, restore) == "TARGET_WENT_BACK"
    assert refused(file, session) == "TARGET_WENT_BACK"
    assert places.ids(sink) == list(range(10))
    drain(file, session, catch_up=True)
    assert places.ids(sink) == list(range(39))
    assert quarantined(file) == [15]
    drain(file, session)
    assert places.ids(sink) == list(range(39))


def test_database_put_back_to_before_its_first_batch_is_noticed_and_filled_again(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written("pg", "delta")
    topics.send(topic, [order(n) for n in range(12)])
    drain(file, session)
    places.database.execute("TRUNCATE orders, penstock.penstock_commits")
    topics.send(topic, [order(n) for n in range(12, 14)])
    assert refused(file, session) == "TARGET_WENT_BACK"
    drain(file, session, catch_up=True)
    assert (places.ids("pg"), places.ids("delta")) == (list(range(14)), list(range(14)))


def test_table_restored_to_before_its_first_batch_gets_nothing_from_before_the_start_of_the_pipeline(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written("delta", source={"start": "latest"})
    topics.send(topic, [order(n) for n in range(5)])
    drain(file, session)
    topics.send(topic, [order(n) for n in range(5, 8)])
    drain(file, session)
    assert places.ids("delta") == [5, 6, 7]
    DeltaTable(places.folder / "lake/delta").restore(0)
    assert refused(file, session) == "TARGET_WENT_BACK"
    drain(file, session, catch_up=True)
    assert places.ids("delta") == [5, 6, 7]


@ON_BOTH_LONG
def test_driver_that_hangs_while_another_takes_over_commits_nothing_when_it_wakes_up(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written()
    topics.send(topic, [order(n) for n in range(15)])
    hangs, wakes = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        if isinstance(event, BatchPhase) and (event.batch_id, event.phase) == (1, "stage"):
            hangs.set()
            assert wakes.wait(120)

    stopped: list[PenstockError] = []

    def first() -> None:
        try:
            drain(file, session, hang)
        except PenstockError as error:
            stopped.append(error)

    driver = threading.Thread(target=first)
    driver.start()
    assert hangs.wait(60)
    topics.send(topic, [order(n) for n in range(15, 20)])
    second = file.with_name("second.yaml")
    second.write_text(file.read_text())
    edit(second, checkpoint="checkpoints/second")
    drain(second, session.newSession(), resume_from_table=True)
    wakes.set()
    driver.join(120)
    assert [error.code for error in stopped] == ["FENCED"]
    assert places.every() == {sink["name"]: list(range(20)) for sink in places.sinks()}
    drain(second, session)
    assert places.every() == {sink["name"]: list(range(20)) for sink in places.sinks()}


def test_checkpoint_lost_after_the_quarantine_was_committed_resumes_with_nothing_lost_or_doubled(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    """The driver dies between the quarantine's commit and that of some sink; every sink in turn."""
    for number, sink in enumerate(places.sinks()):
        topic, file = written(sink["name"], checkpoint=f"checkpoints/{number}", quarantine={"table": f"lake/q{number}"})
        topics.send(topic, [*(order(n) for n in range(100 * number, 100 * number + 6)), b"broken", b"broken too"])

        def die(event: Event, sink: str = sink["name"]) -> None:
            if isinstance(event, BatchPhase) and event.phase == f"commit:{sink}":
                raise RuntimeError("the driver dies")

        refused(file, session, die)
        shutil.rmtree(file.parent / f"checkpoints/{number}")
        edit(file, decode={"format": "json", "schema": COLUMNS})
        drain(file, session, resume_from_table=True)
        assert len(read_table(file.parent / f"lake/q{number}")) == 2
        assert places.ids(sink["name"])[-6:] == list(range(100 * number, 100 * number + 6))
        assert len(places.ids(sink["name"])) == len(set(places.ids(sink["name"])))


def test_kafka_the_only_sink_commits_no_slot_before_the_bad_records_are_in_the_quarantine(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written("out")
    topics.send(topic, [order(0), b"broken", order(2)])

    def die(event: Event) -> None:
        if isinstance(event, BatchPhase) and event.phase == "commit:quarantine":
            raise RuntimeError("the driver dies")

    refused(file, session, die)
    assert places.ids("out") == []
    kept = file.parent / "kept"
    (file.parent / "checkpoints").rename(kept)
    drain(file, session, resume_from_table=True)
    assert (places.ids("out"), quarantined(file)) == ([0, 2], [1])


def test_kafka_batch_with_bad_records_counts_each_record_once(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written("out")
    topics.send(topic, [order(0), b"broken", order(2)])
    summary = drain(file, session)
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (3, 2, 1)
    assert (places.ids("out"), quarantined(file)) == ([0, 2], [1])


def test_quarantine_put_back_to_an_older_copy_is_noticed_and_filled_again(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written("delta")
    topics.send(topic, [order(0), b"broken"])
    drain(file, session)
    places.save("quarantine")
    topics.send(topic, [order(2), b"broken too", order(4)])
    drain(file, session)
    places.put_back("quarantine")
    assert refused(file, session) == "TARGET_WENT_BACK"
    drain(file, session, catch_up=True)
    assert (places.ids("delta"), quarantined(file)) == ([0, 2, 4], [1, 3])
    drain(file, session)


@LANES_LONG
@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint-kept", "checkpoint-lost"])
def test_quarantine_put_back_while_a_batch_is_open_gets_what_that_batch_had_quarantined(
    session: Any, topics: Any, written: Any, places: Places, lane: str, lost: bool
) -> None:
    """One sink has the open batch, the other does not, and one of its bad records is good by now."""
    needs_amount = {"format": "json", "schema": "order_id BIGINT, amount DOUBLE NOT NULL"}
    topic, file = written("delta", "files", lane=lane, decode=needs_amount)
    topics.send(topic, [order(0), b"broken"])
    drain(file, session)
    places.save("quarantine")

    def die(event: Event) -> None:
        if isinstance(event, BatchPhase) and event.phase == "commit:files":
            raise RuntimeError("the driver dies")

    topics.send(topic, [order(2), b"broken too", {"order_id": 4}])
    refused(file, session, die)
    places.put_back("quarantine")
    edit(file, decode={"format": "json", "schema": COLUMNS})
    options: dict[str, Any] = {}
    if lost:
        shutil.rmtree(file.parent / "checkpoints")
        options = {"resume_from_table": True}
    assert refused(file, session, **options) == "TARGET_WENT_BACK"
    drain(file, session, catch_up=True, **options)
    drain(file, session)
    assert quarantined(file) == [1, 3, 4]
    assert (places.ids("delta"), places.ids("files")) == ([0, 2], [0, 2, 4])
    apply_redrive(plan_redrive(load(file), Selection()), session=session)
    assert (places.ids("delta"), places.ids("files")) == ([0, 2, 4], [0, 2, 4])


def test_fresh_checkpoint_with_accepted_duplicates_moves_every_position_and_says_so(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written()
    topics.send(topic, [order(n) for n in range(3)])
    drain(file, session)
    shutil.rmtree(file.parent / "checkpoints")
    assert refused(file, session) == "SINK_HOLDS_OTHER_RUN"
    drain(file, session, accept_duplicates=True)
    twice = sorted([*range(3), *range(3)])
    assert places.every() == {sink["name"]: twice for sink in places.sinks()}
    topics.send(topic, [order(3)])
    drain(file, session)
    assert places.every() == {sink["name"]: [*twice, 3] for sink in places.sinks()}
    (token,) = places.database.execute("SELECT token FROM penstock.penstock_commits").fetchone()
    assert token["number"] >= 3


@pytest.mark.parametrize(
    ("loss", "session"),
    [("fail", "local"), ("record", "local"), pytest.param("record", "spark", marks=pytest.mark.long)],
    indirect=["session"],
)
def test_topic_that_appears_by_a_pattern_and_is_created_again_is_noticed(
    session: Any, topics: Any, written: Any, places: Places, loss: str
) -> None:
    prefix = topics.create(1, prefix="seen")
    late = f"{prefix}-late"
    _, file = written(
        "delta", source={"pattern": f"{prefix}.*", "on_data_loss": loss}, trigger={"every": "200 milliseconds"}
    )
    topics.send(prefix, [order(0)])
    stop, seen, read, again = StopRequest(), threading.Event(), threading.Event(), threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone) and event.metrics.rows_in:
            seen.set()
            if any(at.topic == late and end == 10 for at, end in event.metrics.ends.items()) and not read.is_set():
                read.set()
                assert again.wait(60)

    errors: list[PenstockError] = []

    def follow() -> None:
        try:
            run(load(file), RunOptions(give_up_after=20), listen, stop, session=session)
        except PenstockError as error:
            errors.append(error)

    driver = threading.Thread(target=follow)
    driver.start()
    try:
        assert seen.wait(60)
        from confluent_kafka.admin import NewTopic

        topics.admin.create_topics([NewTopic(late, 1, 1)])[late].result(30)
        topics.wait_for(late, 1)
        topics.send(late, [order(n) for n in range(1, 11)])
        assert read.wait(60)
        topics.create_again(late, 1)
        topics.send(late, [order(n) for n in range(11, 31)])
        again.set()
        if loss == "fail":
            driver.join(60)
            assert [error.code for error in errors] == ["TOPIC_RECREATED"]
            assert places.ids("delta") == list(range(11))
        else:
            wait_for(lambda: len(places.ids("delta")) == 31, "the topic that was created again", 90)
            assert places.ids("delta") == list(range(31))
            assert len(read_table(file.parent / "lake/quarantine_gaps")) >= 1
    finally:
        stop.ask()
        driver.join(60)
    assert not errors or loss == "fail"


def test_start_below_the_log_start_with_recorded_loss_records_the_gap_and_goes_on(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    from confluent_kafka import TopicPartition as KafkaPartition

    topic, file = written("delta")
    edit(
        file,
        source={**yaml.safe_load(file.read_text())["source"], "on_data_loss": "record", "start": {topic: {"0": 0}}},
    )
    topics.send(topic, [order(n) for n in range(5)])
    topics.admin.delete_records([KafkaPartition(topic, 0, 3)])
    wait_for(lambda: _log_start(topics, topic) == 3, "the log start")
    drain(file, session)
    assert places.ids("delta") == [3, 4]
    (gap,) = read_table(file.parent / "lake/quarantine_gaps").to_pylist()
    assert (gap["from_offset"], gap["to_offset"]) == (0, 3)


def _log_start(topics: Any, topic: str) -> int:
    from confluent_kafka import TopicPartition as KafkaPartition
    from confluent_kafka.admin import OffsetSpec

    at = KafkaPartition(topic, 0)
    return int(topics.admin.list_offsets({at: OffsetSpec.earliest()})[at].result(10).offset)


@LANES_LONG
def test_tables_that_require_values_are_written_where_the_columns_are_never_null(
    session: Any, topics: Any, written: Any, places: Places, lane: str
) -> None:
    path = places.folder / "lake/delta"
    if lane == "frame":
        session.sql(f"CREATE TABLE delta.`{path}` (order_id BIGINT NOT NULL, amount DOUBLE) USING delta")
    else:
        columns = [pa.field("order_id", pa.int64(), nullable=False), pa.field("amount", pa.float64())]
        DeltaTable.create(path, pa.schema(columns))
    warehouse = places.folder / "lake/iceberg"
    warehouse.mkdir(parents=True)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
    catalog.create_namespace("shop")
    catalog.create_table(
        "shop.orders",
        Schema(NestedField(1, "order_id", LongType(), required=True), NestedField(2, "amount", DoubleType())),
    )
    topic, file = written("delta", "iceberg", lane=lane)
    body = yaml.safe_load(file.read_text())
    edit(file, sinks=[{**sink, "coordinates": False} for sink in body["sinks"]])
    topics.send(topic, [order(1), order(2)])
    assert refused(file, session) == "SINK_SCHEMA_MISMATCH"
    edit(file, decode={"format": "json", "schema": "order_id BIGINT NOT NULL, amount DOUBLE"})
    drain(file, session)
    assert (places.ids("delta"), places.ids("iceberg")) == ([1, 2], [1, 2])


@ON_BOTH_LONG
def test_stop_while_a_batch_waits_for_its_log_end_is_answered_at_once(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    topic, file = written("delta")
    topics.send(topic, [order(n) for n in range(10)])
    drain(file, session)
    # The log ends before the batch that was begun: for a moment that is so when a broker is lost.
    SparkCheckpoint(load(file).checkpoint).put_offsets(1, {TopicPartition(topic, 0): 15}, like=0)
    stop, waits = StopRequest(), threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, BatchPhase) and event.phase == "stage":
            waits.set()

    options = RunOptions(available_now=True, give_up_after=120)
    driver = threading.Thread(target=run, args=(load(file), options, listen, stop), kwargs={"session": session})
    driver.start()
    assert waits.wait(60)
    stop.ask()
    driver.join(20)
    assert not driver.is_alive()
    assert places.ids("delta") == list(range(10))
    topics.send(topic, [order(n) for n in range(10, 15)])
    drain(file, session)
    assert places.ids("delta") == list(range(15))


@pytest.mark.parametrize("sink", [*in_long("delta", "files", "out"), "iceberg", "pg"])
def test_sink_renamed_while_its_batch_is_open_is_refused_until_its_old_name_has_finished_it(
    session: Any, topics: Any, written: Any, places: Places, sink: str
) -> None:
    places.slots = 1
    topic, file = written(sink)
    topics.send(topic, [order(n) for n in range(15)])

    def die(event: Event) -> None:
        if isinstance(event, BatchDone) and event.metrics.batch_id == 1:
            raise RuntimeError("the driver dies between the commit of the sink and that of the checkpoint")

    refused(file, session, die)
    assert places.ids(sink) == list(range(15))
    rename(file, **{sink: "another"})
    assert refused(file, session) == refused(file, session, accept_duplicates=True) == "SINK_RENAMED"
    (found,) = [one for one in verify_checkpoint(take_snapshot(load(file))).findings if one.blocks]
    assert (found.code, found.way_out.splitlines()[0]) == (
        "SINK_RENAMED",
        f"put the name {sink} back, and let a run finish the open batch: penstock run FILE",
    )
    rename(file, another=sink)
    drain(file, session)
    rename(file, **{sink: "another"})
    drain(file, session)
    drain(file, session)
    topics.send(topic, [order(n) for n in range(15, 17)])
    drain(file, session)
    rename(file, another="third")
    topics.send(topic, [order(n) for n in range(17, 19)])
    drain(file, session)
    assert places.ids(sink) == list(range(19))


def test_sink_renamed_back_while_its_batch_is_open_is_refused(
    session: Any, topics: Any, written: Any, places: Places
) -> None:
    places.slots = 1
    topic, file = written("delta", "out")
    topics.send(topic, [order(n) for n in range(5)])
    drain(file, session)
    rename(file, delta="table", out="topic")
    topics.send(topic, [order(n) for n in range(5, 8)])

    def die(event: Event) -> None:
        if isinstance(event, BatchDone):
            raise RuntimeError("the driver dies between the commit of the sinks and that of the checkpoint")

    refused(file, session, die)
    for names in ({"table": "delta"}, {"topic": "out"}):
        rename(file, **names)
        assert refused(file, session) == "SINK_RENAMED"
        rename(file, **{new: old for old, new in names.items()})
    drain(file, session)
    assert (places.ids("delta"), places.ids("out")) == (list(range(8)), list(range(8)))


@pytest.mark.parametrize("sink", ["delta", *in_long("iceberg", "files", "pg"), "out"])
def test_sink_renamed_when_the_checkpoint_is_lost_is_refused_whatever_is_asked(
    session: Any, topics: Any, written: Any, places: Places, sink: str
) -> None:
    places.slots = 1
    topic, file = written(sink)
    topics.send(topic, [order(n) for n in range(3)])
    drain(file, session)
    shutil.rmtree(file.parent / "checkpoints")
    rename(file, **{sink: "another"})
    resume = {"resume_from_table": True}
    for options in ({}, resume, {**resume, "catch_up": True}, {"accept_duplicates": True}):
        assert refused(file, session, **options) == "SINK_RENAMED"
    assert [one.code for one in verify_checkpoint(take_snapshot(load(file))).findings if one.blocks] == ["SINK_RENAMED"]
    rename(file, another=sink)
    topics.send(topic, [order(3)])
    drain(file, session, resume_from_table=True)
    rename(file, **{sink: "another"})
    topics.send(topic, [order(4)])
    drain(file, session)
    shutil.rmtree(file.parent / "checkpoints")
    assert refused(file, session) == "SINK_HOLDS_OTHER_RUN"
    drain(file, session, resume_from_table=True)
    assert places.ids(sink) == list(range(5))
