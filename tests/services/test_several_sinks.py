"""Several sinks in one pipeline: each gets its own rows, in both lanes, and a crash between two leaves both right."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from tests import orders
from tests.committed import committed
from tests.orders import drain, forget_commit
from tests.sessions import LANES_LONG
from tests.tables import read_table

from penstock.config import load
from penstock.ops.plan import plan_run

pytestmark = pytest.mark.services
Write = Callable[..., Path]
rows_of = partial(orders.rows_of, coordinates=True)
COLUMNS = "order_id BIGINT, customer_id STRING, amount DOUBLE, event_time TIMESTAMP, op STRING"


def order(number: int, amount: float = 1.5, op: str = "c") -> dict[str, Any]:
    return orders.order(number, customer_id=f"c{number % 3}", amount=amount, op=op)


def files_of(file: Path, folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        ds.dataset(file.parent / folder, partitioning="hive").to_table(use_threads=False).to_pylist()
    )
    return sorted(found, key=lambda row: row["order_id"])


@LANES_LONG
def test_sinks_with_select_and_where_each_gets_its_own_rows(
    session: Any, topics: Any, pipeline_file: Write, lane: str
) -> None:
    topic, clean = topics.create(2), topics.create(3, prefix="clean")
    file = pipeline_file(
        topic,
        name=f"orders-{topic}",
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        sinks=[
            {"name": "all", "type": "delta", "path": "lake/all"},
            {
                "name": "large",
                "type": "delta",
                "path": "lake/large",
                "where": "amount > 5",
                "select": ["order_id", "amount"],
            },
            {"name": "files", "type": "parquet", "path": "lake/files", "where": "op = 'd'", "coordinates": False},
            {
                "name": "out",
                "type": "kafka",
                "topic": clean,
                "key": "order_id",
                "headers": {"op": "op"},
                "where": "customer_id <> 'c0'",
                "select": ["order_id", "op"],
            },
        ],
    )
    sent = [order(n, amount=n, op="d" if n % 4 == 0 else "c") for n in range(20)]
    topics.send(topic, [*sent, b"broken"])
    assert drain(file, session).rows_out == 20
    assert [row["order_id"] for row in rows_of(file, "lake/all")] == list(range(20))
    large = rows_of(file, "lake/large")
    assert [row["order_id"] for row in large] == list(range(6, 20))
    assert sorted(large[0]) == ["_penstock", "amount", "order_id"]
    files = files_of(file, "lake/files")
    assert [row["order_id"] for row in files] == [0, 4, 8, 12, 16]
    assert "_penstock" not in files[0]
    messages = committed(topics.brokers, clean)
    wanted = {n for n in range(20) if n % 3}
    assert {int(m.key()) for m in messages} == wanted
    assert len(messages) == len(wanted)
    assert all(json.loads(m.value()) == {"order_id": int(m.key()), "op": sent[int(m.key())]["op"]} for m in messages)
    assert all(m.headers() == [("op", sent[int(m.key())]["op"].encode())] for m in messages)
    assert len(read_table(file.parent / "lake/quarantine")) == 1


@LANES_LONG
def test_sinks_batch_run_again_after_the_commits_changes_none_of_them(
    session: Any, topics: Any, pipeline_file: Write, lane: str
) -> None:
    topic, clean, bad = topics.create(2), topics.create(1, prefix="clean"), topics.create(1, prefix="bad")
    file = pipeline_file(
        topic,
        name=f"orders-{topic}",
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        quarantine={"table": "lake/quarantine", "topic": bad},
        sinks=[
            {"name": "all", "type": "delta", "path": "lake/all"},
            {"name": "files", "type": "parquet", "path": "lake/files"},
            {"name": "out", "type": "kafka", "topic": clean, "key": "order_id", "slots": 2},
        ],
    )
    topics.send(topic, [*(order(n) for n in range(10)), b"broken"])
    drain(file, session)

    def everything() -> Any:
        topic_rows = [(m.key(), m.value()) for m in committed(topics.brokers, clean)]
        bad_rows = [(m.value(), dict(m.headers())["code"]) for m in committed(topics.brokers, bad)]
        return (
            rows_of(file, "lake/all"),
            files_of(file, "lake/files"),
            topic_rows,
            bad_rows,
            rows_of(file, "lake/quarantine"),
        )

    before = everything()
    assert [len(part) for part in before] == [10, 10, 10, 1, 1]
    assert before[3][0][0] == b"broken"
    forget_commit(file)
    drain(file, session)
    assert everything() == before


@LANES_LONG
def test_merge_keys_deletes_and_tombstones_leave_the_last_word_of_each_key(
    session: Any, topics: Any, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        name=f"orders-{topic}",
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        sinks=[
            {
                "name": "out",
                "type": "delta",
                "path": "lake/out",
                "mode": "merge",
                "keys": ["order_id"],
                "delete_when": "op = 'd'",
            }
        ],
    )
    topics.send(topic, [order(1, 10), order(2, 20), order(3, 30), order(1, 11), order(4, 40)])
    topics.send(topic, [{"customer_id": "nobody", "amount": 9.0}])
    drain(file, session)
    assert [(r["order_id"], r["amount"]) for r in rows_of(file, "lake/out")] == [(1, 11), (2, 20), (3, 30), (4, 40)]
    [bad] = read_table(file.parent / "lake/quarantine").to_pylist()
    assert (bad["code"], bad["stage"], bad["offset"]) == ("SINK_KEY_NULL", "sink", 5)
    assert json.loads(bad["value"]) == {"customer_id": "nobody", "amount": 9.0}

    topics.send(topic, [order(2, 0, op="d"), order(5, 50)])
    topics.send(topic, [None], key=b"3")
    topics.send(topic, [None], key=b"not a number")
    topics.send(topic, [None], key=b"4")
    topics.send(topic, [order(4, 41)])
    summary = drain(file, session)
    assert [(r["order_id"], r["amount"]) for r in rows_of(file, "lake/out")] == [(1, 11), (4, 41), (5, 50)]
    assert summary.quarantined == 1
    codes = sorted(row["code"] for row in read_table(file.parent / "lake/quarantine").to_pylist())
    assert codes == ["SINK_KEY_NULL", "TOMBSTONE_KEY"]


def test_plan_several_sinks_shows_the_guarantee_and_rows_of_each(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        name=f"orders-{topic}",
        sinks=[
            {"name": "all", "type": "delta", "path": "lake/all"},
            {"name": "out", "type": "kafka", "topic": topics.create(1), "where": "amount > 5"},
            {"name": "loose", "type": "kafka", "topic": topics.create(1), "guarantee": "at_least_once"},
            {
                "name": "now",
                "type": "delta",
                "path": "lake/now",
                "mode": "merge",
                "keys": ["order_id"],
                "prune_by": ["event_time"],
            },
        ],
    )
    plan = plan_run(load(file))
    assert not plan.problems
    assert [(sink.name, sink.guarantee, sink.takes) for sink in plan.sinks] == [
        ("quarantine", "exactly once", "bad records"),
        ("all", "exactly once", "all rows"),
        ("out", "exactly once", "rows where amount > 5"),
        ("loose", "at least once", "all rows"),
        (
            "now",
            "exactly once",
            "all rows, merged by order_id, reading only where event_time can match: it must never change for a key",
        ),
    ]
