from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import penstock.quarantine.records as module
from penstock.errors import MissingError
from penstock.kafka import KafkaSettings
from penstock.model import HEADERS, RAW_SCHEMA, OffsetRange
from penstock.quarantine import QUARANTINE_SCHEMA
from penstock.quarantine.records import FACTS, HeldInTable, HeldInTopic, raw_records, read_records
from penstock.sinks.kafka.quarantine_topic import HEADER_COLUMNS, BadRecords

MOMENT = datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)


def row(offset: int, **more: Any) -> dict[str, Any]:
    return {
        "pipeline": "orders",
        "batch_id": 4,
        "stage": "decode",
        "code": "MALFORMED_JSON",
        "message": "no closing brace",
        "key": b"\xff",
        "value": b"\0\0\0\1\2{oops",
        "headers": [{"key": "topic", "value": b"mine"}, {"key": "h", "value": None}],
        "topic": "orders",
        "partition": 2,
        "offset": offset,
        "timestamp": MOMENT,
        "quarantined_at": MOMENT + timedelta(hours=1),
        **more,
    }


ROWS = [
    row(7, code="LATER", quarantined_at=MOMENT + timedelta(hours=3)),
    row(7),
    row(8, stage="sink out,pg", value=None, headers=None, timestamp=None, key=None),
    row(8, stage="sink other", pipeline="orders.replay-1", value=b"\0\0"),
    row(9, pipeline="orders2"),
    row(10, pipeline="orders.redrive", value=b"{}"),
]


def table(folder: Path, rows: Sequence[dict[str, Any]] = ROWS, left_out: Sequence[str] = ()) -> HeldInTable:
    held = pa.Table.from_pylist(list(rows), schema=QUARANTINE_SCHEMA).drop_columns(list(left_out))
    write_deltalake(str(folder / "q"), held)
    return HeldInTable(str(folder / "q"))


@dataclass(frozen=True)
class RecordsOfTopic:
    """Gives what the quarantine topic would hold."""

    rows: Sequence[dict[str, Any]]

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        made = BadRecords("quarantine", "bad").make(pa.RecordBatch.from_pylist(list(self.rows), QUARANTINE_SCHEMA))
        foreign = pa.array([[{"key": "pipeline", "value": b"\xff"}, {"key": "batch_id", "value": b"x"}], None], HEADERS)
        both = pa.concat_arrays([made.column("headers"), foreign])
        bodies = [pa.concat_arrays([made.column(name), pa.nulls(2, pa.binary())]) for name in ("key", "value")]
        places = [pa.nulls(len(both), RAW_SCHEMA.field(n).type) for n in ("topic", "partition", "offset", "timestamp")]
        yield pa.RecordBatch.from_arrays([*bodies, both, *places], schema=RAW_SCHEMA)


def topic(monkeypatch: pytest.MonkeyPatch, rows: Sequence[dict[str, Any]] = ROWS) -> HeldInTopic:
    monkeypatch.setattr(module, "whole_topic", lambda topic, settings, reader: reader.read([]))
    return HeldInTopic("bad", KafkaSettings("nowhere:1"), RecordsOfTopic(rows))


def identities(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.select("offset", "refused_by", "code", "schema_id").rows(), key=str)


EXPECTED = [
    (7, None, "MALFORMED_JSON", 258),
    (8, "other", "MALFORMED_JSON", None),
    (8, "out,pg", "MALFORMED_JSON", None),
]


def test_quarantine_facts_are_the_headers_of_its_topic_in_order() -> None:
    assert FACTS == HEADER_COLUMNS


def test_records_of_a_table_are_the_oldest_of_each_identity_of_the_pipeline_and_its_replays(tmp_path: Path) -> None:
    assert identities(read_records(table(tmp_path), "orders", [*FACTS, "schema_id"])) == EXPECTED


def test_records_of_a_topic_are_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = topic(monkeypatch)
    assert identities(read_records(held, "orders", [*FACTS, "schema_id"])) == EXPECTED
    names = QUARANTINE_SCHEMA.names
    by_topic, by_table = (read_records(one, "orders", names).sort("offset", "stage") for one in (held, table(tmp_path)))
    assert by_topic.rows() == by_table.rows()
    whole = raw_records(by_topic)
    assert whole.schema.equals(RAW_SCHEMA)
    assert whole.to_pylist()[0] == {name: ROWS[1][name] for name in RAW_SCHEMA.names}


def test_records_that_an_old_replay_rejected_too_are_those_of_the_pipeline(tmp_path: Path) -> None:
    rows = [row(7, pipeline="orders.replay-1", code="EARLIER", quarantined_at=MOMENT), row(7)]
    found = read_records(table(tmp_path, rows), "orders", FACTS)
    assert found.select("pipeline", "code").rows() == [("orders", "MALFORMED_JSON")]


def test_records_at_one_place_are_read_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for held in (topic(monkeypatch), table(tmp_path)):
        found = read_records(held, "orders", FACTS, ("orders", 2, 8))
        assert sorted(found["refused_by"]) == ["other", "out,pg"]


def test_table_that_is_not_there_yet_holds_no_records(tmp_path: Path) -> None:
    assert read_records(HeldInTable(str(tmp_path / "none")), "orders", [*FACTS, "schema_id"]).height == 0


def test_table_without_a_newer_column_gives_nulls(tmp_path: Path) -> None:
    found = read_records(table(tmp_path, left_out=["message"]), "orders", FACTS)
    assert found["message"].to_list() == [None, None, None]


def test_folder_that_is_no_readable_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "q" / "_delta_log").mkdir(parents=True)
    (tmp_path / "q" / "_delta_log" / "00000000000000000000.json").write_text("{oops")
    with pytest.raises(MissingError) as refused:
        read_records(HeldInTable(str(tmp_path / "q")), "orders", FACTS)
    assert refused.value.code == "QUARANTINE_UNREADABLE"
