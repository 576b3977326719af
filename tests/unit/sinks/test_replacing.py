"""Which rows a replay replaces or leaves, as masks and as SQL; and the log entry of a replacement."""

from __future__ import annotations

import json
import string
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction

from penstock.model import COORDINATES, COORDINATES_FIELD, MergeRules, OffsetRange
from penstock.sinks.delta.merge import _quoted
from penstock.sinks.delta.replace import replace_statement
from penstock.sinks.delta.stage import StagedDeltaFile
from penstock.sinks.delta.tail import put_entry, replacement_entry
from penstock.sinks.files import TableFolder
from penstock.sinks.merging import counts_sql
from penstock.sinks.replacing import RecordRanges, in_ranges, ranges_sql
from penstock.sinks.spark_sql import MergeTerms, merge_statement

RANGES = (OffsetRange("a", 0, 5, 8), OffsetRange("b", 3, 0, 1))
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string()), COORDINATES_FIELD])


def coordinates(*places: tuple[str, int, int] | None) -> pa.StructArray:
    rows = [None if at is None else dict(zip(("topic", "partition", "offset"), at, strict=True)) for at in places]
    return pa.array(rows, COORDINATES_FIELD.type)


def test_rows_in_ranges_are_told_by_topic_partition_and_half_open_offsets() -> None:
    places = coordinates(
        ("a", 0, 4), ("a", 0, 5), ("a", 0, 7), ("a", 0, 8), ("a", 1, 5), ("b", 3, 0), ("b", 0, 6), None
    )
    assert in_ranges(places, RANGES).to_pylist() == [False, True, True, False, False, True, False, False]
    assert in_ranges(coordinates(), RANGES).to_pylist() == []


@pytest.mark.parametrize("ranges", [RANGES, (OffsetRange("a", 0, 1, 9), OffsetRange("a", 0, 2, 3), *RANGES), ()])
def test_records_among_rows_are_those_of_the_ranges_each_once(ranges: tuple[OffsetRange, ...]) -> None:
    places = [("a", 0, n) for n in (1, 4, 5, 5, 7, 8, 9)] + [("a", 1, 5), ("b", 3, 0), ("b", 3, 1), ("c", 0, 5)]
    expected = {
        (topic, partition, offset)
        for topic, partition, offset in places
        if any((r.topic, r.partition) == (topic, partition) and r.start <= offset < r.end for r in ranges)
    }
    wanted = RecordRanges(ranges)
    assert wanted.among(coordinates(*places, None)) == expected
    assert {at for at in places if at in wanted} == expected


def test_ranges_as_sql_name_each_range() -> None:
    assert ranges_sql(RANGES, lambda part: f"c.{part}") == (
        "(c.topic = 'a' AND c.partition = 0 AND c.offset >= 5 AND c.offset < 8)"
        " OR (c.topic = 'b' AND c.partition = 3 AND c.offset >= 0 AND c.offset < 1)"
    )


def test_statements_of_spark_replace_by_the_coordinates() -> None:
    statement = replace_statement("delta.`x`", pa.schema([COLUMNS.field("id"), COORDINATES_FIELD]), COLUMNS, RANGES[:1])
    assert statement == (
        "INSERT INTO delta.`x` REPLACE WHERE ((`_penstock`.`topic` = 'a' AND `_penstock`.`partition` = 0"
        " AND `_penstock`.`offset` >= 5 AND `_penstock`.`offset` < 8))"
        " SELECT `id`, NULL AS `note`, `_penstock` FROM staged"
    )


def test_merge_by_position_is_a_condition_in_every_dialect() -> None:
    rules = MergeRules(("id",), by_position=True)
    later = (
        "coalesce(t.`_penstock`.`topic` = s.`_penstock`.`topic` AND t.`_penstock`.`partition` ="
        " s.`_penstock`.`partition` AND t.`_penstock`.`offset` > s.`_penstock`.`offset`, FALSE)"
    )
    merged = merge_statement("x", COLUMNS.names, COLUMNS.names, rules, {}, positioned=True)
    assert f"AND (NOT {later}) THEN UPDATE" in merged
    without = [name for name in COLUMNS.names if name != COORDINATES]
    assert "coalesce(t.`_penstock`" not in merge_statement("x", without, without, rules, {}, positioned=True)
    terms = MergeTerms(rules, _quoted)
    assert """t."_penstock"['offset'] > s."_penstock"['offset']""" in terms.newer


def test_rows_that_are_equally_new_are_told_apart_by_position() -> None:
    """Every case of the condition, worked out by an engine that knows three-valued logic."""
    import sqlite3

    condition = counts_sql(("s", "t"), "l")
    judge = sqlite3.connect(":memory:")

    def counts(s: int | None, t: int | None, later: bool) -> bool:
        row = judge.execute(f"SELECT {condition} FROM (SELECT ? AS s, ? AS t, ? AS l)", (s, t, later)).fetchone()
        return bool(row[0])

    assert counts(5, 4, True), "newer by its own account, whatever the position"
    assert not counts(4, 5, False)
    assert counts(5, 5, False)
    assert not counts(5, 5, True)
    assert counts(1, None, True)
    assert counts(None, None, False)
    assert not counts(None, None, True)
    assert not counts(None, 5, False)


def staged(path: str) -> StagedDeltaFile:
    return StagedDeltaFile(path, 7, 1, (), json.dumps({"numRecords": 1}))


def test_log_entry_writes_paths_as_delta_rs_does(tmp_path: Path) -> None:
    name = "".join(c for c in string.printable if c not in "/\\\t\n\r\x0b\x0c") + "é.parquet"
    schema = Schema.from_arrow(pa.schema([pa.field("id", pa.int64())]))
    table = DeltaTable.create(str(tmp_path), schema=schema)
    action = AddAction(name, 7, {}, 0, True, json.dumps({"numRecords": 1}))
    table.create_write_transaction([action], mode="append", schema=table.schema(), partition_by=[])
    theirs = [json.loads(line) for line in (tmp_path / f"_delta_log/{1:020}.json").read_text().splitlines()]
    ours = [json.loads(line) for line in replacement_entry({}, {}, "", [], [staged(name)], ()).splitlines()]
    paths = [[a["add"]["path"] for a in actions if "add" in a] for actions in (theirs, ours)]
    assert paths[0] == paths[1]


def test_log_entry_of_two_writers_at_once_one_is_first(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    won: list[str] = []

    def write(text: str) -> None:
        if put_entry(TableFolder(str(tmp_path)), 4, text):
            won.append(text)

    writers = [threading.Thread(target=write, args=(f"{number}\n",)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(won) == 1
    assert (tmp_path / f"_delta_log/{4:020}.json").read_text() == won[0]
    assert len(list((tmp_path / "_delta_log").iterdir())) == 1


@pytest.mark.parametrize("topic", ["a' OR true --", "a\\", 'a"b', "", "a b"])
def test_ranges_sql_of_a_name_that_is_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="no topic of Kafka"):
        ranges_sql([OffsetRange(topic, 0, 0, 1)], lambda part: part)
