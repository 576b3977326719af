"""A pipeline as a graph: every part is there, every rate that follows is told, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.dashboard.pipelines import SECRET, definition

from penstock.config import load
from penstock.dashboard.flow_graph import Rates, flow_graph

RATES = Rates(100.0, 60.0, 10.0)
TOTALS = {"rows_in": 1000, "rows_out": 600, "quarantined": 100}


def graph(file: Path) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], float | None]]:
    made = flow_graph(load(file), RATES, TOTALS, 24)
    return (
        {node["id"]: node for node in made["nodes"]},
        {(edge["from"], edge["to"]): edge["rate"] for edge in made["edges"]},
    )


def test_graph_of_a_plain_pipeline_tells_every_rate(tmp_path: Path) -> None:
    nodes, edges = graph(definition(tmp_path))
    assert [(node["id"], node["kind"]) for node in nodes.values()] == [
        ("source", "source"), ("decode", "decode"), ("sink:out", "sink"), ("quarantine", "quarantine"),
    ]  # fmt: skip
    assert edges == {("source", "decode"): 100.0, ("decode", "sink:out"): 60.0, ("decode", "quarantine"): 10.0}
    assert (nodes["source"]["title"], nodes["source"]["detail"], nodes["source"]["total"]) == (
        "orders", "24 partitions", 1000,
    )  # fmt: skip
    assert nodes["sink:out"]["detail"] == "delta, append, lake/orders"
    assert nodes["quarantine"]["detail"] == "table lake/orders_bad"
    assert nodes["decode"]["title"] == "json"


def test_graph_of_steps_tells_the_rates_that_follow_and_no_others(tmp_path: Path) -> None:
    steps = [
        {"derive": {"twice": "amount * 2"}},
        {"where": "amount >= 0"},
        {"dedupe": {"keys": ["order_id"]}},
        {"drop": ["twice"]},
    ]
    nodes, edges = graph(definition(tmp_path, transforms=steps))
    assert edges == {
        ("source", "decode"): 100.0,
        ("decode", "transform:0"): 90.0,
        ("transform:0", "transform:1"): 90.0,
        ("transform:1", "transform:2"): None,
        ("transform:2", "transform:3"): 60.0,
        ("transform:3", "sink:out"): 60.0,
        ("decode", "quarantine"): 10.0,
    }
    assert [nodes[f"transform:{n}"]["detail"] for n in range(4)] == ["twice", "amount >= 0", "order_id", "twice"]


def test_graph_of_several_that_refuse_records_tells_the_quarantine_only_in_all(tmp_path: Path) -> None:
    rule = {"expect": {"paid": {"rule": "amount > 0", "action": "quarantine"}}}
    nodes, edges = graph(definition(tmp_path, transforms=[rule]))
    assert nodes["quarantine"]["rate"] == 10.0
    assert {pair: rate for pair, rate in edges.items() if pair[1] == "quarantine"} == {
        ("decode", "quarantine"): None, ("transform:0", "quarantine"): None,
    }  # fmt: skip
    assert edges["decode", "transform:0"] is None and edges["transform:0", "sink:out"] == 60.0


def test_graph_of_routes_has_a_way_for_each(tmp_path: Path) -> None:
    sinks = [{"name": name, "type": "delta", "path": f"lake/{name}"} for name in ("big", "small")]
    routes = [{"where": "amount > 9", "sinks": ["big"]}, {"otherwise": True, "sinks": ["small"]}]
    nodes, edges = graph(definition(tmp_path, sinks=sinks, routes=routes))
    assert set(edges) == {
        ("source", "decode"), ("decode", "transform:0:where"), ("transform:0:where", "sink:big"),
        ("decode", "transform:1:where"), ("transform:1:where", "sink:small"), ("decode", "quarantine"),
    }  # fmt: skip
    assert edges["transform:0:where", "sink:big"] is None
    assert nodes["transform:1:where"]["title"] == "otherwise"


def test_graph_of_two_sources_joins_them(tmp_path: Path) -> None:
    def source(topic: str) -> dict[str, Any]:
        steps = [{"watermark": {"column": f"{topic}_time", "delay": "1 minute"}}]
        columns = f"{topic}_id BIGINT, {topic}_time TIMESTAMP"
        decode = {"format": "json", "schema": columns}
        return {"type": "kafka", "brokers": "127.0.0.1:1", "topics": [topic], "decode": decode, "transforms": steps}

    join = {"join": {"left": "a", "right": "b", "on": {"a_id": "b_id"}, "within": "5 minutes"}}
    sources = {name: source(name) for name in ("a", "b")}
    file = definition(tmp_path, source=None, decode=None, sources=sources, transforms=[join], quarantine=None)
    nodes, edges = graph(file)
    assert list(edges) == [
        ("source:a", "decode:a"), ("decode:a", "transform:a:0"), ("source:b", "decode:b"),
        ("decode:b", "transform:b:0"), ("transform:a:0", "transform:0"), ("transform:b:0", "transform:0"),
        ("transform:0", "sink:out"),
    ]  # fmt: skip
    assert nodes["transform:0"]["detail"] == "a and b"


def test_graph_shows_no_secret_and_no_broker_option(tmp_path: Path) -> None:
    sink = {"name": "pg", "type": "postgres", "url": "${file:secret}", "table": "public.orders"}
    mask = {"mask": {"amount": {"hash": "${file:secret}"}}}
    made = json.dumps(flow_graph(load(definition(tmp_path, sinks=[sink], transforms=[mask])), RATES, TOTALS, 24))
    assert SECRET not in made and "sasl" not in made and "127.0.0.1" not in made
    assert "postgres, append, public.orders" in made
