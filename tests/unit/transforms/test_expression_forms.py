"""What has an Arrow form, what is left to Spark, and what is refused. Equality with Spark is in tests/lanes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import DefinitionError
from penstock.transforms import ArrowExpression, NoArrowForm, check_columns, compile_expression

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
    ("id + 1", "overflow"),
    ("-id", "overflow"),
    ("count * 2", "overflow"),
    ("price * 2", "overflow"),
    ("amount / id", "divide by zero"),
    ("amount / 0", "divide by zero"),
    ("amount % 2", "no Arrow form"),
    ("price / 2", "decimals"),
    ("id = '7'", "conversion that may fail"),
    ("name > 5", "conversion that may fail"),
    ("coalesce(id, name)", "conversion that may fail"),
    ("price > amount", "DECIMAL(10,2) to DOUBLE"),
    ("id < 9223372036854775808", "beyond BIGINT"),
    ("CAST(name AS INT)", "may fail"),
    ("CAST(id AS INT)", "may fail"),
    ("CAST(id AS DECIMAL(18,0))", "may fail"),
    ("CAST(amount AS STRING)", "written by Spark"),
    ("CAST(at AS STRING)", "written by Spark"),
    ("CAST(name AS VARCHAR(3))", "length"),
    ("day > '2024-2-1'", "YYYY-MM-DD"),
    ("day = DATE '2023-02-29'", "calendar"),
    ("at > '2024-01-01 10:00:00+02:00'", "YYYY-MM-DD HH:MM:SS"),
    ("upper(name)", "no Arrow form"),
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
    ("substring(name, -2)", "from the end"),
    ("substring(name, id, 1)", "INT constant"),
    ("trim('x' FROM name)", "trim with expression"),
    ("contains(name, name)", "not a constant"),
    ("to_date(name)", "left to Spark"),
    ("hour(day)", "left to Spark"),
    ("tags[0]", "no Arrow form"),
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
