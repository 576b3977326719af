"""The rights of a pipeline, by its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config import load
from penstock.ops.acls import literal_prefix, plan_rights

FILE = """
name: orders
source:
  type: kafka
  brokers: a:1
  {source}
  security: {{mechanism: PLAIN, username: reader, password: "${{env:WORD}}"}}
decode: {{format: json, schema: "order_id BIGINT"}}
{more}
sinks:
  {sinks}
checkpoint: checkpoints/orders
"""
LAKE = "- {name: lake, type: delta, path: lake/orders}"

Rights = Callable[..., list[tuple[str, str, str, str]]]


@pytest.fixture
def rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rights:
    monkeypatch.setenv("WORD", "hunter2")

    def of(source: str = "topics: [orders]", more: str = "", sinks: str = LAKE) -> list[tuple[str, str, str, str]]:
        file = tmp_path / "orders.yaml"
        file.write_text(FILE.format(source=source, more=more, sinks=sinks))
        found = plan_rights(load(file)).rights
        assert {(one.brokers, one.principal) for one in found if one.brokers == "a:1"} == {("a:1", "User:reader")}
        return [(one.operation, one.resource, one.name, one.pattern) for one in found]

    return of


def test_rights_of_a_source_and_a_table_are_to_read_and_to_tell_the_group(rights: Rights) -> None:
    assert rights() == [("Read", "topic", "orders", "literal"), ("Read", "group", "penstock.orders", "literal")]


def test_rights_without_a_group_are_to_read_alone(rights: Rights) -> None:
    assert rights("topics: [a, b]\n  group: false") == [
        ("Read", "topic", "a", "literal"),
        ("Read", "topic", "b", "literal"),
    ]


def test_rights_of_a_sink_exactly_once_are_its_topic_markers_and_transactions(rights: Rights) -> None:
    found = rights("topics: [orders]\n  group: false", sinks="- {name: out, type: kafka, topic: clean, create: true}")
    assert found[1:] == [
        ("Write", "topic", "clean", "literal"),
        ("Create", "topic", "clean", "literal"),
        ("Read", "topic", "penstock.markers.orders.out", "literal"),
        ("Write", "topic", "penstock.markers.orders.out", "literal"),
        ("Create", "topic", "penstock.markers.orders.out", "literal"),
        ("DescribeConfigs", "topic", "clean", "literal"),
        ("DescribeConfigs", "topic", "penstock.markers.orders.out", "literal"),
        ("AlterConfigs", "topic", "penstock.markers.orders.out", "literal"),
        ("Write", "transactional-id", "orders/out/", "prefixed"),
    ]


def test_rights_of_a_sink_at_least_once_are_to_write(rights: Rights) -> None:
    sink = "- {name: out, type: kafka, topic: clean, guarantee: at_least_once}"
    assert rights("topics: [orders]\n  group: false", sinks=sink)[1:] == [("Write", "topic", "clean", "literal")]


def test_rights_of_a_quarantine_topic_and_of_alerts_are_among_them(rights: Rights) -> None:
    more = "quarantine: {topic: bad}\nalerts: {topic: alarms, rules: [{name: late, behind_over: 1 minute}]}"
    found = rights("topics: [orders]\n  group: false", more)
    assert [one for one in found if one[2] in ("bad", "alarms")] == [
        ("Write", "topic", "alarms", "literal"),
        ("Create", "topic", "alarms", "literal"),
        ("Write", "topic", "bad", "literal"),
        ("DescribeConfigs", "topic", "bad", "literal"),
    ]
    assert ("Write", "transactional-id", "orders/quarantine.topic/", "prefixed") in found
    assert ("Create", "topic", "penstock.markers.orders.quarantine.topic", "literal") in found


@pytest.mark.parametrize(("login", "user"), [("options: {sasl.username: writer}", "User:writer"), ("", "User:?")])
def test_rights_on_other_brokers_are_those_of_the_user_that_the_sink_logs_in_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str, user: str
) -> None:
    monkeypatch.setenv("WORD", "hunter2")
    sink = f"- {{name: out, type: kafka, topic: clean, guarantee: at_least_once, brokers: 'b:1', {login}}}"
    file = tmp_path / "orders.yaml"
    file.write_text(FILE.format(source="topics: [orders]", more="", sinks=sink))
    assert {one.principal for one in plan_rights(load(file)).rights if one.brokers == "b:1"} == {user}


def test_rights_of_a_pattern_are_by_its_prefix(rights: Rights) -> None:
    assert rights("pattern: 'orders-.*'")[0] == ("Read", "topic", "orders-", "prefixed")
    assert rights("pattern: '.*-orders'")[0] == ("Read", "topic", "*", "literal")


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders-.*", "orders-"),
        ("orders", "orders"),
        (r"shop\.orders\..*", "shop.orders."),
        ("orderss?", "orders"),
        ("orders+", "orders"),
        ("^orders-[0-9]+$", "orders-"),
        ("a|b", ""),
        ("(?i)orders", ""),
        (r"\w+", ""),
        ("x*y", ""),
    ],
)
def test_prefix_is_what_every_match_begins_with(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


def test_commands_are_one_for_each_resource_and_safe_in_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "hunter2")
    file = tmp_path / "orders.yaml"
    sinks = '- {name: out, type: kafka, topic: {expr: "\'x\'"}, brokers: "b:2"}'
    file.write_text(FILE.format(source="topics: [orders]", more="", sinks=sinks))
    needed = plan_rights(load(file))
    admin = "--command-config admin.properties --add"
    assert needed.commands[0] == (
        f"kafka-acls.sh --bootstrap-server a:1 {admin} --allow-principal User:reader --operation Read --topic orders"
    )
    assert needed.commands[2] == (
        f"kafka-acls.sh --bootstrap-server b:2 {admin} --allow-principal 'User:?' --operation Write "
        "--operation DescribeConfigs --topic '*'"
    )
    assert needed.commands[-1].endswith("--transactional-id orders/out/ --resource-pattern-type prefixed")
    assert len(needed.as_json()["rights"]) == len(needed.rights)
