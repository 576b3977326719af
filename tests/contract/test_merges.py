"""Rows that meet rows: one row a key, the newest counts, deletes delete. The same rules in every sink that merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from tests.committing import commit, last_commit
from tests.contract.kits import SinkKit, only_where
from tests.contract.rows import SCHEMA, by_id, ids, land, prepared, records, stage, stage_some, token

from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules, OffsetRange

BY_ID = MergeRules(keys=("id",))
DELETING = pa.schema([*SCHEMA, pa.field(DELETES, pa.bool_())])
TOMBSTONES = pa.schema([SCHEMA.field("id"), COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])
VERSIONED = pa.schema([*SCHEMA, pa.field("version", pa.int64()), pa.field(DELETES, pa.bool_())])


pytestmark = only_where(lambda kit: kit.merges)


def notes(kit: SinkKit) -> dict[int, str]:
    rows = by_id(kit.rows())
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["note"] for row in rows}


def by_offset(values: Mapping[int, Any]) -> Any:
    """A column that has these values at these offsets."""
    return lambda offset: values[offset]


def deletes(made: Any) -> dict[str, Any]:
    """The column that marks deletes."""
    return {DELETES: made}


def test_rows_of_one_key_in_a_batch_the_newest_position_wins(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID))
    land(sink, token(0, 0, 4), id=by_offset({0: 1, 1: 2, 2: 1, 3: 1}))
    assert notes(kit) == {1: "note 3", 2: "note 1"}


def test_rows_of_one_key_in_two_slots_the_newest_position_wins(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID))
    batch = token(0, 0, 10)
    manifests = [stage(sink, batch, [records([offset], id=1)], slot) for slot, offset in enumerate([9, 10, 2])]
    commit(sink, batch, manifests)
    assert notes(kit) == {1: "note 10"}


def test_rows_of_a_key_that_is_there_update_it_and_others_are_inserted(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID))
    land(sink, token(0, 0, 3))
    land(sink, token(1, 3, 5), id=by_offset({3: 1, 4: 7}), item=None)
    assert notes(kit) == {0: "note 0", 1: "note 3", 2: "note 2", 7: "note 4"}
    assert [row["item"] for row in by_id(kit.rows())][1] is None
    assert [row[COORDINATES]["offset"] for row in by_id(kit.rows()) if COORDINATES in row] in ([0, 3, 2, 4], [])


def test_rows_with_two_keys_meet_only_where_both_are_equal(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=MergeRules(keys=("id", "note"))))
    land(sink, token(0, 0, 2), id=1, note=by_offset({0: "a", 1: "b"}))
    land(sink, token(1, 2, 4), id=by_offset({2: 1, 3: 2}), note="a", item={"sku": "new", "tags": []})
    seen = {(row["id"], row["note"]): row["item"]["sku"] for row in kit.rows()}
    assert seen == {(1, "a"): "new", (1, "b"): "sku-1", (2, "a"): "new"}


def test_batch_run_again_does_not_take_a_later_update_back(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID))
    land(sink, token(0, 0, 1))
    land(sink, token(1, 1, 2), id=0)
    land(prepared(kit.sink(rules=BY_ID)), token(0, 0, 1), attempt="1")
    assert notes(kit) == {0: "note 1"}


def test_row_with_a_null_key_is_refused_with_its_coordinates_and_the_others_land(kit: SinkKit) -> None:
    schema = SCHEMA.set(0, pa.field("id", pa.int64()))
    sink = prepared(kit.sink(rules=BY_ID), schema)
    rows = records(range(4), schema, id=by_offset({0: 0, 1: None, 2: 2, 3: None}))
    manifest, refused = stage_some(sink, token(0, 0, 4), [rows], schema=schema)
    commit(sink, token(0, 0, 4), [manifest])
    assert [(refusal.record, refusal.code) for refusal in refused] == [
        (OffsetRange("orders", 0, offset, offset + 1), "SINK_KEY_NULL") for offset in (1, 3)
    ]
    assert manifest.rows == 2
    assert ids(kit) == [0, 2]


def test_deletes_delete_their_key_and_the_column_is_never_written(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID), DELETING)
    land(sink, token(0, 0, 3), DELETING, **deletes(False))
    land(
        sink,
        token(1, 3, 6),
        DELETING,
        id=by_offset({3: 1, 4: 2, 5: 9}),
        **deletes(by_offset({3: True, 4: None, 5: True})),
    )
    assert notes(kit) == {0: "note 0", 2: "note 4"}
    assert all(DELETES not in row for row in kit.rows())


def test_delete_and_row_of_one_key_in_a_batch_the_last_one_counts(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID), DELETING)
    land(sink, token(0, 0, 2), DELETING, **deletes(False))
    land(
        sink,
        token(1, 2, 8),
        DELETING,
        id=by_offset({2: 0, 3: 0, 4: 1, 5: 1, 6: 5, 7: 5}),
        **deletes(by_offset({2: True, 3: False, 4: False, 5: True, 6: False, 7: True})),
    )
    assert notes(kit) == {0: "note 3"}


def test_tombstones_staged_with_keys_alone_delete(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID))
    land(sink, token(0, 0, 3))
    batch = token(1, 3, 6)
    rows = stage(sink, batch, [records([3], id=0)])
    dead = stage(
        sink, batch, [records([4, 5], TOMBSTONES, id=by_offset({4: 1, 5: 8}), **deletes(True))], 1, "0", TOMBSTONES
    )
    commit(sink, batch, [rows, dead])
    assert notes(kit) == {0: "note 3", 2: "note 2"}


def test_batch_of_tombstones_alone_deletes(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=BY_ID))
    land(sink, token(0, 0, 2))
    batch = token(1, 2, 3)
    commit(sink, batch, [stage(sink, batch, [records([2], TOMBSTONES, id=1, **deletes(True))], schema=TOMBSTONES)])
    assert notes(kit) == {0: "note 0"}
    assert last_commit(sink) == batch


def test_when_newer_late_rows_are_left_out_within_and_across_batches(kit: SinkKit) -> None:
    rules = MergeRules(keys=("id",), when_newer="version")
    sink = prepared(kit.sink(rules=rules), VERSIONED)
    land(
        sink,
        token(0, 0, 4),
        VERSIONED,
        id=by_offset({0: 1, 1: 1, 2: 2, 3: 3}),
        version=by_offset({0: 9, 1: 4, 2: 5, 3: 5}),
        **deletes(False),
    )
    assert notes(kit) == {1: "note 0", 2: "note 2", 3: "note 3"}
    land(
        sink,
        token(1, 4, 8),
        VERSIONED,
        id=by_offset({4: 1, 5: 2, 6: 3, 7: 4}),
        version=by_offset({4: 8, 5: 5, 6: 6, 7: 1}),
        **deletes(False),
    )
    assert notes(kit) == {1: "note 0", 2: "note 5", 3: "note 6", 4: "note 7"}


def test_when_newer_a_delete_that_is_late_or_has_no_version_leaves_a_newer_row(kit: SinkKit) -> None:
    rules = MergeRules(keys=("id",), when_newer="version")
    sink = prepared(kit.sink(rules=rules), VERSIONED)
    land(sink, token(0, 0, 4), VERSIONED, version=by_offset({0: 5, 1: 5, 2: 5, 3: None}), **deletes(False))
    land(
        sink,
        token(1, 4, 8),
        VERSIONED,
        id=by_offset({4: 0, 5: 1, 6: 2, 7: 3}),
        version=by_offset({4: 4, 5: 6, 6: None, 7: None}),
        **deletes(True),
    )
    assert notes(kit) == {0: "note 0", 2: "note 2"}


def test_insert_only_keeps_the_row_that_is_there_and_inserts_the_oldest_of_several(kit: SinkKit) -> None:
    sink = prepared(kit.sink(rules=MergeRules(keys=("id",), insert_only=True)))
    land(sink, token(0, 0, 2))
    land(sink, token(1, 2, 5), id=by_offset({2: 1, 3: 7, 4: 7}))
    assert notes(kit) == {0: "note 0", 1: "note 1", 7: "note 3"}
