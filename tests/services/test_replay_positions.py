"""Replays and redrives on every sink: the targets alone say what was done, whatever became of the folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from tests.committed import committed
from tests.tables import read_table

from penstock.config import PipelineConfig, load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError, TerminalError
from penstock.ops.quarantine.listing import list_records
from penstock.ops.quarantine.place import Selection
from penstock.ops.redrive.redrive import apply_redrive, plan_redrive, try_redrive
from penstock.ops.replay.folder import ReplayRequest
from penstock.ops.replay.replay import apply_replay, plan_replay
from penstock.quarantine.marks import RedriveMarks
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]
LENIENT = "order_id BIGINT NOT NULL, customer STRING"
STRICT = "order_id BIGINT NOT NULL, customer STRING NOT NULL"


@pytest.fixture
def database(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A new database; pipeline files find it as ${env:TEST_DB}."""
    name = postgres.create_database()
    monkeypatch.setenv("TEST_DB", postgres.url(name))
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


def order(number: int, customer: str | None = "c") -> dict[str, Any]:
    return {"order_id": number, "customer": customer}


def name_of(topic: str) -> str:
    """A pipeline of the test's own: the markers of its Kafka sink are on the broker that all share."""
    return f"orders-{topic}"


def decode(columns: str) -> dict[str, str]:
    return {"format": "json", "schema": columns}


def every_sink(topic: str, kinds: str = "delta iceberg pg files topic") -> list[dict[str, Any]]:
    pg = {"type": "postgres", "url": "${env:TEST_DB}", "table": "public.out", "create": True, "coordinates": True}
    found = {
        "delta": {"type": "delta", "path": "lake/out"},
        "iceberg": {"type": "iceberg", "table": "shop.out", "warehouse": "lake/ice"},
        "pg": pg,
        "files": {"type": "parquet", "path": "lake/files"},
        "topic": {"type": "kafka", "topic": f"{topic}.out", "create": True},
    }
    return [{"name": name, **found[name]} for name in kinds.split()]


class Targets:
    """The order ids that each target holds, by a reader of its own."""

    def __init__(self, folder: Path, brokers: str, database: Any) -> None:
        self.folder, self.brokers, self.database = folder, brokers, database

    def delta(self, path: str = "lake/out") -> list[int]:
        return sorted(read_table(self.folder / path, ["order_id"]).column(0).to_pylist())

    def iceberg(self, table: str = "shop.out") -> list[int]:
        place = self.folder / "lake/ice"
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{place}/catalog.db", warehouse=str(place))
        return sorted(catalog.load_table(table).scan().to_arrow().column("order_id").to_pylist())

    def pg(self, table: str = "public.out") -> list[int]:
        return sorted(number for (number,) in self.database.execute(f"SELECT order_id FROM {table}").fetchall())

    def files(self, path: str = "lake/files") -> list[int]:
        found = ds.dataset(self.folder / path, format="parquet", partitioning="hive", ignore_prefixes=["_", "."])
        return sorted(found.to_table(columns=["order_id"], use_threads=False).column(0).to_pylist())

    def topic(self, topic: str) -> list[int]:
        return sorted(json.loads(message.value())["order_id"] for message in committed(self.brokers, topic))

    def every(self, topic: str) -> dict[str, list[int]]:
        return {
            "delta": self.delta(),
            "iceberg": self.iceberg(),
            "pg": self.pg(),
            "files": self.files(),
            "topic": self.topic(f"{topic}.out"),
        }


def offsets_in(path: Path) -> list[tuple[str, int]]:
    return sorted((row["pipeline"], row["offset"]) for row in read_table(path).to_pylist())


def redrive(config: PipelineConfig, session: Any) -> Any:
    return apply_redrive(plan_redrive(config, Selection()), session=session)


def test_replay_elsewhere_interrupted_without_its_folder_goes_on_once_and_keeps_its_rejects(
    session: Any, topics: Any, pipeline_file: Write, database: Any, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send(topic, [*(order(n, None if n < 5 else "c") for n in range(30)), b"{broken"])
    name = name_of(topic)
    keys = {"name": name, "sinks": every_sink(topic), "source": {"max_offsets": 15}}
    live = load(pipeline_file(topic, decode=decode(LENIENT), **keys))
    run(live, session=session)
    held = Targets(tmp_path, topics.brokers, database)
    before = held.every(topic)
    assert set(map(len, before.values())) == {30}

    changed = load(pipeline_file(topic, decode=decode(STRICT), **keys))
    elsewhere = {
        "delta": str(tmp_path / "lake/again"),
        "iceberg": "shop.again",
        "pg": "public.again",
        "files": str(tmp_path / "lake/again_files"),
        "topic": f"{topic}.again",
    }
    request = ReplayRequest("earliest", "latest", into=tuple(f"{sink}={at}" for sink, at in elsewhere.items()))
    stop = StopRequest()

    def stop_after_one(event: Event) -> None:
        if isinstance(event, BatchDone):
            stop.ask()

    first = plan_replay(changed, request)
    assert apply_replay(first, stop_after_one, stop, session) is None
    folder = tmp_path / "checkpoints/orders-replays"
    shutil.rmtree(folder)
    again = plan_replay(changed, request)
    assert (again.name, again.done, again.batches) == (first.name, 1, 3)
    done = apply_replay(again, session=session)
    assert done is not None and done.batches == 2
    for gone in (False, True):
        if gone:
            shutil.rmtree(folder)
        with pytest.raises(MissingError) as refused:
            plan_replay(changed, request)
        assert refused.value.code == "REPLAY_FINISHED"
    # Another definition into the same target would double the records too.
    with pytest.raises(MissingError) as doubling:
        plan_replay(live, ReplayRequest("earliest", "latest", sinks=("delta",), into=(elsewhere["delta"],)))
    assert doubling.value.code == "REPLAY_TARGET_HOLDS"

    good = list(range(5, 30))
    assert held.delta("lake/again") == held.iceberg("shop.again") == held.pg("public.again") == good
    assert held.files("lake/again_files") == held.topic(f"{topic}.again") == good
    assert held.every(topic) == before
    assert offsets_in(tmp_path / "lake/quarantine") == [(name, 30)]
    assert offsets_in(tmp_path / "lake/again_quarantine") == [(first.name, n) for n in (0, 1, 2, 3, 4, 30)]
    assert again.quarantine == str(tmp_path / "lake/again_quarantine")
    assert plan_redrive(live, Selection()).records == 1, "the rejects of the replay are not of the pipeline"


def test_replay_in_place_of_tables_that_another_pipeline_writes_to_is_refused(
    session: Any, topics: Any, pipeline_file: Write, database: Any, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(10)])
    for name, where in (("low", "order_id < 5"), ("high", "order_id >= 5")):
        sinks = [{**sink, "where": where} for sink in every_sink(topic, "delta iceberg pg")]
        file = pipeline_file(topic, name, decode=decode(LENIENT), sinks=sinks, checkpoint=f"checkpoints/{name}")
        run(load(file), session=session)
    for sink in ("delta", "iceberg", "pg"):
        with pytest.raises(MissingError) as refused:
            plan_replay(load(file), ReplayRequest("earliest", "committed", sinks=(sink,)))
        assert (refused.value.code, refused.value.context["other writers"]) == ("REPLAY_SHARED_TARGET", f"low/{sink}")


def test_redrive_after_a_replay_of_one_sink_killed_and_begun_elsewhere_brings_each_record_once(
    session: Any,
    topics: Any,
    pipeline_file: Write,
    database: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = topics.create(1)
    topics.send(topic, [*(order(n, None if n < 4 else "c") for n in range(9)), b"{broken"])
    name = name_of(topic)
    keys = {"name": name, "sinks": every_sink(topic)}
    run(load(pipeline_file(topic, decode=decode(STRICT), **keys)), session=session)
    mended = load(pipeline_file(topic, decode=decode(LENIENT), **keys))
    held = Targets(tmp_path, topics.brokers, database)
    assert apply_replay(plan_replay(mended, ReplayRequest("earliest", "committed", sinks=("delta",))), session=session)
    assert (held.delta(), held.pg()) == (list(range(9)), list(range(4, 9)))
    assert offsets_in(tmp_path / "lake/quarantine") == [(name, n) for n in (0, 1, 2, 3, 9)]

    plan = plan_redrive(mended, Selection())
    tried = try_redrive(plan)
    assert (plan.records, plan.held) == (5, {"delta": 4})
    assert (tried.redriven, tried.failed, tried.codes) == (4, 1, {"MALFORMED_JSON": 1})
    assert tried.rows == {"delta": 0, "iceberg": 4, "pg": 4, "files": 4, "topic": 4}

    def die(self: RedriveMarks, *_: Any) -> None:
        raise TerminalError("DEAD", "every sink has the batch, and it is not marked")

    with monkeypatch.context() as dying, pytest.raises(TerminalError, match="DEAD"):
        dying.setattr(RedriveMarks, "land", die)
        redrive(mended, session)
    assert set(map(tuple, held.every(topic).values())) == {tuple(range(9))}
    moved = mended.model_copy(update={"checkpoint": str(tmp_path / "checkpoints/moved")})
    done = redrive(moved, session)
    assert (done.redriven, done.failed) == (4, 1)
    assert set(map(tuple, held.every(topic).values())) == {tuple(range(9))}
    # The folder of the killed one does no harm either.
    redrive(mended, session)
    assert set(map(tuple, held.every(topic).values())) == {tuple(range(9))}


def test_redrive_after_its_commit_was_taken_back_brings_the_rows_again_and_deleted_ones_stay_deleted(
    session: Any, topics: Any, pipeline_file: Write, database: Any, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n, None if n < 4 else "c") for n in range(9)])
    keys = {"sinks": every_sink(topic, "delta iceberg")}
    run(load(pipeline_file(topic, decode=decode(STRICT), **keys)), session=session)
    mended = load(pipeline_file(topic, decode=decode(LENIENT), **keys))
    held, table = Targets(tmp_path, topics.brokers, database), str(tmp_path / "lake/out")
    before = DeltaTable(table).version()
    assert redrive(mended, session).redriven == 4
    assert held.delta() == held.iceberg() == list(range(9))

    DeltaTable(table).restore(before)
    assert held.delta() == list(range(4, 9))
    plan = plan_redrive(mended, Selection())
    assert (plan.records, plan.taken_back, plan.ways) == (4, 4, {("delta",): 4})
    assert apply_redrive(plan, session=session).redriven == 4
    assert held.delta() == held.iceberg() == list(range(9))
    assert list_records(mended).states == {"redriven": 4}

    DeltaTable(table).delete("order_id < 2")
    assert plan_redrive(mended, Selection()).records == 0
    assert held.delta() == list(range(2, 9))
