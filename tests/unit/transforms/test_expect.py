"""Rules that rows have to keep: what becomes of those that break one."""

from __future__ import annotations

import pickle
import time

import pyarrow as pa
import pytest

from penstock.errors import DefinitionError, PenstockError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, Split
from penstock.transforms import ExpectRule, expect_steps

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("amount", pa.float64()), COORDINATES_FIELD])
POSITIVE = ExpectRule("positive", "amount >= 0")


def batch(*amounts: float | None) -> pa.RecordBatch:
    values = [
        {"id": n, "amount": amount, COORDINATES: {"topic": "t", "partition": 3, "offset": 100 + n, "timestamp": n}}
        for n, amount in enumerate(amounts)
    ]
    return pa.RecordBatch.from_pylist(values, schema=SCHEMA)


def held_to(rows: pa.RecordBatch, *rules: ExpectRule) -> Split:
    expect, judge = expect_steps(rules)
    return judge.apply(expect.apply(rows).good)


def ids(split: Split) -> list[int]:
    return list(split.good.column("id").to_pylist())


def test_expect_with_quarantine_refuses_false_and_null_with_their_records() -> None:
    split = held_to(batch(1.0, -1.0, None, 0.0), POSITIVE)
    assert ids(split) == [0, 3]
    assert split.good.schema == SCHEMA
    assert [r.record for r in split.refused] == [OffsetRange("t", 3, 101, 102), OffsetRange("t", 3, 102, 103)]
    assert {(r.code, r.message) for r in split.refused} == {
        ("EXPECTATION_BROKEN", "the row breaks positive (amount >= 0)")
    }
    assert split.counts == {"positive": 2}


@pytest.mark.parametrize(("action", "left"), [("drop", [0]), ("warn", [0, 1])])
def test_expect_with_drop_or_warn_counts_and_refuses_nothing(action: str, left: list[int]) -> None:
    split = held_to(batch(1.0, -1.0), ExpectRule("positive", "amount >= 0", action))  # type: ignore[arg-type]
    assert (ids(split), split.refused, split.counts) == (left, (), {"positive": 1})


def test_expect_with_fail_stops_and_names_the_record() -> None:
    with pytest.raises(TerminalError) as caught:
        held_to(batch(1.0, -1.0, -2.0), POSITIVE, ExpectRule("sane", "amount > -1", "fail"))
    assert caught.value.code == "EXPECTATION_FAILED"
    assert "rule sane " in caught.value.summary
    assert caught.value.context == {"rule": "amount > -1", "rows": "2", "record": "t[3] offset 101"}


def test_expect_with_a_rule_that_fails_and_holds_goes_on() -> None:
    assert ids(held_to(batch(1.0), ExpectRule("sane", "amount > -1", "fail"))) == [0]


def test_expect_judges_by_the_strongest_broken_rule_and_counts_all() -> None:
    rules = [
        ExpectRule("warned", "id <> 1", "warn"),
        ExpectRule("dropped", "amount < 5", "drop"),
        ExpectRule("refused", "amount < 8 OR amount > 9"),
    ]
    split = held_to(batch(1.0, 9.0, 6.0, 8.0, 2.0), *rules)
    assert ids(split) == [0, 4]
    assert [(r.record.start, r.message) for r in split.refused] == [
        (101, "the row breaks warned (id <> 1), dropped (amount < 5), refused (amount < 8 OR amount > 9)"),
        (103, "the row breaks dropped (amount < 5), refused (amount < 8 OR amount > 9)"),
    ]
    assert split.counts == {"warned": 1, "dropped": 3, "refused": 2}


@pytest.mark.parametrize("rows", [batch(), batch(1.0, 2.0), batch(-1.0, 1.0).slice(1)], ids=["none", "good", "slice"])
def test_expect_where_nothing_is_broken_keeps_the_rows(rows: pa.RecordBatch) -> None:
    split = held_to(rows, POSITIVE)
    assert split.good.equals(rows)
    assert split.counts == {"positive": 0}


def test_expect_of_a_condition_that_is_not_boolean_is_refused_in_both_lanes() -> None:
    expect, judge = expect_steps([ExpectRule("odd", "amount")])
    as_spark_gives = SCHEMA.insert(2, pa.field("_penstock_rule_odd", pa.float64()))
    for check in (lambda: expect.no_arrow_form(SCHEMA), lambda: judge.output(as_spark_gives)):
        with pytest.raises(DefinitionError) as caught:
            check()
        assert caught.value.code == "EXPRESSION_INVALID"
        assert "rule odd gives DOUBLE" in caught.value.summary


def test_expect_of_rows_without_coordinates_refuses_only_what_quarantines() -> None:
    bare = pa.schema([pa.field("amount", pa.float64())])
    expect, judge = expect_steps([POSITIVE])
    with pytest.raises(DefinitionError) as caught:
        judge.output(expect.output(bare))
    assert caught.value.code == "EXPECT_NEEDS_COORDINATES"
    rules = [ExpectRule("a", "amount >= 0", "drop"), ExpectRule("b", "amount < 9", "fail")]
    expect, judge = expect_steps(rules)
    assert judge.output(expect.output(bare)) == bare
    rows = pa.RecordBatch.from_pydict({"amount": [1.0, -1.0]}, schema=bare)
    assert held_to(rows, *rules).good.to_pylist() == [{"amount": 1.0}]
    with pytest.raises(TerminalError) as failed:
        held_to(pa.RecordBatch.from_pydict({"amount": [9.0]}, schema=bare), *rules)
    assert "record" not in failed.value.context


@pytest.mark.parametrize("lost", [None, {"topic": None, "partition": 0, "offset": 1, "timestamp": None}])
def test_expect_of_a_row_that_lost_its_record_stops(lost: object) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "amount": -1.0, COORDINATES: lost}], schema=SCHEMA)
    with pytest.raises(PenstockError) as caught:
        held_to(rows, POSITIVE)
    assert caught.value.code == "EXPECT_WITHOUT_RECORD"


def test_expect_computes_columns_in_front_of_the_coordinates_and_takes_them_away() -> None:
    expect, judge = expect_steps([POSITIVE, ExpectRule("odd `one`", "id % 2 = 1", "warn")])
    between = expect.output(SCHEMA)
    assert between.names == ["id", "amount", "_penstock_rule_positive", "_penstock_rule_odd `one`", COORDINATES]
    assert judge.output(between).names == SCHEMA.names
    expect, judge = expect_steps([POSITIVE, ExpectRule("odd `one`", "rand() < id", "warn")])
    assert expect.no_arrow_form(SCHEMA) is not None
    assert "(rand() < id\n) AS `_penstock_rule_odd ``one```" in expect.select(SCHEMA.names)
    assert judge.no_arrow_form(between) is None
    assert judge.select(between.names) is None


def test_expect_reads_well_and_survives_pickling() -> None:
    steps = pickle.loads(pickle.dumps(expect_steps([POSITIVE, ExpectRule("sane", "amount < 9", "fail")])))
    assert list(map(repr, steps)) == ["expect positive, sane", "act on broken rules: positive quarantine, sane fail"]
    assert steps[1].apply(steps[0].apply(batch(1.0)).good).good.equals(batch(1.0))


def test_expect_that_refuses_a_hundred_thousand_rows_takes_no_seconds() -> None:
    count = 100_000
    columns = [pa.repeat(value, count) for value in (1, -1.0)]
    rows = pa.RecordBatch.from_arrays([*columns, pa.concat_arrays([batch(-1.0)[COORDINATES]] * count)], schema=SCHEMA)
    begin = time.process_time()
    assert len(held_to(rows, POSITIVE).refused) == count
    assert time.process_time() - begin < 3
