from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.model import MergeRules
from penstock.sinks.postgres.connection import SinkDatabase, is_of_a_row
from penstock.sinks.postgres.names import TableName
from penstock.sinks.postgres.table import alter_statement, check_schema, create_statement, fit_columns
from penstock.sinks.postgres.types import TableColumn, fits, new_column_type, staged_type, widened_type


def column(type_name: str, modifier: int = -1, is_enum: bool = False) -> TableColumn:
    return TableColumn("c", type_name, type_name, "pg_catalog", is_enum, modifier, False, False, False)


def numeric(precision: int, scale: int) -> TableColumn:
    return column("numeric", (precision << 16 | scale & 0x7FF) + 4)


FITTING = [
    (pa.int64(), column("int2"), True),
    (pa.int64(), column("numeric"), True),
    (pa.int64(), column("float8"), False),
    (pa.int64(), column("text"), False),
    (pa.uint64(), column("int4"), False),
    (pa.float64(), column("float4"), False),
    (pa.float32(), column("float8"), True),
    (pa.decimal128(10, 2), numeric(4, 2), True),
    (pa.decimal128(10, 2), numeric(10, 1), False),
    (pa.decimal128(10, 2), numeric(10, -2), False),
    (pa.decimal128(10, 2), column("numeric"), True),
    (pa.decimal128(10, 2), column("float8"), False),
    (pa.timestamp("us", tz="UTC"), column("timestamptz"), True),
    (pa.timestamp("us", tz="UTC"), column("timestamptz", 3), False),
    (pa.timestamp("us", tz="UTC"), column("timestamp"), False),
    (pa.timestamp("us"), column("timestamp"), True),
    (pa.string(), column("varchar", 7), True),
    (pa.string(), column("mood", is_enum=True), True),
    (pa.string(), column("uuid"), True),
    (pa.string(), column("int4"), False),
    (pa.binary(), column("bytea"), True),
    (pa.list_(pa.string()), column("json"), True),
    (pa.list_(pa.string()), column("text"), False),
]


@pytest.mark.parametrize(
    ("kind", "held", "expected"), FITTING, ids=[f"{k}-{c.type_name}{c.modifier}" for k, c, _ in FITTING]
)
def test_column_fits_where_a_value_lands_whole_or_is_refused(
    kind: pa.DataType, held: TableColumn, expected: bool
) -> None:
    assert fits(kind, held) is expected


def test_staging_types_are_wide_and_compare_keys_as_the_table_does() -> None:
    assert staged_type(pa.int8(), column("int2")) == "bigint"
    assert staged_type(pa.string(), column("varchar", 7)) == "text"
    assert staged_type(pa.decimal128(4, 2), numeric(4, 2)) == "numeric"
    assert staged_type(pa.string(), column("uuid")) == '"pg_catalog"."uuid"'
    assert staged_type(pa.list_(pa.int8()), column("json")) == "json"


def test_create_statement_quotes_names_and_keeps_not_null_and_keys() -> None:
    schema = pa.schema([pa.field('i"d', pa.int32(), nullable=False), pa.field("at", pa.timestamp("us", tz="UTC"))])
    assert create_statement(TableName("s", "t"), schema, ['i"d']) == (
        'CREATE TABLE IF NOT EXISTS "s"."t" ("i""d" integer NOT NULL, "at" timestamptz, PRIMARY KEY ("i""d"))'
    )


def test_schema_that_no_table_can_take_is_refused_with_every_problem() -> None:
    schema = pa.schema(
        [
            pa.field("late", pa.timestamp("ns")),
            pa.field("x" * 64, pa.int64()),
            pa.field("ctid", pa.int64()),
            pa.field("item", pa.struct([pa.field("a", pa.int64())])),
            pa.field("fine", pa.int64()),
        ]
    )
    with pytest.raises(MissingError) as refused:
        check_schema("out", schema, MergeRules(keys=("item", "absent"), when_newer="gone"))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert set(refused.value.context) == {"late", "x" * 64, "ctid", "item", "absent", "gone"}
    assert new_column_type(pa.timestamp("us", tz="Europe/Berlin")) is None


def test_new_column_of_a_whole_number_is_the_smallest_that_holds_it() -> None:
    signed = [new_column_type(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]
    assert signed == ["smallint", "smallint", "integer", "bigint"]
    unsigned = [new_column_type(kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())]
    assert unsigned == ["smallint", "integer", "bigint", "numeric(20,0)"]


FAILURES: list[tuple[psycopg.Error, type[Exception], str]] = [
    (errors.DeadlockDetected("x"), TransientError, "SINK_COMMIT_CONFLICT"),
    (errors.SerializationFailure("x"), TransientError, "SINK_COMMIT_CONFLICT"),
    (errors.LockNotAvailable("x"), TransientError, "SINK_COMMIT_CONFLICT"),
    (errors.AdminShutdown("x"), TransientError, "SINK_DATABASE_UNAVAILABLE"),
    (errors.TooManyConnections("x"), TransientError, "SINK_DATABASE_UNAVAILABLE"),
    (psycopg.OperationalError("server closed the connection"), TransientError, "SINK_DATABASE_UNAVAILABLE"),
    (errors.InsufficientPrivilege("x"), MissingError, "SINK_ACCESS_DENIED"),
    (errors.DiskFull("x"), TerminalError, "SINK_FAILED"),
    (errors.SyntaxError("x"), TerminalError, "SINK_FAILED"),
]


@pytest.mark.parametrize(("error", "kind", "code"), FAILURES, ids=[type(e).__name__ for e, _, _ in FAILURES])
def test_failure_of_each_kind_says_whether_to_try_again(error: psycopg.Error, kind: type[Exception], code: str) -> None:
    told = SinkDatabase("out", "postgresql://localhost/shop").failure(error, "committing")
    assert type(told) is kind
    assert told.code == code
    assert not is_of_a_row(error)


@pytest.mark.parametrize("kind", [errors.CheckViolation, errors.NumericValueOutOfRange, errors.RaiseException])
def test_failure_of_a_row_is_told_from_one_of_the_statement(kind: type[psycopg.Error]) -> None:
    assert is_of_a_row(kind("x"))
    told = SinkDatabase("out", "postgresql://localhost/shop").failure(kind("x"), "committing")
    assert type(told) is TerminalError


def declared(text: str, modifier: int = -1) -> TableColumn:
    return TableColumn("c", text, text.split("(")[0], "pg_catalog", False, modifier, False, False, False)


@pytest.mark.parametrize(
    ("kind", "held", "wanted"),
    [
        (pa.int64(), declared("integer"), "bigint"),
        (pa.int32(), declared("smallint"), "integer"),
        (pa.int32(), declared("bigint"), None),
        (pa.uint64(), declared("bigint"), None),
        (pa.int64(), declared("numeric(5,0)"), None),
        (pa.float64(), declared("real"), "double precision"),
        (pa.float32(), declared("real"), None),
        (pa.string(), declared("character varying(20)"), "text"),
        (pa.string(), declared("character varying"), None),
        (pa.string(), declared("a_domain"), None),
        (pa.decimal128(12, 2), declared("numeric(10,2)", numeric(10, 2).modifier), "numeric(12,2)"),
        (pa.decimal128(8, 4), declared("numeric(10,2)", numeric(10, 2).modifier), "numeric(12,4)"),
        (pa.decimal128(8, 2), declared("numeric(10,2)", numeric(10, 2).modifier), None),
        (pa.decimal128(8, 2), declared("numeric"), None),
    ],
)
def test_column_is_widened_only_as_far_as_the_rows_ask(
    kind: pa.DataType, held: TableColumn, wanted: str | None
) -> None:
    assert widened_type(kind, held) == wanted


def test_what_a_table_is_given_depends_on_evolve() -> None:
    columns = {"c": declared("integer")}
    rows = pa.schema([pa.field("c", pa.int64()), pa.field("d e", pa.date32(), nullable=False)])
    told = {evolve: fit_columns(columns, rows, evolve).told(columns) for evolve in ("fail", "ignore", "add_columns")}
    assert told == {"fail": [], "ignore": ["ignore column d e"], "add_columns": ["add column d e date"]}
    fit = fit_columns(columns, rows, "widen")
    assert fit.told(columns) == ["add column d e date", "widen c integer -> bigint"]
    assert alter_statement(TableName("public", "out"), fit) == (
        'ALTER TABLE "public"."out" ADD COLUMN IF NOT EXISTS "d e" date, ALTER COLUMN "c" TYPE bigint'
    )
