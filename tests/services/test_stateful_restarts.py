"""Pipelines with state that die and run on: every table is that of the same pipeline that never died.

Deleting `commits/N` leaves a checkpoint as a driver does that died after all sinks had committed; a commit that raises
leaves one sink behind the others. Spark then runs the batch again, from the state before it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
import tests.numbering
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from tests.committed import committed
from tests.conftest import COLUMNS
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.errors import MissingError, PenstockError
from penstock.model import Position
from penstock.preflight.options import RunOptions, RunSummary
from penstock.sinks.delta import DeltaSink
from penstock.sinks.iceberg import IcebergSink
from penstock.sinks.parquet import ParquetSink
from penstock.supervision.run import run

pytestmark = pytest.mark.services

START = datetime(2026, 1, 1, tzinfo=UTC)
PAID = "paid_order BIGINT NOT NULL, paid BIGINT, paid_at TIMESTAMP"
WATERMARK = {"column": "event_time", "delay": "10 minutes"}
Rows = list[tuple[Any, ...]]


def order(number: int, minutes: float, who: str = "a", amount: float = 1) -> dict[str, Any]:
    time = (START + timedelta(minutes=minutes)).isoformat()
    return {"order_id": number, "customer_id": who, "amount": amount, "event_time": time}


def payment(number: int, minutes: float) -> dict[str, Any]:
    return {"paid_order": number, "paid": number * 10, "paid_at": (START + timedelta(minutes=minutes)).isoformat()}


@dataclass
class Mortal:
    """One pipeline over some topics, with a sink of each wanted kind; `columns` are what its tables are compared by."""

    file: Path
    columns: Sequence[str]
    brokers: str
    session: Any
    database: str | None

    def drain(self) -> RunSummary:
        return run(load(self.file), RunOptions(available_now=True), session=self.session)

    @property
    def last(self) -> int:
        """The last batch that Spark calls done."""
        found = SparkCheckpoint(str(self.file.parent / "checkpoint")).last_committed()
        assert found is not None
        return found

    def forget(self) -> int:
        """As a driver that died between the last sink's commit and Spark's own."""
        batch = self.last
        for name in (f"{batch}", f".{batch}.crc"):
            (self.file.parent / "checkpoint/commits" / name).unlink(missing_ok=True)
        return batch

    def held(self) -> dict[str, Rows]:
        """The rows of every target, in one order."""
        found: dict[str, Rows] = {}
        for sink in yaml.safe_load(self.file.read_text())["sinks"]:
            rows = getattr(self, f"_read_{sink['type']}")(sink)
            found[sink["name"]] = sorted((tuple(row[name] for name in self.columns) for row in rows), key=str)
        return found

    def quarantined(self) -> list[tuple[str, int]]:
        rows = read_table(self.file.parent / "lake/quarantine").to_pylist()
        return sorted((row["code"], row["offset"]) for row in rows)

    def _read_delta(self, sink: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read_table(self.file.parent / sink["path"]).to_pylist()
        return found

    def _read_iceberg(self, sink: dict[str, Any]) -> list[dict[str, Any]]:
        warehouse = self.file.parent / sink["warehouse"]
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
        found: list[dict[str, Any]] = catalog.load_table(sink["table"]).scan().to_arrow().to_pylist()
        return found

    def _read_kafka(self, sink: dict[str, Any]) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in committed(self.brokers, sink["topic"])]

    def _read_postgres(self, sink: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.database is not None
        with psycopg.connect(self.database, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute(f"SELECT * FROM {sink['table']}".encode()).fetchall()

    def _read_parquet(self, sink: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            ds.dataset(self.file.parent / sink["path"], format="parquet").to_table(use_threads=False).to_pylist()
        )
        return found


@pytest.fixture
def database(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new database; pipeline files find it as ${env:TEST_DB}."""
    name = postgres.create_database()
    monkeypatch.setenv("TEST_DB", postgres.url(name))
    yield postgres.url(name)
    postgres.drop_database(name)


Make = Callable[..., Mortal]


@pytest.fixture
def mortal(request: pytest.FixtureRequest, topics: Any, tmp_path: Path) -> Make:
    """Makes a pipeline in a folder of its own. Without `kinds` it has one table, and is to be left alone."""

    def make(kinds: Sequence[str] = ("delta",), *, columns: Sequence[str], session: Any = None, **keys: Any) -> Mortal:
        session = session or request.getfixturevalue("spark")
        folder = tmp_path / f"p{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "steps.py").write_text(Path(tests.numbering.__file__).read_text())
        made: dict[str, Callable[[], dict[str, Any]]] = {
            "delta": lambda: {"path": "lake/delta"},
            "iceberg": lambda: {"table": "shop.out", "warehouse": "lake/ice"},
            "kafka": lambda: {"topic": topics.create(2, prefix="out"), "slots": 2},
            "postgres": lambda: {"url": "${env:TEST_DB}", "table": "out", "create": True},
            "parquet": lambda: {"path": "lake/files"},
        }
        url = request.getfixturevalue("database") if "postgres" in kinds else None
        body = {
            "name": f"{folder.name}-{uuid.uuid4().hex[:8]}",
            **keys,
            "quarantine": {"table": "lake/quarantine"},
            "sinks": [{"name": kind, "type": kind, **made[kind]()} for kind in kinds],
            "checkpoint": "checkpoint",
        }
        file = folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(body, sort_keys=False))
        return Mortal(file, columns, topics.brokers, session, url)

    return make


@contextmanager
def dying(kind: Any, batch: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run inside dies when such a sink is to commit a batch: the sinks before it have it."""
    real = kind.land

    def land(self: Any, position: Position, manifests: Any, onto: Position | None) -> None:
        if position.last.batch_id == batch:
            raise RuntimeError("the driver dies here")
        real(self, position, manifests, onto)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "land", land)
        with pytest.raises(PenstockError, match="dies here"):
            yield


def source(topics: Any, topic: str, **more: Any) -> dict[str, Any]:
    return {"type": "kafka", "brokers": topics.brokers, "topics": [topic], "start": "earliest", **more}


def decode(columns: str) -> dict[str, Any]:
    return {"format": "json", "schema": columns}


WINDOW = {"size": "5 minutes", "by": ["customer_id"], "aggregates": {"orders": "count(*)", "total": "sum(amount)"}}
WINDOWS: dict[str, Any] = {
    "columns": ["minute", "customer_id", "orders", "total"],
    "transforms": [
        {"watermark": {**WATERMARK, "late": "quarantine"}},
        {"window": WINDOW},
        {"derive": {"minute": "unix_seconds(window_start) div 60 - 29453760"}},
    ],
    "decode": decode(COLUMNS),
}


@pytest.mark.long
def test_windows_in_five_sinks_after_deaths_are_those_of_a_run_without(
    topics: Any, mortal: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(2)
    calm = mortal(source=source(topics, topic), **WINDOWS)
    cut = mortal(["delta", "iceberg", "kafka", "postgres", "parquet"], source=source(topics, topic), **WINDOWS)
    # The first batch of all: the slots of the topic have it, the tables and the quarantine have not.
    topics.send(topic, [order(1, 0), order(2, 1, amount=5), order(3, 2, "b"), order(4, 6), b"no"])
    calm.drain()
    with dying(DeltaSink, 0, monkeypatch):
        cut.drain()
    # Windows come out in a batch without new records; every sink has it, Spark does not know.
    topics.send(topic, [order(5, 30)])
    calm.drain()
    cut.drain()
    assert cut.forget() == 2
    # Late, for the watermark stands at 20 minutes: the quarantine has them, and every sink but one.
    topics.send(topic, [order(7, 3), order(8, 16), order(9, 21), order(10, 21, "b"), order(11, 60)])
    calm.drain()
    with dying(ParquetSink, 3, monkeypatch):
        cut.drain()
    topics.send(topic, [order(12, 61)])
    calm.drain()
    cut.drain()
    assert cut.forget() == 5
    cut.drain()
    expected = calm.held()["delta"]
    assert len(expected) == 6
    assert cut.held() == dict.fromkeys(cut.held(), expected)
    assert cut.quarantined() == calm.quarantined()
    assert [code for code, _ in cut.quarantined()] == ["LATE", "LATE", "MALFORMED_JSON"]


def test_dedupe_across_batches_after_deaths_keeps_each_key_once(
    topics: Any, mortal: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(1)
    keys = {
        "columns": ["order_id", "customer_id"],
        "source": source(topics, topic),
        "decode": decode(COLUMNS),
        "transforms": [{"watermark": WATERMARK}, {"dedupe": {"keys": ["order_id"], "within": "1 hour"}}],
    }
    cut = mortal(["kafka", "iceberg"], **keys)
    topics.send(topic, [order(1, 0), order(2, 0, "first"), order(2, 1, "second"), order(3, 4)])
    with dying(IcebergSink, 0, monkeypatch):
        cut.drain()
    topics.send(topic, [order(1, 2), order(4, 3), order(2, 4, "third")])
    cut.drain()
    assert cut.forget() == 1
    topics.send(topic, [order(3, 5), order(5, 40), order(4, 31), order(5, 41)])
    cut.drain()
    expected = [(1, "a"), (2, "first"), (3, "a"), (4, "a"), (5, "a")]
    assert cut.held() == {"kafka": expected, "iceberg": expected}


@pytest.mark.long
def test_join_of_two_sources_after_deaths_gives_each_pair_and_each_lone_row_once(
    topics: Any, mortal: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, payments = topics.create(2, prefix="orders"), topics.create(1, prefix="payments")
    sides = {
        "orders": {**source(topics, orders), "decode": decode(COLUMNS), "transforms": [{"watermark": WATERMARK}]},
        "payments": {
            **source(topics, payments),
            "decode": decode(PAID),
            "transforms": [{"watermark": {**WATERMARK, "column": "paid_at"}}],
        },
    }
    on = {"order_id": "paid_order"}
    join = {"left": "orders", "right": "payments", "on": on, "within": "1 hour", "type": "full"}
    keys = {"columns": ["order_id", "amount", "paid"], "sources": sides, "transforms": [{"join": join}]}
    cut = mortal(["postgres", "kafka", "parquet"], **keys)
    topics.send(orders, [order(1, 0), order(2, 1), order(3, 2)])
    topics.send(payments, [payment(1, 5), payment(7, 5)])
    with dying(ParquetSink, 0, monkeypatch):
        cut.drain()
    topics.send(payments, [payment(2, 5), b"bad"])
    cut.drain()
    assert cut.forget() == 1
    # Both watermarks pass the hour: what found no match comes out in a batch without new records.
    topics.send(orders, [order(100, 300)])
    topics.send(payments, [payment(200, 300)])
    with dying(ParquetSink, 3, monkeypatch):
        cut.drain()
    topics.send(payments, [payment(100, 301)])
    cut.drain()
    calm = mortal(**keys)
    calm.drain()
    expected = calm.held()["delta"]
    pairs = [(1, 1, 10), (2, 1, 20), (3, 1, None), (None, None, 70), (100, 1, 1000)]
    assert expected == sorted(pairs, key=str)
    assert cut.held() == dict.fromkeys(cut.held(), expected)
    assert cut.quarantined() == calm.quarantined() == [("MALFORMED_JSON", 3)]


@pytest.mark.long
def test_stateful_class_after_deaths_counts_each_row_once_and_tells_each_timer_once(
    topics: Any, mortal: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(1)
    keys = {
        "columns": ["customer_id", "number", "order_id"],
        "source": source(topics, topic),
        "decode": decode(COLUMNS),
        "transforms": [{"watermark": WATERMARK}, {"stateful": tests.numbering.STEP}],
    }
    cut = mortal(["kafka", "delta"], **keys)
    topics.send(topic, [order(1, 0), order(2, 1, "b"), order(3, 4)])
    with dying(DeltaSink, 0, monkeypatch):
        cut.drain()
    topics.send(topic, [order(4, 3), order(5, 4, "b"), order(6, 4)])
    cut.drain()
    assert cut.forget() == 1
    # The timers go off, a day later, in a batch without new records.
    topics.send(topic, [order(7, 2000, "c")])
    with dying(DeltaSink, 3, monkeypatch):
        cut.drain()
    cut.drain()
    assert cut.forget() == 3
    cut.drain()
    calm = mortal(**keys)
    calm.drain()
    expected = calm.held()["delta"]
    assert {("a", 4, 6), ("a", 4, -1), ("b", 2, -1), ("c", 1, 7)} < set(expected)
    assert len(expected) == 9
    assert cut.held() == dict.fromkeys(cut.held(), expected)


@pytest.mark.long
def test_topic_alone_whose_slots_are_ahead_of_the_quarantine_leaves_it_whole(
    topics: Any, mortal: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with SQL behind the state: every slot is there in batches without rows too."""
    topic = topics.create(1)
    keys = {**WINDOWS, "transforms": [*WINDOWS["transforms"], {"sql": "SELECT * FROM input"}]}
    cut = mortal(["kafka"], source=source(topics, topic), **keys)
    topics.send(topic, [order(1, 0), order(2, 30)])
    cut.drain()
    topics.send(topic, [order(3, 1), b"bad", order(4, 30)])
    with dying(DeltaSink, cut.last + 1, monkeypatch):
        cut.drain()
    topics.send(topic, [order(5, 60)])
    cut.drain()
    assert cut.quarantined() == [("LATE", 2), ("MALFORMED_JSON", 3)]
    assert cut.held() == {"kafka": [(0, "a", 1, 1), (30, "a", 2, 2)]}


def test_state_of_a_first_start_that_failed_does_not_bind_the_corrected_file(
    session: Any, topics: Any, mortal: Make, database: str
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1, 0)])
    one = mortal(columns=["order_id"], session=session, source=source(topics, topic), decode=decode(COLUMNS))
    corrected = one.file.read_text()
    nowhere = {"name": "pg", "type": "postgres", "url": "${env:TEST_DB}", "table": "nowhere"}
    wrong = {**yaml.safe_load(corrected), "transforms": WINDOWS["transforms"], "sinks": [nowhere]}
    one.file.write_text(yaml.safe_dump(wrong, sort_keys=False))
    with pytest.raises(MissingError):
        one.drain()
    one.file.write_text(corrected)
    one.drain()
    topics.send(topic, [order(2, 1)])
    one.drain()
    assert one.held() == {"delta": [(1,), (2,)]}
