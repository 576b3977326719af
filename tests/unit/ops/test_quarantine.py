from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ops.quarantines import MOMENT, bad, pipeline

from penstock.errors import DefinitionError, MissingError
from penstock.ops.quarantine.listing import apply_drop, list_records, plan_drop
from penstock.ops.quarantine.place import Selection, quarantine_of
from penstock.ops.quarantine.show import parse_place, show_record


def offsets(config: Any, **chosen: Any) -> list[int]:
    return sorted(quarantine_of(config).selected(Selection(**chosen))["offset"])


def test_list_counts_by_code_topic_and_schema_id_and_tells_when(tmp_path: Path) -> None:
    framed = {"code": "WRONG_TYPE", "value": b"\0\0\0\0\x07x"}
    config = pipeline(tmp_path, [bad(0), bad(1, **framed), bad(2, **framed), bad(3, pipeline="others")])
    found = list_records(config, records=2)
    assert [(group.what, group.count) for group in found.groups] == [
        ({"code": "WRONG_TYPE", "topic": "orders", "schema_id": 7}, 2),
        ({"code": "MALFORMED_JSON", "topic": "orders", "schema_id": None}, 1),
    ]
    assert (found.groups[0].first, found.groups[0].last) == (MOMENT + timedelta(hours=1), MOMENT + timedelta(hours=2))
    assert (found.total, found.states, found.span) == (3, {"waiting": 3}, "hour")
    assert found.times == tuple((MOMENT + timedelta(hours=n), 1) for n in range(3))
    assert [one["offset"] for one in found.records] == [1, 2]
    assert list_records(config, by=["state"]).groups[0].what == {"state": "waiting"}


def test_list_over_months_counts_by_longer_spans(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0), bad(1, quarantined_at=MOMENT + timedelta(days=90))])
    assert list_records(config).span == "week"


def test_list_of_an_empty_quarantine_has_nothing_to_count(tmp_path: Path) -> None:
    found = list_records(pipeline(tmp_path), records=5)
    assert (found.total, found.groups, found.times, found.records) == (0, (), (), ())


def test_list_by_something_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="BY_UNKNOWN"):
        list_records(pipeline(tmp_path), by=["colour"])


def test_selection_by_code_topic_time_and_condition(tmp_path: Path) -> None:
    rows = [bad(0), bad(1, code="WRONG_TYPE"), bad(2, topic="returns"), bad(3, value=b"xyz"), bad(4, value=b"x\xff")]
    config = pipeline(tmp_path, rows)
    assert offsets(config, codes=("WRONG_TYPE",)) == [1]
    assert offsets(config, topics=("returns",)) == [2]
    assert offsets(config, since=MOMENT + timedelta(hours=1), until=MOMENT + timedelta(hours=3)) == [1, 2]
    assert offsets(config, where="value_text LIKE 'x%' OR offset = 1 AND state = 'waiting'") == [1, 3]
    assert offsets(config, limit=2) == [0, 1]


def test_selection_by_a_condition_that_cannot_be_evaluated_is_refused(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0)])
    for condition in ("offset + 1", "reflect('java.lang.Math', 'abs', offset) = 1"):
        with pytest.raises(DefinitionError, match="WHERE_UNUSABLE"):
            offsets(config, where=condition)
    with pytest.raises(DefinitionError):
        offsets(config, where="colour = 1")


def test_pipeline_without_a_quarantine_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="QUARANTINE_MISSING"):
        list_records(pipeline(tmp_path, quarantine=None))


def test_drop_marks_records_and_undo_takes_it_back(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0), bad(1, code="WRONG_TYPE"), bad(2)])
    plan = plan_drop(config, Selection(codes=("MALFORMED_JSON",)))
    assert (plan.records, plan.codes) == (2, {"MALFORMED_JSON": 2})
    assert list_records(config).states == {"waiting": 3}
    apply_drop(plan)
    assert list_records(config).states == {"waiting": 1, "dropped": 2}
    assert plan_drop(config, Selection()).records == 1
    apply_drop(plan_drop(config, Selection(limit=1), undo=True))
    assert list_records(config).states == {"waiting": 2, "dropped": 1}
    assert len(quarantine_of(config).read_marks()) == 3


def test_drop_while_somebody_redrives_is_refused(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0)])
    plan = plan_drop(config, Selection())
    with quarantine_of(config).alone(), pytest.raises(MissingError, match="REDRIVE_RUNNING"):
        apply_drop(plan)
    assert list_records(config).states == {"waiting": 1}


def test_show_tells_the_bytes_the_reason_and_what_would_happen_now(tmp_path: Path) -> None:
    mended = bad(4, value=b'{"order_id": 4}', key=b"k", headers=[{"key": "h", "value": b"\xff"}])
    config = pipeline(tmp_path, [mended, bad(5, partition=0), bad(6)])
    apply_drop(plan_drop(config, Selection(where="offset = 4")))
    shown = show_record(config, parse_place("orders[0]@4"))
    assert (shown.key, shown.value, shown.headers) == (b"k", b'{"order_id": 4}', (("h", b"\xff"),))
    assert [(row["code"], row["state"]) for row in shown.rows] == [("MALFORMED_JSON", "dropped")]
    assert [mark["outcome"] for mark in shown.marks] == ["dropped"]
    assert (shown.now.rows, shown.now.refused, shown.now.unknown) == ({"out": 1}, (), None)
    assert [(one.offset, one.code) for one in shown.neighbours] == [
        (2, None), (3, None), (5, "MALFORMED_JSON"), (6, "MALFORMED_JSON"),
    ]  # fmt: skip
    assert all(one.standing.startswith("unknown: ") for one in shown.neighbours)
    assert show_record(config, ("orders", 0, 6)).now.refused[0]["code"] == "MALFORMED_JSON"
    assert shown.as_json()["value"] == {"text": '{"order_id": 4}', "base64": "eyJvcmRlcl9pZCI6IDR9", "bytes": 15}


def test_show_in_the_frame_lane_says_that_only_spark_can_tell(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(4)], transforms=[{"sql": "SELECT * FROM input"}])
    assert "only Spark" in str(show_record(config, ("orders", 0, 4)).now.unknown)


def test_show_of_a_record_that_is_not_there_names_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as refused:
        show_record(pipeline(tmp_path, [bad(0)]), ("orders", 0, 99))
    assert refused.value.code == "RECORD_NOT_QUARANTINED"
    assert refused.value.context["looked in"].endswith("lake/quarantine")


@pytest.mark.parametrize("text", ["my.orders-1[3]@1234", "my.orders-1:3:1234"])
def test_place_is_read_in_both_spellings(text: str) -> None:
    assert parse_place(text) == ("my.orders-1", 3, 1234)


@pytest.mark.parametrize("text", ["orders", "orders[3]", "orders[x]@1", "orders:1", "[3]@1"])
def test_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="PLACE_INVALID"):
        parse_place(text)
