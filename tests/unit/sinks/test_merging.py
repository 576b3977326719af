from __future__ import annotations

import sqlite3
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import MissingError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, MergeRules, OffsetRange
from penstock.sinks.merging import check_rules, one_row_a_key, refuse_null_keys, refuse_without_position

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string()), COORDINATES_FIELD])


def rows(*keys: tuple[int | None, str | None], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    made = [
        {"id": id, "part": part, COORDINATES: {"topic": "orders", "partition": 3, "offset": 10 + place}}
        for place, (id, part) in enumerate(keys)
    ]
    return pa.RecordBatch.from_pylist(made, schema=schema)


def test_rows_whose_keys_are_all_there_pass_untouched() -> None:
    given = rows((1, None), (2, None))
    kept, refused = refuse_null_keys("out", given, ["id"])
    assert kept is given
    assert refused == []


def test_rows_with_any_key_null_are_refused_each_by_its_record() -> None:
    kept, refused = refuse_null_keys("out", rows((1, "a"), (None, "b"), (3, None), (4, "d")), ["id", "part"])
    assert kept["id"].to_pylist() == [1, 4]
    assert [refusal.record for refusal in refused] == [
        OffsetRange("orders", 3, 11, 12),
        OffsetRange("orders", 3, 12, 13),
    ]
    assert {(refusal.code, refusal.message) for refusal in refused} == {
        ("SINK_KEY_NULL", "sink out: a key column is null: id, part")
    }


def test_rows_with_a_null_key_and_no_coordinates_stop_the_batch() -> None:
    bare = rows((None, "a"), schema=ROWS).drop_columns([COORDINATES])
    with pytest.raises(TerminalError) as refused:
        refuse_null_keys("out", bare, ["id"])
    assert refused.value.code == "SINK_KEY_NULL"
    assert COORDINATES in str(refused.value.hint)


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (MergeRules(keys=("id", "absent")), 'keys: no column "absent"'),
        (MergeRules(keys=("id",), when_newer="later"), 'when_newer: no column "later"'),
        (MergeRules(keys=("id",), prune_by=("day",)), 'prune_by: no column "day"'),
        (MergeRules(keys=(COORDINATES,)), "keys: a column of this type"),
    ],
)
def test_rules_that_do_not_fit_the_rows_are_refused_naming_the_setting(rules: MergeRules, named: str) -> None:
    check_rules("out", ROWS, MergeRules(keys=("id", "part"), when_newer="part", prune_by=("part",)))
    with pytest.raises(MissingError) as refused:
        check_rules("out", ROWS, rules)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert named in refused.value.summary


Staged = tuple[str, int, int | None, bool]
"""Key, offset, version, deletes."""


def counted(rules: MergeRules, staged: list[Staged]) -> dict[str, tuple[Any, ...]]:
    """The row that counts of each key, as an engine other than Spark sees the query: offset and deletes."""
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.execute("CREATE TABLE staged (k TEXT, o INT, v INT, d BOOL)")
    database.executemany("INSERT INTO staged VALUES (?, ?, ?, ?)", staged)
    query = one_row_a_key("staged", rules, quote=lambda name: f"`{name}`", position=["`o`"])
    found = [dict(row) for row in database.execute(query)]
    assert len({row["k"] for row in found}) == len(found)
    return {row["k"]: (row["o"], bool(row["d"])) for row in found}


def test_one_row_a_key_is_the_newest_by_position_delete_or_not() -> None:
    staged: list[Staged] = [("a", 1, None, False), ("a", 3, None, False), ("a", 2, None, True), ("b", 9, None, True)]
    assert counted(MergeRules(keys=("k",)), staged) == {"a": (3, False), "b": (9, True)}


def test_one_row_a_key_for_insert_only_is_the_oldest() -> None:
    staged: list[Staged] = [("a", 3, None, False), ("a", 1, None, False), ("b", 5, None, False)]
    assert counted(MergeRules(keys=("k",), insert_only=True), staged) == {"a": (1, False), "b": (5, False)}


WHEN_NEWER: dict[str, tuple[list[Staged], tuple[int, bool]]] = {
    "greatest version": ([("a", 1, 9, False), ("a", 2, 4, False)], (1, False)),
    "same version, newest position": ([("a", 1, 9, False), ("a", 2, 9, False)], (2, False)),
    "any version before none": ([("a", 1, 1, False), ("a", 2, None, False)], (1, False)),
    "late delete": ([("a", 1, 9, False), ("a", 2, 4, True)], (1, False)),
    "newest delete": ([("a", 1, 9, True), ("a", 2, 4, False)], (1, True)),
    "delete without a version": ([("a", 1, 9, False), ("a", 2, None, True)], (1, False)),
    "delete among rows without a version": ([("a", 1, None, False), ("a", 2, None, True)], (2, True)),
}


@pytest.mark.parametrize("case", sorted(WHEN_NEWER))
def test_one_row_a_key_when_newer_counts_deletes_by_their_version_like_any_row(case: str) -> None:
    staged, expected = WHEN_NEWER[case]
    others: list[Staged] = [("b", 7, 7, False)]
    found = counted(MergeRules(keys=("k",), when_newer="v"), staged + others)
    assert found == {"a": expected, "b": (7, False)}


def test_merge_by_position_of_rows_without_coordinates_is_refused_where_the_target_keeps_them() -> None:
    bare, newest_wins = pa.schema([pa.field("id", pa.int64())]), MergeRules(keys=("id",), by_position=True)
    refuse_without_position("out", ROWS, newest_wins, kept=True)
    refuse_without_position("out", bare, newest_wins, kept=False)
    with pytest.raises(MissingError) as refused:
        refuse_without_position("out", bare, newest_wins, kept=True)
    assert (refused.value.code, refused.value.context["columns"]) == ("SINK_NEEDS_COORDINATES", "id")
