"""The steps of a pipeline file through whole runs, in both lanes: the same rows, quarantine and counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.orders import drain
from tests.sessions import LANES_LONG, ON_BOTH_LONG

from penstock.engine.listener import BatchDone, Event, Notice
from penstock.errors import DefinitionError, MissingError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.ages import first_unread
from penstock.model import TopicPartition

pytestmark = pytest.mark.services

COLUMNS = "id BIGINT, who STRING, amount BIGINT, tags ARRAY<STRING>, address STRUCT<city: STRING, zip: STRING>"
A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
"""The SHA-256 of an a."""


def order(number: int, who: str | None = "a", amount: int | None = 5, tags: Any = ("x",)) -> dict[str, Any]:
    address = {"city": f"city {number}", "zip": "1"}
    return {"id": number, "who": who, "amount": amount, "tags": list(tags), "address": address}


def rows(path: Path) -> list[dict[str, Any]]:
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def counts(events: list[Event]) -> dict[str, int]:
    return {n: c for event in events if isinstance(event, BatchDone) for n, c in event.metrics.counts.items()}


@LANES_LONG
def test_everyday_steps_give_the_same_in_both_lanes(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(2)
    rules = {
        "known": {"rule": "who IS NOT NULL", "action": "quarantine"},
        "positive": {"rule": "amount > 0", "action": "drop"},
        "small": {"rule": "amount < 8", "action": "warn"},
    }
    file = pipeline_file(
        topic,
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[
            {"name": "rules", "expect": rules},
            {"explode": {"column": "tags", "as": "tag"}},
            {"flatten": {"columns": ["address"]}},
            {"mask": {"who": "hash", "address_city": {"keep_last": 1}}},
            {"derive": {"cents": "amount * 100 + 1"}},
        ],
    )
    topics.send(
        topic, [order(1, tags="xy"), order(2, None), order(3, amount=-1), order(4, amount=9), order(5, amount=None)]
    )
    events: list[Event] = []
    drain(file, session, events.append)
    told = counts(events)
    assert told == {"known": 1, "positive": 2, "small": 2}
    columns = ("id", "tag", "who", "address_city", "address_zip", "cents")
    found = sorted(tuple(row[name] for name in columns) for row in rows(tmp_path / "lake/out"))
    assert found == [
        (1, "x", A, "*****1", "1", 501),
        (1, "y", A, "*****1", "1", 501),
        (4, "x", A, "*****4", "1", 901),
    ]
    [bad] = rows(tmp_path / "lake/quarantine")
    assert (bad["code"], bad["stage"]) == ("EXPECTATION_BROKEN", "transform")
    assert b'"id": 2' in bad["value"]


@LANES_LONG
def test_rule_that_fails_stops_the_run_and_names_the_record(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[{"expect": {"positive": {"rule": "amount > 0", "action": "fail"}}}],
    )
    topics.send(topic, [order(1), order(2, amount=-1)])
    with pytest.raises(TerminalError) as stopped:
        drain(file, session)
    assert stopped.value.code == "EXPECTATION_FAILED"
    assert "offset 1" in str(stopped.value)
    assert rows(tmp_path / "lake/out") == []


@LANES_LONG
def test_enrich_follows_the_table_from_batch_to_batch(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic, people = topics.create(2), tmp_path / "lake/people"
    write_deltalake(people, pa.table({"who": ["a", "b"], "tier": ["gold", "tin"]}))
    file = pipeline_file(
        topic,
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        tables={"people": {"type": "delta", "path": "lake/people"}},
        transforms=[
            {"enrich": {"table": "people", "on": ["who"], "take": ["tier"], "on_miss": "quarantine"}},
            {"drop": ["tags", "address"]},
        ],
    )
    topics.send(topic, [order(1), order(2, "b"), order(3, "c"), order(4, None)])
    drain(file, session)
    assert sorted((r["id"], r["tier"]) for r in rows(tmp_path / "lake/out")) == [(1, "gold"), (2, "tin")]
    assert {(r["code"], r["stage"]) for r in rows(tmp_path / "lake/quarantine")} == {("ENRICH_MISS", "transform")}
    write_deltalake(people, pa.table({"who": ["c"], "tier": ["new"]}), mode="append")
    topics.send(topic, [order(5, "c")])
    drain(file, session)
    assert {"id": 5, "tier": "new"}.items() <= max(rows(tmp_path / "lake/out"), key=lambda r: r["id"]).items()
    write_deltalake(people, pa.table({"who": ["c"], "tier": ["twice"]}), mode="append")
    topics.send(topic, [order(6, "c")])
    with pytest.raises(MissingError) as refused:
        drain(file, session)
    assert refused.value.code == "TABLE_DUPLICATE_KEYS"


@pytest.mark.long
def test_sql_over_tables_and_a_table_larger_than_memory_are_joined_by_spark(
    topics: Any, pipeline_file: Callable[..., Path], spark: Any, tmp_path: Path
) -> None:
    topic, people = topics.create(1), tmp_path / "people.csv"
    people.write_text("who,tier\na,gold\nb,tin\n")
    csv = {"type": "csv", "path": "people.csv", "schema": "who STRING, tier STRING"}
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": COLUMNS},
        tables={"people": csv, "large": {**csv, "memory": "1 bytes"}},
        transforms=[
            {"enrich": {"table": "large", "on": ["who"], "take": {"large_tier": "tier"}, "on_miss": "quarantine"}},
            {"sql": "SELECT i.id, i.large_tier, p.tier, i._penstock FROM input i JOIN people p ON p.who = i.who"},
        ],
    )
    topics.send(topic, [order(1), order(2, "b"), order(3, "c")])
    drain(file, spark)
    found = sorted((r["id"], r["tier"], r["large_tier"]) for r in rows(tmp_path / "lake/out"))
    assert found == [(1, "gold", "gold"), (2, "tin", "tin")]
    assert [r["code"] for r in rows(tmp_path / "lake/quarantine")] == ["ENRICH_MISS"]


FAST = [{"id": n, "who": who} for n, who in enumerate(["7", "fast", None, "9", "slow"])]


@LANES_LONG
def test_rows_that_steps_fail_on_are_quarantined_and_the_others_go_on(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(2)
    file = pipeline_file(
        topic,
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[
            {"cast": {"who": "INT"}},
            {"derive": {"each": "amount div who"}},
            {"where": "100 / amount > 1"},
            {"expect": {"even": {"rule": "12 % id >= 0"}}},
            {"drop": ["tags", "address"]},
        ],
        sinks=[{"name": "out", "type": "delta", "path": "lake/out", "where": "1000 / (id - 11) <> 0"}],
    )
    topics.send(
        topic,
        [
            *(order(n, who, amount) for n, who, amount in ((1, "7", 70), (2, "fast", 1), (3, None, 5), (4, "0", 9))),
            *(order(n, "2", amount) for n, amount in ((5, 0), (6, 900), (7, None), (0, 4), (11, 4))),
        ],
    )
    drain(file, session)
    found = sorted((r["id"], r["who"], r["each"]) for r in rows(tmp_path / "lake/out"))
    assert found == [(1, 7, 10), (3, None, None)]
    bad = rows(tmp_path / "lake/quarantine")
    assert {(r["stage"], r["code"]) for r in bad} == {("transform", "EXPRESSION_FAILED")}
    assert {json.loads(r["value"])["id"]: r["message"] for r in bad} == {
        2: "cast who to INT: CAST_INVALID_INPUT",
        4: "derive each: DIVIDE_BY_ZERO",
        5: "where 100 / amount > 1: DIVIDE_BY_ZERO",
        0: "expect even: REMAINDER_BY_ZERO",
        11: "for the sinks: 1000 / (id - 11) <> 0: DIVIDE_BY_ZERO",
    }


def test_rows_that_only_spark_can_fail_on_are_quarantined_and_the_others_go_on(
    topics: Any, pipeline_file: Callable[..., Path], spark: Any, tmp_path: Path
) -> None:
    topic = topics.create(2)
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[
            {"derive": {"speed": "CAST(regexp_extract(who, '.*', 0) AS INT)"}},
            {"sql": "SELECT id, speed FROM input"},
            {"where": "regexp_like(speed, '.') AND 63 / (speed - 9) < 0"},
        ],
    )
    topics.send(topic, FAST)
    drain(file, spark)
    assert [(r["id"], r["speed"]) for r in rows(tmp_path / "lake/out")] == [(0, 7)]
    assert {r["code"] for r in rows(tmp_path / "lake/quarantine")} == {"EXPRESSION_FAILED"}
    assert {json.loads(r["value"])["who"] for r in rows(tmp_path / "lake/quarantine")} == {"fast", "slow", "9"}


@LANES_LONG
def test_row_that_a_step_fails_on_stops_the_run_where_the_file_says_so(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[{"cast": {"who": "INT"}, "on_error": "fail"}],
    )
    topics.send(topic, FAST)
    with pytest.raises(TerminalError, match="CAST_INVALID_INPUT") as stopped:
        drain(file, session)
    if lane == "direct":
        assert stopped.value.context["record"] == f"{topic}[0] offset 1"
    assert rows(tmp_path / "lake/out") == rows(tmp_path / "lake/quarantine") == []


@LANES_LONG
def test_row_that_a_step_fails_on_stops_a_run_without_a_quarantine(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        lane=lane,
        quarantine=None,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[{"where": "CAST(who AS INT) > 0"}],
    )
    topics.send(topic, FAST)
    with pytest.raises(TerminalError, match="CAST_INVALID_INPUT"):
        drain(file, session)
    assert rows(tmp_path / "lake/out") == []


LATEST = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""A broker otherwise refuses times that lie in the future."""


@LANES_LONG
def test_record_with_a_time_beyond_timestamps_is_quarantined_with_its_bytes(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(1, **LATEST)
    file = pipeline_file(topic, lane=lane, decode={"format": "json", "schema": COLUMNS}, transforms=[])
    for number, time in enumerate((1_700_000_000_000, 2**62, 253_402_300_800_000, 253_402_300_799_999)):
        topics.send(topic, [order(number)], timestamp=time)
    assert first_unread(KafkaSettings(topics.brokers), {TopicPartition(topic, 0): 1}) == {}
    drain(file, session)
    assert sorted(r["id"] for r in rows(tmp_path / "lake/out")) == [0, 3]
    bad = sorted(rows(tmp_path / "lake/quarantine"), key=lambda r: r["offset"])
    assert [(r["stage"], r["code"], r["offset"], r["timestamp"]) for r in bad] == [
        ("decode", "TIMESTAMP_OUT_OF_RANGE", 1, None),
        ("decode", "TIMESTAMP_OUT_OF_RANGE", 2, None),
    ]
    assert [json.loads(r["value"])["id"] for r in bad] == [1, 2]


@pytest.mark.long
def test_record_with_a_time_beyond_timestamps_is_quarantined_before_a_step_with_state(
    topics: Any, pipeline_file: Callable[..., Path], spark: Any, tmp_path: Path
) -> None:
    topic = topics.create(1, **LATEST)
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": "id BIGINT, at TIMESTAMP"},
        transforms=[
            {"watermark": {"column": "at", "delay": "1 minute"}},
            {"dedupe": {"keys": ["id"], "within": "1 hour"}},
        ],
    )
    for number, time in enumerate((1_700_000_000_000, 253_402_300_800_000)):
        topics.send(topic, [{"id": number, "at": "2026-01-01T00:00:00Z"}], timestamp=time)
    drain(file, spark)
    assert [r["id"] for r in rows(tmp_path / "lake/out")] == [0]
    [bad] = rows(tmp_path / "lake/quarantine")
    assert (bad["code"], bad["offset"], bad["timestamp"]) == ("TIMESTAMP_OUT_OF_RANGE", 1, None)


def test_rows_that_fail_before_and_after_a_step_with_state_are_quarantined(
    topics: Any, pipeline_file: Callable[..., Path], spark: Any, tmp_path: Path
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": "id BIGINT, who STRING, at TIMESTAMP"},
        transforms=[
            {"cast": {"who": "INT"}},
            {"derive": {"text": "regexp_extract(CAST(10 div (who - 7) AS STRING), '.*', 0)"}},
            {"watermark": {"column": "at", "delay": "1 minute"}},
            {"dedupe": {"keys": ["id"], "within": "1 hour"}},
            {"derive": {"left": "1 / (id - 4)"}},
        ],
    )
    whos = ("1", "fast", "7", "2", "2", "2")
    topics.send(topic, [{"id": n, "who": who, "at": "2026-01-01T00:00:00Z"} for n, who in enumerate(whos)])
    drain(file, spark)
    assert sorted(r["id"] for r in rows(tmp_path / "lake/out")) == [0, 3, 5]
    bad = {r["offset"]: r["message"] for r in rows(tmp_path / "lake/quarantine")}
    assert bad == {
        1: "cast who to INT: CAST_INVALID_INPUT",
        2: "derive text: Spark cannot compute it",
        4: "derive left: DIVIDE_BY_ZERO",
    }


@LANES_LONG
def test_map_arrow_that_raises_quarantines_only_those_rows(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path, lane: str
) -> None:
    topic = topics.create(1)
    (tmp_path / "rules.py").write_text(
        "import pyarrow as pa\n"
        "def checked(rows):\n"
        "    if any(v == 13 for v in rows.column('amount').to_pylist()):\n"
        "        raise ValueError('unlucky')\n"
        "    return rows\n"
    )
    file = pipeline_file(
        topic,
        lane=lane,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[{"map_arrow": {"function": "rules.checked", "on_error": "quarantine"}}],
    )
    topics.send(topic, [order(n, amount=13 if n % 10 == 3 else 1) for n in range(100)])
    drain(file, session)
    assert len(rows(tmp_path / "lake/out")) == 90
    bad = rows(tmp_path / "lake/quarantine")
    assert {(r["code"], r["message"]) for r in bad} == {("STEP_FAILED", "ValueError: unlucky (rules.py:4)")}
    assert sorted(r["offset"] for r in bad) == list(range(3, 100, 10))


def test_python_step_is_a_frame_in_and_a_frame_out(
    topics: Any, pipeline_file: Callable[..., Path], spark: Any, tmp_path: Path
) -> None:
    topic = topics.create(1)
    (tmp_path / "steps.py").write_text("def doubled(frame):\n    return frame.withColumn('amount', frame.amount * 2)\n")
    file = pipeline_file(topic, decode={"format": "json", "schema": COLUMNS}, transforms=[{"python": "steps.doubled"}])
    topics.send(topic, [order(1)])
    drain(file, spark)
    assert [r["amount"] for r in rows(tmp_path / "lake/out")] == [10]
    (tmp_path / "steps.py").write_text("def tripled(frame):\n    return frame\n")
    with pytest.raises(DefinitionError) as refused:
        drain(file, spark)
    assert "transforms[0]" in str(refused.value) and "doubled" in str(refused.value)


@ON_BOTH_LONG
def test_table_that_vanishes_in_a_run_is_waited_for(
    topics: Any, pipeline_file: Callable[..., Path], session: Any, tmp_path: Path
) -> None:
    topic, people = topics.create(1), tmp_path / "people.csv"
    people.write_text("who,tier\na,gold\n")
    file = pipeline_file(
        topic,
        source={"max_offsets": 1},
        decode={"format": "json", "schema": COLUMNS},
        tables={"people": {"type": "csv", "path": "people.csv", "schema": "who STRING, tier STRING"}},
        transforms=[{"enrich": {"table": "people", "on": ["who"]}}],
    )
    topics.send(topic, [order(1), order(2)])
    seen: list[str] = []

    def watch(event: Event) -> None:
        seen.append(type(event).__name__)
        if isinstance(event, BatchDone) and event.metrics.batch_id == 0:
            people.rename(tmp_path / "away.csv")
        elif seen[-1] == "Retrying":
            people.write_text("who,tier\na,silver\n")
        elif isinstance(event, Notice):
            seen.append(event.text)

    drain(file, session, watch)
    assert sorted((r["id"], r["tier"]) for r in rows(tmp_path / "lake/out")) == [(1, "gold"), (2, "silver")]
    assert "Retrying" in seen
    assert any("people" in text and "loaded" in text for text in seen)
