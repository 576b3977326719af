"""What has an Arrow form, what is left to Spark, and what is refused. Equality with Spark is in tests/lanes."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from penstock.errors import DefinitionError, TerminalError
from penstock.transforms import ArrowExpression, Derive, NoArrowForm, Where, check_columns, compile_expression

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("count", pa.int32()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("name", pa.string()),
        pa.field("big_text", pa.large_string()),
        pa.field("ok", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("twice", pa.int32()),
        pa.field("TWICE", pa.int32()),
        pa.field("_penstock", pa.struct([pa.field("offset", pa.int64()), pa.field("topic", pa.string())])),
    ]
)
ROW = {"id": 7, "amount": 2.5, "name": "ab", "ok": True, "_penstock": {"offset": 3, "topic": "t"}}


def value_of(text: str) -> object:
    compiled = compile_expression(text, SCHEMA)
    assert isinstance(compiled, ArrowExpression), compiled
    [value] = compiled.evaluate(pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)).to_pylist()
    return value


LEFT_TO_SPARK = [
    ("id = '7'", "conversion that may fail"),
    ("name > 5", "conversion that may fail"),
    ("coalesce(id, name)", "conversion that may fail"),
    ("id < 9223372036854775808", "beyond BIGINT"),
    ("CAST(amount AS STRING)", "left to Spark"),
    ("CAST(amount AS DECIMAL(10,2))", "left to Spark"),
    ("CAST(name AS TIMESTAMP)", "left to Spark"),
    ("CAST(name AS VARCHAR(3))", "length"),
    ("day > '2024-2-1'", "YYYY-MM-DD"),
    ("day = DATE '2023-02-29'", "calendar"),
    ("at > '2024-01-01 10:00:00+02:00'", "YYYY-MM-DD HH:MM:SS"),
    ("1 / 0", "fails with DIVIDE_BY_ZERO"),
    ("CAST('x' AS INT)", "fails with CAST_INVALID_INPUT"),
    ("ok AND 1 / id > 0 OR NOT ok AND 1 / id > 0", "equal conditions"),
    ("count + 1 / id > 0 OR count - 1 / id > 0", "there twice"),
    ("if(1 / id > 0, 1, 1)", "equal values"),
    ("1 / id <=> 1 / id", "equal conditions or operands"),
    ("FALSE AND 1 / id > 0", "a constant next to"),
    ("1 / id BETWEEN 1 AND 2", "may fail"),
    ("nullif(1 / id, 1)", "may fail"),
    ("id IN (1 / id, 2)", "may fail"),
    ("try_add(id + 1, 2)", "may fail"),
    ("try_add(id, 1) + 2", "try"),
    ("price * 2L", "type of its own"),
    ("price + NULL", "NULL next to"),
    ("amount div 2", "floating-point"),
    ("round(id, -1)", "places"),
    ("round(id, count)", "INT constant"),
    ("at + INTERVAL '1 day 2 hours'", "interval"),
    ("at + INTERVAL 1.5 SECOND", "interval"),
    ("at - at", "left to Spark"),
    ("date_add(day, id)", "not an INT"),
    ("date_format(at, 'EEE')", "EEE"),
    ("date_format(at, 'yy')", "yy"),
    ("element_at(tags, 0)", "not a constant"),
    ("tags[id]", "INT"),
    ("lpad(name, count, 'x')", "INT constant"),
    ("split_part(name, ',', 0)", "part 0"),
    ("`left`(name, 1)", "quoted function"),
    ("name LIKE name", "not a constant"),
    ("name LIKE 'a!%' ESCAPE '!'", "no Arrow form"),
    ("name LIKE '😀_'", "U+FFFF"),
    (r"name = 'a\tb'", "backslash"),
    ("name = '${user}'", "${"),
    ("name = 'it''s'", "doubled"),
    ("name = 'a' 'b'", "side by side"),
    ("+id > 1", "plus sign"),
    ("id > 1 -- all", "comment"),
    ("ok = id < 5", "chains comparisons"),
    ("ok = name IN ('a')", "chains comparisons"),
    ("ok = name LIKE 'a'", "chains comparisons"),
    ("id = NULL = ok", "chains comparisons"),
    ("NULL = NULL", "NULL"),
    ("NULL", "NULL without a type"),
    ("CASE WHEN NULL THEN 1 END", "WHEN NULL"),
    ("date_trunc(name, at)", "not a constant"),
    ("date_trunc('CENTURY', at)", "CENTURY"),
    ("substring(name, id, 1)", "INT constant"),
    ("contains(name, name)", "not a constant"),
    ("hour(day)", "left to Spark"),
    ("tags.x", "looked up"),
    ("tags = tags", "left to Spark"),
    ("big_text", "left to Spark"),
    ("twice > 1", "several columns"),
    ("input.id", "through its table"),
    ("if(ok, 1)", "three values"),
    ("ok AND id", "BOOLEAN"),
    ("amount IN (1,2,3,4,5,6,7,8,9,10,11)", "floating-point"),
    ("transform(tags, x -> concat(x, 'a'))", "no Arrow form"),
    ("name COLLATE UTF8_LCASE = 'a'", "no Arrow form"),
    ("1e400", "left to Spark"),
    ("id IN (SELECT 1)", "query"),
    ("count(*)", "no Arrow form"),
    ("id AS other", "no Arrow form"),
]


@pytest.mark.parametrize(("text", "reason"), LEFT_TO_SPARK)
def test_expression_without_an_exact_form_says_why(text: str, reason: str) -> None:
    compiled = compile_expression(text, SCHEMA)
    assert isinstance(compiled, NoArrowForm)
    assert text.strip() in compiled.reason
    assert reason in compiled.reason


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("amont > 1", "COLUMN_UNKNOWN"),
        ("amount / amont", "COLUMN_UNKNOWN"),
        ("upper(nam) = 'A'", "COLUMN_UNKNOWN"),
        ("_penstock.ofset > 1", "EXPRESSION_INVALID"),
        ("name = 'open", "EXPRESSION_INVALID"),
        ("(id > 1", "EXPRESSION_INVALID"),
        ("id > 1)", "EXPRESSION_INVALID"),
        ("  ", "EXPRESSION_INVALID"),
    ],
)
def test_expression_that_spark_would_refuse_is_refused(text: str, code: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        compile_expression(text, SCHEMA)
    assert caught.value.code == code


def test_unknown_column_close_to_one_that_exists_is_suggested() -> None:
    with pytest.raises(DefinitionError) as caught:
        check_columns("amont > 1", ["id", "Amount"])
    assert caught.value.hint == 'did you mean "Amount"?'
    assert caught.value.context["columns"] == "id, Amount"


@pytest.mark.parametrize(
    "text",
    [
        "timestampadd(DAY, 1, at) > at",
        "transform(tags, x -> x)",
        "exists(SELECT other FROM elsewhere)",
        "user = name",
        "input.id > 1",
        "CAST(name AS STRING COLLATE UTF8_LCASE)",
        "extract(YEAR FROM at)",
    ],
)
def test_check_columns_of_words_that_are_no_columns_accepts_them(text: str) -> None:
    check_columns(text, SCHEMA.names)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ID", 7),
        ("`Amount` * 2", 5.0),
        ("_PENSTOCK.offset", 3),
        ("amount >= 2.5", True),
        ("count IS NULL", True),
        ("count > 1", None),
        ("name || '-' || _penstock.topic", "ab-t"),
        ("CASE WHEN ok THEN id ELSE 0 END", 7),
        ("'constant'", "constant"),
    ],
)
def test_expression_over_a_row_gives_its_value(text: str, value: object) -> None:
    assert value_of(text) == value


def test_constant_over_no_rows_gives_no_values() -> None:
    compiled = compile_expression("1.5", SCHEMA)
    assert isinstance(compiled, ArrowExpression)
    empty = compiled.evaluate(pa.RecordBatch.from_pylist([], schema=SCHEMA))
    assert (len(empty), empty.type) == (0, pa.decimal128(2, 1))


ROWS = [
    {"id": 1, "count": 5, "name": "7", "ok": True, "_penstock": {"offset": 40, "topic": "orders", "partition": 2}},
    {"id": 0, "count": None, "name": "x", "ok": False, "_penstock": {"offset": 41, "topic": "orders", "partition": 2}},
]
PLACED = SCHEMA.set(
    len(SCHEMA) - 1,
    pa.field("_penstock", pa.struct([("offset", pa.int64()), ("topic", pa.string()), ("partition", pa.int32())])),
)


def values_of(text: str, *, condition: bool = False) -> list[object]:
    compiled = compile_expression(text, PLACED, condition=condition)
    assert isinstance(compiled, ArrowExpression), compiled
    values: list[object] = compiled.evaluate(pa.RecordBatch.from_pylist(ROWS, schema=PLACED)).to_pylist()
    return values


@pytest.mark.parametrize(
    ("text", "error_class"),
    [
        ("10 / id", "DIVIDE_BY_ZERO"),
        ("10 % id", "REMAINDER_BY_ZERO"),
        ("id - 9223372036854775807 - 2", "ARITHMETIC_OVERFLOW"),
        ("CAST(name AS INT)", "CAST_INVALID_INPUT"),
        ("CAST(id * 1000 - 500 AS TINYINT)", "CAST_OVERFLOW"),
    ],
)
def test_expression_that_fails_on_a_row_names_the_record_and_no_value(text: str, error_class: str) -> None:
    with pytest.raises(TerminalError) as caught:
        values_of(text)
    assert caught.value.code == "EXPRESSION_FAILED"
    assert error_class in caught.value.summary
    assert caught.value.context["expression"] == text
    assert caught.value.context["record"].startswith("orders[2] offset 4")
    assert "'x'" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("if(ok, 10 / id, -1)", [10.0, -1.0]),
        ("CASE WHEN id <> 0 THEN CAST(name AS INT) END", [7, None]),
        ("coalesce(if(ok, 1, 2), 1 / id)", [1.0, 2.0]),
        ("id <> 0 AND 10 / id > 1", [True, False]),
        ("id = 0 OR 10 / id > 1", [True, True]),
        ("count + 10 / id", [15.0, None]),
        ("try_divide(1, id)", [1.0, None]),
        ("try_cast(name AS INT)", [7, None]),
    ],
)
def test_expression_behind_a_branch_not_taken_does_not_fail(text: str, values: list[object]) -> None:
    assert values_of(text) == values


def test_filter_with_a_part_that_is_null_evaluates_no_further() -> None:
    assert values_of("count > 1 AND 10 / id > 1", condition=True) == [True, None]
    with pytest.raises(TerminalError):
        values_of("count > 1 AND 10 / id > 1")


@pytest.mark.parametrize(
    "text",
    [
        "count IS NOT NULL AND 10 / id > 1",
        "10 / id > 1 AND isnotnull(name)",
        "coalesce(count, 10 / id) > 1 AND count > 1",
    ],
)
def test_filter_in_which_spark_looks_for_nulls_in_another_order_is_left_to_spark(text: str) -> None:
    assert isinstance(compile_expression(text, PLACED, condition=True), NoArrowForm)
    assert isinstance(compile_expression(text, PLACED), ArrowExpression)


def test_columns_of_one_step_that_share_a_piece_that_fails_are_left_to_spark() -> None:
    alone = Derive({"a": "ok AND 1 / id > 0", "b": "ok AND 1 / count > 0"})
    shared = Derive({"a": "ok AND 1 / id > 0", "b": "ok AND 1 / id > 1"})
    guarded = Derive({"a": "if(ok, 1 / id, 0)", "b": "if(ok, 1 / id, 1)"})
    assert (alone.no_arrow_form(PLACED), guarded.no_arrow_form(PLACED)) == (None, None)
    assert "there twice" in (shared.no_arrow_form(PLACED) or "")


def test_filter_before_a_column_that_fails_protects_it() -> None:
    rows = pa.RecordBatch.from_pylist(ROWS, schema=PLACED)
    kept = pickle.loads(pickle.dumps(Where("count IS NOT NULL"))).apply(rows).good
    assert Derive({"q": "10 / id"}).apply(kept).good.column("q").to_pylist() == [10.0]
