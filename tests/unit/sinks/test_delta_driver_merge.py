"""A merge in the driver leaves what a plain fold leaves, reads only what it can touch, and knows its limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.committing import commit
from tests.tables import read_table

from penstock.errors import TerminalError
from penstock.model import COORDINATES_FIELD, DELETES, BatchToken, MergeRules, OffsetRange, SlotAttempt
from penstock.sinks.delta import DeltaMergeSink, merge

START = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = [pa.field("id", pa.int64()), pa.field("time", pa.int32()), pa.field("note", pa.string()), COORDINATES_FIELD]
SCHEMA = pa.schema([*FIELDS, pa.field(DELETES, pa.bool_())])
Event = dict[str, Any]


def token(number: int, start: int, end: int) -> BatchToken:
    return BatchToken("orders", "query", number, (OffsetRange("orders", 0, start, end),))


def land(sink: DeltaMergeSink, number: int, events: list[Event], schema: pa.Schema = SCHEMA) -> None:
    """Events have their offset as `at`; they are staged in two slots, later ones first."""
    batch = token(number, number * 1000, number * 1000 + 1000)
    manifests = []
    for slot in (1, 0):
        stage = sink.stage(batch, SlotAttempt(slot, "a"), schema)
        rows = [
            {**event, "_penstock": {"topic": "orders", "partition": 0, "offset": event["at"], "timestamp": START}}
            for event in events[slot::2]
        ]
        assert not stage.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        manifests.append(stage.finish())
    commit(sink, batch, manifests)


def made(path: Path, rules: MergeRules, schema: pa.Schema = SCHEMA, **settings: Any) -> DeltaMergeSink:
    sink = DeltaMergeSink("orders", "out", str(path), rules, **settings)
    sink.prepare(schema)
    return sink


def folded(events: list[Event], rules: MergeRules) -> dict[int, str]:
    """One event after the other, as slowly and plainly as can be."""
    table: dict[int, Event] = {}
    for event in sorted(events, key=lambda event: event["at"]):
        there = table.get(event["id"])
        if rules.insert_only:
            if there is None and not event[DELETES]:
                table[event["id"]] = event
            continue
        held = there["time"] if rules.when_newer and there is not None else None
        if held is not None and (event["time"] is None or event["time"] < held):
            continue
        if event[DELETES]:
            table.pop(event["id"], None)
        else:
            table[event["id"]] = event
    return {key: event["note"] for key, event in table.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "rules", [MergeRules(("id",)), MergeRules(("id",), insert_only=True)], ids=["newest", "insert_only"]
)
def test_merge_of_random_events_equals_a_plain_fold(tmp_path: Path, rules: MergeRules, seed: int) -> None:
    rng = random.Random(seed)
    sink, events = made(tmp_path, rules), []
    for number in range(4):
        batch = [
            {
                "id": rng.randrange(12),
                "time": 1,
                "note": f"{number}/{n}",
                "at": number * 1000 + n,
                DELETES: rng.random() < 0.2,
            }
            for n in range(rng.randrange(1, 30))
        ]
        events += batch
        land(sink, number, rng.sample(batch, len(batch)))
    rows = read_table(tmp_path, ["id", "note"]).to_pylist()
    assert {row["id"]: row["note"] for row in rows} == folded(events, rules)
    assert len(rows) == len({row["id"] for row in rows})


@pytest.mark.parametrize("seed", range(4))
def test_merge_when_newer_with_late_rows_and_untimed_deletes_equals_a_plain_fold(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rules = MergeRules(("id",), when_newer="time")
    sink, events = made(tmp_path, rules), []
    for number in range(4):
        batch = []
        for n in range(rng.randrange(1, 30)):
            gone = rng.random() < 0.2
            untimed = gone or rng.random() < 0.4
            event = {"id": rng.randrange(20), "time": None if untimed else rng.randrange(50), DELETES: gone}
            batch.append({**event, "note": f"{number}/{n}", "at": number * 1000 + n})
        events += batch
        land(sink, number, rng.sample(batch, len(batch)))
    rows = read_table(tmp_path, ["id", "note"]).to_pylist()
    assert {row["id"]: row["note"] for row in rows} == folded(events, rules)


VALUES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int32(), lambda n: n),
    "date": (pa.date32(), lambda n: date(2026, 1, 1) + timedelta(days=n)),
    "time": (pa.timestamp("us", tz="UTC"), lambda n: START + timedelta(hours=n)),
    "local time": (pa.timestamp("us"), lambda n: datetime(2026, 1, 1) + timedelta(hours=n)),
    "text": (pa.string(), lambda n: f"it's {n:03}"),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "plain"])
def test_merge_with_prune_by_opens_only_files_that_can_match(tmp_path: Path, kind: str, partitioned: bool) -> None:
    arrow, value = VALUES[kind]
    schema = pa.schema([FIELDS[0], pa.field("made", arrow), *FIELDS[2:], pa.field(DELETES, pa.bool_())])
    rules = MergeRules(("id",), prune_by=("made",))
    sink = made(tmp_path, rules, schema, partition_by=["made"] if partitioned else [])
    for number in range(6):
        # The keys of every batch span the whole range, so that the keys themselves prune nothing.
        events = [{"id": n * 10 + number, "made": value(number), "note": "old", "at": n} for n in range(1, 4)]
        land(sink, number, [{**event, "at": event["at"] + number * 1000, DELETES: False} for event in events], schema)
    for action in pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist():
        low = action.get("partition.made", action.get("min.made"))
        if low != value(4):
            (tmp_path / unquote(action["path"])).unlink()
    changed = {"id": 14, "made": value(4), "note": "new", "at": 6001, DELETES: False}
    fresh = {"id": 999, "made": value(4), "note": "new", "at": 6002, DELETES: False}
    land(sink, 6, [changed, fresh], schema)
    entry = DeltaTable(tmp_path).history(1)[0]
    assert (entry["operation"], entry["operationMetrics"]["num_target_rows_updated"]) == ("MERGE", 1)


def test_merge_of_a_key_that_moves_to_another_partition_leaves_one_row(tmp_path: Path) -> None:
    schema = pa.schema([FIELDS[0], pa.field("made", pa.date32()), *FIELDS[2:], pa.field(DELETES, pa.bool_())])
    sink = made(tmp_path, MergeRules(("id",)), schema, partition_by=["made"])
    for day in (1, 2):
        event = {"id": 7, "made": date(2026, 1, day), "note": f"day {day}", "at": day, DELETES: False}
        land(sink, day, [event], schema)
    assert read_table(tmp_path, ["note"]).to_pylist() == [{"note": "day 2"}]


def test_merge_of_odd_names_and_every_type_keeps_the_values(tmp_path: Path) -> None:
    odd = {
        "Upper Case": (pa.decimal128(20, 4), Decimal("1.2345")),
        "a.b": (pa.binary(), b"\x00\xff"),
        "it's": (pa.bool_(), True),
        "select": (pa.list_(pa.struct([pa.field("x", pa.float64())])), [{"x": 1.5}, {"x": None}]),
        "ümlaut": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    }
    schema = pa.schema(
        [pa.field("The Key", pa.string()), *(pa.field(n, t) for n, (t, _) in odd.items()), COORDINATES_FIELD]
    )
    sink = made(tmp_path, MergeRules(("The Key",)), schema)
    for number in range(2):
        land(sink, number, [{"The Key": "k", **{n: v for n, (_, v) in odd.items()}, "at": number}], schema)
    [row] = read_table(tmp_path).to_pylist()
    assert {name: row[name] for name in odd} == {name: value for name, (_, value) in odd.items()}
    assert row["_penstock"]["offset"] == 1


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_merge_by_a_key_that_arrow_and_spark_compare_otherwise_is_left_to_spark(
    tmp_path: Path, kind: pa.DataType
) -> None:
    schema = pa.schema([pa.field("id", kind), COORDINATES_FIELD])
    with pytest.raises(TerminalError) as refused:
        land(made(tmp_path, MergeRules(("id",)), schema), 0, [{"id": 1.0, "at": 0}], schema)
    assert refused.value.code == "SINK_NEEDS_SPARK"


def test_merge_into_more_than_fits_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path, MergeRules(("id",)))
    land(sink, 0, [{"id": n, "at": n} for n in range(10)])
    monkeypatch.setattr(merge, "TOUCHED_BYTES", 10)
    land(sink, 1, [{"id": 50, "at": 1000}])
    with pytest.raises(TerminalError) as refused:
        land(sink, 2, [{"id": 5, "at": 2000}])
    assert refused.value.code == "SINK_NEEDS_SPARK"
