import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.arrow_types import arrow_to_ddl, parse_columns, parse_type
from penstock.config.ddl import ColumnsError, read_columns, read_type
from penstock.config.decode import RAW_COLUMNS
from penstock.config.fields import COORDINATES
from penstock.config.flows import COORDINATES_TYPE
from penstock.model import COORDINATES as MODEL_COORDINATES
from penstock.model import COORDINATES_FIELD, RAW_SCHEMA

SIMPLE = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(12, 2)": pa.decimal128(12, 2),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}


@pytest.mark.parametrize(("text", "arrow"), SIMPLE.items())
def test_parse_type_simple_type_has_its_arrow_type_and_goes_back(text: str, arrow: pa.DataType) -> None:
    assert parse_type(text) == arrow
    assert parse_type(text.lower()) == arrow
    assert arrow_to_ddl(arrow) == text


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        ("LONG", "BIGINT"),
        ("integer", "INT"),
        ("SHORT", "SMALLINT"),
        ("byte", "TINYINT"),
        ("REAL", "FLOAT"),
        ("NUMERIC(5)", "DECIMAL(5, 0)"),
        ("DECIMAL", "DECIMAL(10, 0)"),
        ("TIMESTAMP_LTZ", "TIMESTAMP"),
    ],
)
def test_parse_type_alias_is_the_type(alias: str, text: str) -> None:
    assert parse_type(alias) == parse_type(text)


def test_parse_columns_nested_types_comments_and_nullability_arrive() -> None:
    schema = parse_columns(
        "id BIGINT NOT NULL COMMENT 'the key', `odd name` ARRAY<STRUCT<a: INT NOT NULL, b MAP<STRING, DATE>>>, "
        "order STRING"
    )
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.map_(pa.string(), pa.date32()))])
    assert schema.names == ["id", "odd name", "order"]
    assert schema.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert schema.field("id").metadata == {b"comment": b"the key"}
    assert schema.field("odd name").type == pa.list_(pa.field("element", inner))
    assert arrow_to_ddl(inner) == "STRUCT<a: INT NOT NULL, b: MAP<STRING, DATE>>"


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("", 0, "expected a column name"),
        ("a", 1, "expected a type"),
        ("a INT,", 6, "expected a column name"),
        ("a INT b INT", 6, 'unexpected "b"'),
        ("a STRNG", 2, "STRNG is not a type"),
        ("a VARCHAR(10)", 2, "VARCHAR is not a type"),
        ("a INTERVAL DAY", 2, "INTERVAL is not a type"),
        ("a INT, b STRING, A DATE", 17, "duplicate"),
        ("a STRUCT<x: INT, X: INT>", 17, "duplicate"),
        ("a DECIMAL(39, 2)", 9, "does not exist"),
        ("a DECIMAL(5, 6)", 9, "does not exist"),
        ("a STRING(10)", 8, "takes no length"),
        ("a ARRAY<INT", 11, "expected > to close ARRAY"),
        ("a MAP<STRING>", 12, "expected , between"),
        ("a INT NOT", 9, "expected NULL"),
        ("a INT COMMENT x", 14, "single quotes"),
        ("a INT COMMENT 'x", 14, "unclosed"),
        ("_penstock INT", 0, "coordinates"),
        ("1a INT", 0, "column name"),
    ],
)
def test_read_columns_broken_text_is_placed(text: str, offset: int, words: str) -> None:
    with pytest.raises(ColumnsError, match=words) as raised:
        read_columns(text)
    assert raised.value.offset == offset


def test_read_type_endless_nesting_is_refused() -> None:
    with pytest.raises(ColumnsError, match="nested more than"):
        read_type("ARRAY<" * 500)


@given(st.text(alphabet="aAINT<>(),:` '0_é\n", max_size=40))
def test_read_columns_any_text_gives_columns_or_a_placed_error(text: str) -> None:
    try:
        columns = read_columns(text)
    except ColumnsError as error:
        assert 0 <= error.offset <= len(text)
    else:
        assert columns


def test_coordinates_are_those_of_the_model() -> None:
    assert COORDINATES == MODEL_COORDINATES
    assert str(COORDINATES_TYPE) == arrow_to_ddl(COORDINATES_FIELD.type)


def test_raw_columns_are_those_of_the_model() -> None:
    for column in RAW_COLUMNS:
        assert str(column.type) == arrow_to_ddl(RAW_SCHEMA.field(column.name).type)
