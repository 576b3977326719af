"""The PostgreSQL sink against a real server: types, rejects, rights, and a server that dies under it."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from tests.committing import commit, holds, last_commit
from tests.contract.rows import START, token
from tests.postgres import PASSWORD, PostgresServer, running_server

from penstock.contracts import RowsRefused
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model import (
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    BatchToken,
    Manifest,
    MergeRules,
    OffsetRange,
    Position,
    Refusal,
    SlotAttempt,
    TopicPartition,
)
from penstock.sinks.commit import move
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres import commit as commit_module

pytestmark = pytest.mark.services

BY_ID = MergeRules(keys=("id",))
ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string()), COORDINATES_FIELD])


class Database:
    """One database of a server, written by sinks and read by psycopg."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = server.create_database()
        self.url = server.url(self.name)

    def sink(self, table: str = "out", **settings: Any) -> PostgresSink:
        return PostgresSink("orders", "out", self.url, table, **settings)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.name)

    def rows(self, columns: str = "*", table: str = "out") -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1".encode()).fetchall()

    def staging(self) -> set[str]:
        listed = self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'")
        return {name for (name,) in listed} - {"penstock_commits"}


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    made = Database(postgres)
    yield made
    postgres.drop_database(made.name)


@pytest.fixture(scope="module")
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running_server(tmp_path_factory.mktemp("mortal")) as server:
        yield server


@pytest.fixture
def mortal(mortal_server: PostgresServer) -> Database:
    """A database on a server that the test may kill."""
    if not mortal_server.processes():
        mortal_server.start()
    return Database(mortal_server)


def batch_of(schema: pa.Schema, rows: list[dict[str, Any]], first: int = 0) -> pa.RecordBatch:
    """Rows with coordinates: their offsets count from `first`."""
    return pa.RecordBatch.from_pylist(
        [
            {COORDINATES: {"topic": "orders", "partition": 0, "offset": first + n, "timestamp": START}, **row}
            for n, row in enumerate(rows)
        ],
        schema=schema,
    )


def staged(
    sink: PostgresSink, batch: BatchToken, rows: pa.RecordBatch, slot: int = 0, attempt: str = "0"
) -> tuple[Manifest, list[Refusal]]:
    staging = sink.stage(batch, SlotAttempt(slot, attempt), rows.schema)
    refusals = list(staging.write(rows))
    return staging.finish(), refusals


def finish(sink: PostgresSink, batch: BatchToken, manifests: Sequence[Manifest]) -> list[Refusal]:
    """Commit as a run does: what the table refuses is set aside, and the batch is committed without it."""
    refusals: list[Refusal] = []
    while True:
        try:
            commit(sink, batch, manifests)
            return refusals
        except RowsRefused as found:
            assert not holds(sink, batch)
            refusals += found.refusals
            manifests = found.manifests


def land(sink: PostgresSink, batch: BatchToken, rows: pa.RecordBatch) -> list[Refusal]:
    manifest, refusals = staged(sink, batch, rows)
    return [*refusals, *finish(sink, batch, [manifest])]


def landed(
    sink: PostgresSink, rows: list[dict[str, Any]], schema: pa.Schema = ROWS, batch_id: int = 0
) -> list[Refusal]:
    sink.prepare(schema)
    return land(sink, token(batch_id, 0, len(rows)), batch_of(schema, rows))


def at(offset: int) -> OffsetRange:
    return OffsetRange("orders", 0, offset, offset + 1)


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


# Types: the Arrow type, the column that `create` makes, and values that must come back as they are.
TYPES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "tiny": (pa.int8(), "smallint", [-128, 127]),
    "small": (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    "unsigned": (pa.uint64(), "numeric(20,0)", [0, 2**64 - 1]),
    "float": (pa.float32(), "real", [0.5, float("inf")]),
    "double": (pa.float64(), "double precision", [0.1, 1e300, -0.0, 5e-324, float("-inf")]),
    "decimal": (pa.decimal128(38, 6), "numeric(38,6)", [Decimal("12345678901234567890123456789012.345678")]),
    "text": (
        pa.string(),
        "text",
        ["", '"', "a,b", "x\n\\.\ny", "\\.", "\\N", "NULL", "a\r\nb\r", "ünï 水 💧", "'; DROP TABLE out; --", "%s"],
    ),
    "boolean": (pa.bool_(), "boolean", [True, False]),
    "date": (pa.date32(), "date", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "stamp": (
        pa.timestamp("us", tz="UTC"),
        "timestamp with time zone",
        [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)],
    ),
    "local": (pa.timestamp("us"), "timestamp without time zone", [datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "bytes": (pa.binary(), "bytea", [b"", b"\x00\xff\\x", bytes(range(256))]),
    "list": (pa.list_(pa.int64()), "jsonb", [[], [1, None, 2**63 - 1]]),
    "struct": (pa.struct([pa.field("a b", pa.string())]), "jsonb", [{"a b": 'q"\\u0000\n'}, {"a b": None}]),
    "map": (pa.map_(pa.string(), pa.float64()), "jsonb", [{}, {"k": 1.5, 'q"': None}]),
}


def test_created_columns_have_the_types_and_give_every_value_back(database: Database) -> None:
    names = {kind: f'"{kind}" %' for kind in TYPES}
    schema = pa.schema(
        [pa.field("n", pa.int64()), *(pa.field(names[k], TYPES[k][0]) for k in TYPES), COORDINATES_FIELD]
    )
    given = {kind: [*values, None] for kind, (_, _, values) in TYPES.items()}
    count = max(map(len, given.values()))

    def value(kind: str, n: int) -> Any:
        return given[kind][n % len(given[kind])]

    def written(kind: str, n: int) -> Any:
        found = value(kind, n)
        return list(found.items()) if kind == "map" and found else found

    rows = [{"n": n, **{names[kind]: written(kind, n) for kind in TYPES}} for n in range(count)]
    landed(database.sink(create=True), rows, schema)
    declared = database.run(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'out'::regclass"
    )
    found = database.rows()
    for kind, (_, column, _) in TYPES.items():
        assert (names[kind], column) in declared
        assert [row[names[kind]] for row in found] == [value(kind, n) for n in range(count)], kind


def test_decimals_nested_in_json_keep_all_digits(database: Database) -> None:
    schema = pa.schema([pa.field("j", pa.struct([pa.field("d", pa.decimal128(38, 6))])), COORDINATES_FIELD])
    landed(database.sink(create=True), [{"j": {"d": Decimal("12345678901234567890123456789012.345678")}}], schema)
    assert database.run("SELECT j ->> 'd' FROM out") == [("12345678901234567890123456789012.345678",)]


def test_not_a_number_lands_as_one(database: Database) -> None:
    schema = pa.schema([pa.field("f", pa.float64()), COORDINATES_FIELD])
    landed(database.sink(create=True), [{"f": float("nan")}], schema)
    assert database.run("SELECT f = 'NaN' FROM out") == [(True,)]


def test_table_of_another_schema_with_names_to_quote_is_made_and_written(database: Database) -> None:
    database.run('CREATE SCHEMA "My Schema"')
    sink = database.sink('"My Schema"."a ""table"""', create=True, rules=BY_ID)
    landed(sink, [{"id": 1, "v": "x"}])
    assert database.rows("id, v", '"My Schema"."a ""table"""') == [{"id": 1, "v": "x"}]
    assert sink.target.endswith('/My Schema.a "table"')


def test_table_that_is_there_takes_text_as_uuid_enum_json_and_padded(database: Database) -> None:
    database.run("CREATE TYPE mood AS ENUM ('ok', 'bad')")
    database.run("CREATE DOMAIN short AS varchar(5) CHECK (VALUE <> 'no')")
    database.run(
        "CREATE TABLE out (id serial, u uuid, m mood, j jsonb, c char(4), d short, made timestamptz DEFAULT now())"
    )
    names = ("u", "m", "j", "c", "d")
    schema = pa.schema([*(pa.field(name, pa.string()) for name in names), COORDINATES_FIELD])
    key = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    landed(database.sink(), [{"u": key, "m": "bad", "j": '{"a": [1]}', "c": "x", "d": "yes"}], schema)
    (row,) = database.rows("u::text, m, j, c, d, made")
    assert (row["u"], row["m"], row["j"], row["c"], row["d"]) == (key.lower(), "bad", {"a": [1]}, "x   ", "yes")
    assert row["made"] is not None


def test_keys_that_only_the_database_calls_equal_are_one_row(database: Database) -> None:
    database.run("CREATE TABLE out (id uuid PRIMARY KEY, v text)")
    schema = ROWS.set(0, pa.field("id", pa.string()))
    key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    landed(database.sink(rules=BY_ID), [{"id": key, "v": "old"}, {"id": key.upper(), "v": "new"}], schema)
    assert database.rows("v") == [{"v": "new"}]


def test_coordinates_are_kept_as_json_where_wanted(database: Database) -> None:
    landed(database.sink(create=True, keep_coordinates=True), [{"id": 1, "v": "x"}])
    (row,) = database.rows(COORDINATES)
    stamp = "2026-01-01T00:00:00.000000Z"
    assert row[COORDINATES] == {"topic": "orders", "partition": 0, "offset": 0, "timestamp": stamp}


def test_record_stamped_far_in_the_future_lands_without_its_stamp(database: Database) -> None:
    sink = database.sink(create=True, keep_coordinates=True)
    sink.prepare(ROWS)
    moments = pa.array([2**62, -(2**62)], pa.int64()).cast(COORDINATES_FIELD.type.field("timestamp").type)
    parts = [pa.array(["orders", "orders"]), pa.array([0, 0], pa.int32()), pa.array([0, 1], pa.int64()), moments]
    coordinates = pa.StructArray.from_arrays(parts, fields=list(COORDINATES_FIELD.type))
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["a", "b"]), coordinates], schema=ROWS)
    land(sink, token(0, 0, 2), rows)
    assert [row[COORDINATES]["timestamp"] for row in database.rows(f"id, {COORDINATES}")] == [None, None]


# Rows that text cannot hold are refused while they are staged.
UNHOLDABLE: dict[str, tuple[pa.DataType, Any]] = {
    "NUL in text": (pa.string(), "a\0b"),
    "NUL in json": (pa.list_(pa.string()), ["ok", "\\\0"]),
    "year 10000": (pa.date32(), 2932897),
    "year 0": (pa.timestamp("us", tz="UTC"), -62135596800000001),
}


@pytest.mark.parametrize("case", sorted(UNHOLDABLE))
def test_row_that_text_cannot_hold_is_refused_and_the_others_land(database: Database, case: str) -> None:
    kind, value = UNHOLDABLE[case]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", kind), COORDINATES_FIELD])
    rows = batch_of(schema, [{"id": 0}, {"id": 1}, {"id": 2}])
    bad = pa.array([None, value, None], kind if not pa.types.is_temporal(kind) else pa.int64())
    bad = bad.cast(pa.int32()).cast(kind) if kind == pa.date32() else bad.cast(kind)
    rows = rows.set_column(1, schema.field(1), bad)
    sink = database.sink(create=True, on_reject="quarantine")
    sink.prepare(schema)
    refusals = land(sink, token(0, 0, 3), rows)
    assert [(refusal.record, refusal.code) for refusal in refusals] == [(at(1), "SINK_ROW_REFUSED")]
    assert [row["id"] for row in database.rows()] == [0, 2]
    strict = database.sink(create=True)
    strict.prepare(schema)
    with pytest.raises(TerminalError) as error:
        staged(strict, token(1, 3, 6), rows)
    assert (error.value.code, error.value.context["record"]) == ("SINK_ROW_REFUSED", "orders[0] 1-2")
    assert "on_reject: quarantine" in str(error.value.hint)


# Rows that only the table refuses: its columns beside `id`, the pipeline's type, a good value and a bad one.
REFUSED: dict[str, tuple[str, pa.DataType, Any, Any]] = {
    "integer overflow": ("v smallint", pa.int64(), 1, 2**40),
    "too long": ("v varchar(3)", pa.string(), "abc", "abcd"),
    "numeric overflow": ("v numeric(4,2)", pa.decimal128(10, 2), Decimal("1.50"), Decimal("123.45")),
    "check": ("v bigint CONSTRAINT positive CHECK (v > 0)", pa.int64(), 1, 0),
    "not null": ("v text NOT NULL", pa.string(), "x", None),
    "unique": ("v text UNIQUE", pa.string(), None, "taken"),
    "foreign key": ("v bigint REFERENCES parents", pa.int64(), 1, 99),
    "deferred foreign key": ("v bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED", pa.int64(), 1, 99),
    "enum": ("v mood", pa.string(), "ok", "worse"),
    "json": ("v jsonb", pa.string(), "{}", "{"),
    "domain": ("v short", pa.string(), "x", "no"),
    "trigger": ("v text", pa.string(), "x", "raise"),
    "index row": ("v text UNIQUE", pa.string(), None, "".join(chr(33 + n * n % 9973 % 5000) for n in range(9000))),
}


def make_refusing_table(database: Database, columns: str) -> None:
    database.run("CREATE TYPE mood AS ENUM ('ok')")
    database.run("CREATE DOMAIN short AS text CHECK (VALUE <> 'no')")
    database.run("CREATE TABLE parents (id bigint PRIMARY KEY)")
    database.run("INSERT INTO parents VALUES (1)")
    database.run(f"CREATE TABLE out (id bigint PRIMARY KEY, {columns})")
    database.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF to_jsonb(NEW) ->> 'v' = 'raise' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER refuse BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION refuse()")


@pytest.mark.parametrize("rules", [None, BY_ID], ids=["append", "upsert"])
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_rows_that_the_table_refuses_are_put_aside_or_stop_the_batch(
    database: Database, case: str, rules: MergeRules | None
) -> None:
    columns, kind, good, bad = REFUSED[case]
    make_refusing_table(database, columns)
    if case == "unique":
        database.run("INSERT INTO out VALUES (1000, 'taken')")
    schema = ROWS.set(1, pa.field("v", kind))
    rows = batch_of(schema, [{"id": n, "v": bad if n in (3, 7) else good} for n in range(10)])

    strict = database.sink(rules=rules)
    strict.prepare(schema)
    with pytest.raises(TerminalError) as error:
        land(strict, token(0, 0, 10), rows)
    assert (error.value.code, error.value.exit_code) == ("SINK_ROW_REFUSED", 4)
    assert error.value.context["record"] == "orders[0] 3-4"
    assert "on_reject: quarantine" in str(error.value.hint)
    assert not holds(strict, token(0, 0, 10))
    assert [row["id"] for row in database.rows("id") if row["id"] < 1000] == []

    sink = database.sink(rules=rules, on_reject="quarantine")
    sink.prepare(schema)
    manifest, _ = staged(sink, token(0, 0, 10), rows)
    with pytest.raises(RowsRefused) as found:
        commit(sink, token(0, 0, 10), [manifest])
    assert [(refusal.record, refusal.code) for refusal in found.value.refusals] == [
        (at(3), "SINK_ROW_REFUSED"),
        (at(7), "SINK_ROW_REFUSED"),
    ]
    assert [each.rows for each in found.value.manifests] == [8]
    assert not holds(sink, token(0, 0, 10))
    assert [row["id"] for row in database.rows("id") if row["id"] < 1000] == []
    commit(sink, token(0, 0, 10), found.value.manifests)
    assert [row["id"] for row in database.rows("id") if row["id"] < 1000] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert database.staging() == set()


def test_rejects_name_the_constraint_and_not_the_row(database: Database) -> None:
    make_refusing_table(database, REFUSED["check"][0])
    schema = ROWS.set(1, pa.field("v", pa.int64()))
    sink = database.sink(on_reject="quarantine")
    (refusal,) = landed(sink, [{"id": 1, "v": -77777}], schema)
    assert "positive" in refusal.message
    assert "77777" not in refusal.message


def test_refused_rows_that_were_never_quarantined_are_refused_again_by_the_next_run(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, v varchar(1))")
    killed, again = (database.sink(on_reject="quarantine") for _ in range(2))
    rows = [{"id": 1, "v": "xx"}, {"id": 2, "v": "y"}]
    killed.prepare(ROWS)
    manifest, _ = staged(killed, token(0, 0, 2), batch_of(ROWS, rows))
    with pytest.raises(RowsRefused):
        commit(killed, token(0, 0, 2), [manifest])
    assert killed.position() is None
    assert [refusal.record for refusal in landed(again, rows)] == [at(0)]
    assert database.rows() == [{"id": 2, "v": "y"}]


def test_every_row_of_a_refused_record_stays_out(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, v varchar(1))")
    sink = database.sink(on_reject="quarantine")
    sink.prepare(ROWS)
    place = {"topic": "orders", "partition": 0, "offset": 5, "timestamp": START}
    rows = [{"id": 1, "v": "a", COORDINATES: place}, {"id": 2, "v": "bb", COORDINATES: place}, {"id": 3, "v": "c"}]
    assert [refusal.record for refusal in land(sink, token(0, 0, 6), batch_of(ROWS, rows))] == [at(5)]
    assert database.rows() == [{"id": 3, "v": "c"}]


def test_refused_rows_of_several_slots_are_taken_out_of_each(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, v varchar(1))")
    sink = database.sink(on_reject="quarantine")
    sink.prepare(ROWS)
    parts = [[{"id": 0, "v": "aa"}, {"id": 1, "v": "b"}], [{"id": 2, "v": "c"}], [{"id": 3, "v": "dd"}]]
    batch = token(0, 0, 30)
    manifests = [staged(sink, batch, batch_of(ROWS, rows, 10 * n), n)[0] for n, rows in enumerate(parts)]
    with pytest.raises(RowsRefused) as found:
        commit(sink, batch, manifests)
    assert [refusal.record for refusal in found.value.refusals] == [at(0), at(20)]
    assert [each.rows for each in found.value.manifests] == [1, 1, 0]
    assert [each.writer.slot for each in found.value.manifests] == [0, 1, 2]
    commit(sink, batch, found.value.manifests)
    assert [row["id"] for row in database.rows()] == [1, 2]


def test_more_refused_rows_than_the_limit_stop_the_batch(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "MOST_REFUSED", 3)
    database.run("CREATE TABLE out (id bigint, v varchar(1))")
    sink = database.sink(on_reject="quarantine")
    with pytest.raises(TerminalError, match="more than 3 rows") as error:
        landed(sink, [{"id": n, "v": "xx"} for n in range(5)])
    assert error.value.code == "SINK_ROW_REFUSED"
    assert database.rows() == []
    assert sink.position() is None


def test_two_rows_of_a_batch_that_cannot_both_be_there_the_earlier_stays(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint UNIQUE, v text)")
    sink = database.sink(on_reject="quarantine")
    refusals = landed(sink, [{"id": n // 2, "v": f"{n}"} for n in range(6)])
    assert [row["v"] for row in database.rows()] == ["0", "2", "4"]
    assert [refusal.record for refusal in refusals] == [at(1), at(3), at(5)]


def test_refused_newest_row_of_a_key_gives_way_to_the_one_before(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, v varchar(3))")
    sink = database.sink(rules=BY_ID, on_reject="quarantine")
    values = [(1, "a"), (2, "b"), (1, "bad 1"), (1, "bad 2"), (3, "bad 3"), (2, "new")]
    refusals = landed(sink, [{"id": key, "v": value} for key, value in values])
    assert database.rows() == [{"id": 1, "v": "a"}, {"id": 2, "v": "new"}]
    assert sorted(refusal.record for refusal in refusals) == [at(2), at(3), at(4)]
    assert database.staging() == set()


def test_refused_delete_is_put_aside_and_its_row_stays(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, v text)")
    database.run("INSERT INTO out VALUES (1, 'a'), (2, 'b')")
    database.run("CREATE TABLE children (parent bigint REFERENCES out)")
    database.run("INSERT INTO children VALUES (1)")
    schema = pa.schema([*ROWS, pa.field(DELETES, pa.bool_())])
    sink = database.sink(rules=BY_ID, on_reject="quarantine")
    refusals = landed(sink, [{"id": 1, DELETES: True}, {"id": 2, DELETES: True}], schema)
    assert database.rows() == [{"id": 1, "v": "a"}]
    assert [refusal.record for refusal in refusals] == [at(0)]


def test_few_refused_rows_among_many_are_found_in_few_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, v varchar(3))")
    tries, real = [], commit_module._try

    def counted(*arguments: Any) -> Any:
        tries.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(commit_module, "_try", counted)
    bad = {0, 777, 9_999, 16_000, 19_999}
    sink = database.sink(rules=BY_ID, on_reject="quarantine")
    refusals = landed(sink, [{"id": n, "v": "long" if n in bad else "ok"} for n in range(20_000)])
    assert [refusal.record for refusal in refusals] == [at(n) for n in sorted(bad)]
    assert database.run("SELECT count(*) FROM out") == [(19_995,)]
    assert len(tries) <= 2 * len(bad) * 15


def test_refused_rows_without_coordinates_stop_the_batch(database: Database) -> None:
    database.run("CREATE TABLE out (id smallint)")
    schema = pa.schema([pa.field("id", pa.int64())])
    sink = database.sink(on_reject="quarantine")
    sink.prepare(schema)
    with pytest.raises(TerminalError, match="SINK_ROW_REFUSED"):
        land(sink, token(0, 0, 1), pa.RecordBatch.from_pylist([{"id": 2**40}], schema=schema))
    assert database.rows() == []


# A table or a database that cannot take the rows is found before the first batch.
def refusal_of(act: Callable[[], object]) -> MissingError:
    with pytest.raises(MissingError) as refusal:
        act()
    assert refusal.value.exit_code == 3
    assert_no_secret(refusal.value)
    return refusal.value


def assert_no_secret(error: PenstockError) -> None:
    told = [str(error), repr(error), str(error.__cause__), error.to_wire()]
    assert not any(PASSWORD in text or "pass%2Fword" in text for text in told)
    assert error.__cause__ is None


def test_table_with_other_columns_is_refused_with_every_problem_in_one_error(database: Database) -> None:
    database.run(
        "CREATE TABLE out (id text, price numeric(10,1), at timestamptz(0), small real, must bigint NOT NULL,"
        " made bigint GENERATED ALWAYS AS IDENTITY, defaulted bigint NOT NULL DEFAULT 1)"
    )
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("small", pa.float64()),
            pa.field("made", pa.int64()),
            pa.field("extra", pa.string(), nullable=False),
        ]
    )
    told = [refusal_of(partial(look, schema)) for look in (database.sink().check, database.sink().prepare)]
    assert str(told[0]) == str(told[1])
    assert told[0].code == "SINK_SCHEMA_MISMATCH"
    assert "lacks extra" in told[0].summary
    assert 'ALTER TABLE "public"."out" ADD COLUMN "extra" text' in str(told[0].hint)
    assert {name: told[0].context[name] for name in ("id", "price", "at", "small", "must", "made")} == {
        "id": "pipeline bigint, table text",
        "price": "pipeline numeric(10,2), table numeric(10,1)",
        "at": "pipeline timestamptz, table timestamp(0) with time zone",
        "small": "pipeline double precision, table real",
        "must": "pipeline does not write it, table NOT NULL",
        "made": "pipeline bigint, table GENERATED ALWAYS",
    }
    assert database.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'penstock'") == [(0,)]


def test_table_that_is_not_there_is_refused_with_the_statement_to_run(database: Database) -> None:
    for look in (database.sink(rules=BY_ID).check, database.sink(rules=BY_ID).prepare):
        error = refusal_of(partial(look, ROWS))
        assert error.code == "SINK_TABLE_MISSING"
        statement = 'CREATE TABLE IF NOT EXISTS "public"."out" ("id" bigint, "v" text, PRIMARY KEY ("id"))'
        assert f"run: {statement}" in str(error.hint)
    database.run(statement)
    database.sink(rules=BY_ID).prepare(ROWS)


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX ON out (id)",
        "CREATE UNIQUE INDEX ON out (id, v)",
        "CREATE UNIQUE INDEX ON out (id) WHERE v IS NULL",
        "CREATE UNIQUE INDEX ON out ((id + 1))",
        "ALTER TABLE out ADD UNIQUE (id) DEFERRABLE",
    ],
)
def test_upsert_without_an_index_that_finds_the_keys_is_refused(database: Database, index: str) -> None:
    database.run("CREATE TABLE out (id bigint, v text)")
    database.run(index)
    error = refusal_of(lambda: database.sink(rules=BY_ID).prepare(ROWS))
    assert error.code == "SINK_KEYS_NOT_UNIQUE"
    database.run(str(error.hint).removeprefix("run: "))
    database.sink(rules=BY_ID).check(ROWS)


def test_upsert_with_the_keys_in_another_order_and_included_columns_is_taken(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, v text, n int)")
    database.run("CREATE UNIQUE INDEX ON out (v, id) INCLUDE (n)")
    landed(database.sink(rules=MergeRules(keys=("id", "v"))), [{"id": 1, "v": "x"}, {"id": 1, "v": "x"}])
    assert database.rows("id, v") == [{"id": 1, "v": "x"}]


def test_view_in_place_of_a_table_is_refused(database: Database) -> None:
    database.run("CREATE VIEW out AS SELECT 1::bigint AS id, ''::text AS v")
    assert refusal_of(lambda: database.sink(create=True).prepare(ROWS)).code == "SINK_SCHEMA_MISMATCH"


def test_table_dropped_and_made_anew_holds_no_batch(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    database.run("DROP TABLE out")
    assert last_commit(sink) is None
    with pytest.raises(TerminalError, match="SINK_TABLE_GONE"):
        land(sink, token(1, 1, 2), batch_of(ROWS, [{"id": 2, "v": "y"}]))
    database.sink(create=True).prepare(ROWS)
    assert not holds(sink, token(0, 0, 1))


def test_table_changed_under_way_stops_the_batch_whole(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    database.run("ALTER TABLE out DROP COLUMN v")
    with pytest.raises(MissingError, match="SINK_SCHEMA_MISMATCH"):
        land(sink, token(1, 1, 2), batch_of(ROWS, [{"id": 2, "v": "y"}]))
    assert database.rows() == [{"id": 1}]
    assert not holds(sink, token(1, 1, 2))


@pytest.fixture
def limited(database: Database) -> Iterator[str]:
    """The URL of a user without any right but to connect."""
    role = f"limited_{database.name}"
    database.run(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, v text)")
    yield database.server.url(database.name, user=role)
    database.run(f"DROP OWNED BY {role} CASCADE")
    database.run(f"DROP ROLE {role}")


def test_user_without_rights_is_told_each_one_to_ask_for(database: Database, limited: str) -> None:
    role = f"limited_{database.name}"
    sink = PostgresSink("orders", "out", limited, "out", rules=BY_ID)
    for asked in (
        "GRANT SELECT, INSERT, UPDATE ON",
        "CREATE SCHEMA penstock AUTHORIZATION",
    ):
        told = [refusal_of(partial(look, ROWS)) for look in (sink.check, sink.prepare)]
        assert str(told[0]) == str(told[1])
        assert told[0].code == "SINK_ACCESS_DENIED"
        assert role not in str(told[0])
        statement = str(told[0].hint).removeprefix("have an administrator run: ")
        assert statement.startswith(asked)
        database.run(statement.replace("...", role))
    landed(sink, [{"id": 1, "v": "x"}])
    assert database.rows() == [{"id": 1, "v": "x"}]
    database.run("ALTER TABLE penstock.penstock_commits OWNER TO CURRENT_USER")
    asked = str(refusal_of(lambda: sink.check(ROWS)).hint)
    assert 'GRANT SELECT, INSERT, UPDATE, DELETE ON penstock."penstock_commits" TO' in asked
    other = PostgresSink("orders", "out", limited, "other", create=True)
    assert "GRANT USAGE, CREATE ON SCHEMA" in str(refusal_of(lambda: other.prepare(ROWS)).hint)
    assert refusal_of(lambda: PostgresSink("o", "out", limited, "no.x", create=True).check(ROWS)).code == (
        "SINK_SCHEMA_MISSING"
    )


def test_user_who_does_not_own_the_table_is_told_what_to_have_changed(database: Database, limited: str) -> None:
    role = f"limited_{database.name}"
    for granted in ("INSERT ON public.out", f"CREATE ON DATABASE {database.name}"):
        database.run(f"GRANT {granted} TO {role}")
    sink = PostgresSink("orders", "out", limited, "out", evolve="add_columns")
    wider = ROWS.append(pa.field("more", pa.int32()))
    told = [refusal_of(partial(look, wider)) for look in (sink.check, sink.prepare)]
    assert str(told[0]) == str(told[1])
    assert told[0].code == "SINK_ACCESS_DENIED"
    database.run(str(told[0].hint).removeprefix("have an administrator run: "))
    landed(sink, [{"id": 1, "v": "x", "more": 7}], wider)
    assert database.rows() == [{"id": 1, "v": "x", "more": 7}]


def test_widen_goes_as_far_as_the_rows_and_stops_where_a_view_depends_on_a_column(database: Database) -> None:
    database.run(
        "CREATE TABLE out (id integer PRIMARY KEY, v varchar(3), price numeric(6,2), small real, code char(2))"
    )
    database.run("CREATE VIEW seen AS SELECT small FROM out")
    kinds = {
        "id": pa.int64(),
        "v": pa.string(),
        "price": pa.decimal128(9, 3),
        "small": pa.float64(),
        "code": pa.string(),
    }
    wide = pa.schema([*(pa.field(name, kind) for name, kind in kinds.items()), COORDINATES_FIELD])
    sink = database.sink(rules=BY_ID, evolve="widen")
    error = refusal_of(lambda: sink.prepare(wide))
    assert error.code == "SINK_SCHEMA_MISMATCH"
    assert "view" in error.summary
    database.run("DROP VIEW seen")
    assert sink.changes(wide) == [
        "widen id integer -> bigint",
        "widen v character varying(3) -> text",
        "widen price numeric(6,2) -> numeric(9,3)",
        "widen small real -> double precision",
    ]
    row = {"id": 2**40, "v": "longer", "price": Decimal("123456.789"), "small": 0.1, "code": "ab"}
    landed(sink, [row], wide)
    assert database.rows() == [row]


def test_database_in_another_encoding_is_refused(postgres: PostgresServer) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    sink = PostgresSink("orders", "out", postgres.url("latin"), "out", create=True)
    assert refusal_of(lambda: sink.check(ROWS)).code == "SINK_DATABASE_ENCODING"
    postgres.drop_database("latin")


def test_database_that_refuses_or_is_not_there_is_told_without_the_url(postgres: PostgresServer) -> None:
    wrong = {
        "SINK_ACCESS_DENIED": postgres.url(password="guess"),
        "SINK_DATABASE_MISSING": postgres.url("absent"),
        "SINK_DATABASE_UNAVAILABLE": postgres.url().replace(str(postgres.port), "1"),
        "SINK_URL_INVALID": f"postgresql:/penstock:{PASSWORD}",
    }
    for code, url in wrong.items():
        sink = PostgresSink("orders", "out", url, "out", create=True)
        for look in (sink.check, sink.prepare):
            error = refusal_of(partial(look, ROWS))
            assert error.code == code
            assert "guess" not in str(error)
            assert 'user "penstock"' not in str(error)
    assert PostgresSink("o", "s", postgres.url(), "t").target == f"127.0.0.1:{postgres.port}/postgres/public.t"
    assert PASSWORD not in repr(vars(PostgresSink("o", "s", postgres.url(), "t")))


# The position.
GOLDEN = Path(__file__).parents[1] / "golden"
OLD_QUERY = "66666666-7777-8888-9999-000000000000"


def stored(database: Database) -> list[dict[str, Any]]:
    """The rows of the commit table, without their times."""
    rows = database.run("SELECT to_jsonb(c) - 'committed_at' FROM penstock.penstock_commits AS c ORDER BY pipeline")
    return [row for (row,) in rows]


def test_database_of_the_version_before_is_continued_from_the_union_of_its_queries(database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute((GOLDEN / "postgres_0.7.0.sql").read_bytes())
    sink = database.sink(on_reject="quarantine", keep_coordinates=True)
    held = sink.position()
    assert held is not None
    assert held.last == BatchToken("orders", OLD_QUERY, 0, (OffsetRange("orders", 0, 2, 5),))
    assert held.next == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 1}
    (left_out,) = sink.pending_rejects(held.last)
    assert (left_out.record, left_out.code) == (at(3), "SINK_ROW_REFUSED")
    assert sink.other_writers() == ["returns/out"]

    sink.prepare(ROWS)
    batch = BatchToken(
        "orders", OLD_QUERY, 1, (OffsetRange("orders", 0, 5, 6),), {"orders": "a-topic-id"}, {"quarantine": 2}
    )
    land(sink, batch, batch_of(ROWS, [{"id": 5, "v": "e"}], 5))
    assert stored(database) == json.loads((GOLDEN / "postgres_commits.json").read_text())
    assert sink.pending_rejects(held.last) == []
    assert sink.position() == Position.after(held, batch)
    assert [row["id"] for row in database.rows("id")] == [0, 1, 2, 4, 5, 100]


def test_row_of_the_version_before_is_newest_whatever_the_clocks_say(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    older = BatchToken("orders", "put-back", 4, (OffsetRange("orders", 0, 1, 3),))
    database.run(
        "INSERT INTO penstock.penstock_commits VALUES"
        f" ('orders', 'out', 'public.out', 'put-back', 4, '{older.to_json()}', '2001-01-01')"
    )
    assert last_commit(sink) == older


def test_rejects_of_the_version_before_outlive_a_move(database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute((GOLDEN / "postgres_0.7.0.sql").read_bytes())
    sink = database.sink(keep_coordinates=True)
    held = sink.position()
    assert held is not None
    move(sink, token(0, 2, 2, query="moved"), "forked")
    assert [refusal.record for refusal in sink.pending_rejects(held.last)] == [at(3)]


def test_position_is_one_row_whichever_query_wrote_it(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    other = BatchToken("orders", "another", 0, (OffsetRange("orders", 1, 0, 4),))
    commit(sink, other, [])
    ((query,),) = database.run("SELECT query_id FROM penstock.penstock_commits")
    assert query == "another"
    held = sink.position()
    assert held is not None
    assert (held.last, held.number) == (other, 2)
    assert held.next == {TopicPartition("orders", 0): 1, TopicPartition("orders", 1): 4}


def test_batch_on_a_position_that_moved_changes_nothing(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    late = token(0, 0, 1, query="late")
    manifest, _ = staged(sink, late, batch_of(ROWS, [{"id": 1, "v": "late"}]))
    held = sink.position()
    with pytest.raises(TransientError, match="SINK_COMMIT_CONFLICT"):
        sink.land(Position.first(late), [manifest], None)
    assert sink.position() == held
    assert database.rows() == [{"id": 1, "v": "x"}]


def test_driver_that_wakes_up_after_another_query_took_over_is_fenced(database: Database) -> None:
    asleep, successor = database.sink(create=True), database.sink(create=True)
    landed(asleep, [{"id": 0, "v": "x"}])
    manifest, _ = staged(asleep, token(1, 1, 2), batch_of(ROWS, [{"id": 1, "v": "asleep"}], 1))
    successor.prepare(ROWS)
    land(successor, token(0, 1, 3, query="new"), batch_of(ROWS, [{"id": n, "v": "new"} for n in (1, 2)], 1))
    with pytest.raises(TerminalError) as error:
        commit(asleep, token(1, 1, 2), [manifest])
    assert error.value.code == "FENCED"
    assert [row["v"] for row in database.rows()] == ["x", "new", "new"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_two_queries_that_begin_at_the_same_time_one_is_fenced(database: Database, isolation: str) -> None:
    database.run(f"ALTER DATABASE {database.name} SET default_transaction_isolation = '{isolation}'")
    queries = ["first", "second", "third"]
    sinks = [database.sink(create=True) for _ in queries]
    batches = [token(0, 0, 2000, query=query) for query in queries]
    rows = batch_of(ROWS, [{"id": n, "v": "x"} for n in range(2000)])
    for sink in sinks:
        sink.prepare(ROWS)
    manifests = [staged(sink, batch, rows)[0] for sink, batch in zip(sinks, batches, strict=True)]
    together = threading.Barrier(len(sinks))
    codes: list[str] = []

    def drive(sink: PostgresSink, batch: BatchToken, manifest: Manifest) -> None:
        together.wait(30)
        try:
            commit(sink, batch, [manifest])
        except PenstockError as error:
            codes.append(error.code)

    threads = [threading.Thread(target=drive, args=each) for each in zip(sinks, batches, manifests, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == ["FENCED", "FENCED"]
    assert database.run("SELECT count(*) FROM out") == [(2000,)]


def test_database_put_back_to_an_older_copy_stops_the_next_batch(database: Database) -> None:
    landed(database.sink(create=True), [{"id": 0, "v": "x"}])
    copy = f"{database.name}_copy"
    database.server.execute(f"CREATE DATABASE {copy} TEMPLATE {database.name}")
    commit(database.sink(), token(1, 1, 2), [])
    late = PostgresSink("orders", "out", database.server.url(copy), "out")
    with pytest.raises(TerminalError) as error:
        commit(late, token(2, 2, 3), [])
    assert (error.value.code, error.value.context["missing"]) == ("TARGET_WENT_BACK", "orders[0] 1-2")
    database.server.drop_database(copy)


def test_position_moved_on_purpose_says_why_and_needs_no_rows(database: Database) -> None:
    landed(database.sink(create=True), [{"id": 0, "v": "x"}])
    sink = database.sink()
    move(sink, token(0, 7, 7, query="fork"), "forked from 5f0c7f3e")
    held = sink.position()
    assert held is not None
    assert held.next == {TopicPartition("orders", 0): 7}
    assert database.run("SELECT query_id, token ->> 'reason' FROM penstock.penstock_commits") == [
        ("fork", "forked from 5f0c7f3e")
    ]
    assert holds(sink, token(0, 7, 7, query="fork"))


def test_empty_batch_into_a_table_that_is_gone_is_refused(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    database.run("DROP TABLE out")
    with pytest.raises(TerminalError, match="SINK_TABLE_GONE"):
        commit(sink, token(1, 1, 1), [])


def test_records_held_are_those_of_the_ranges_that_have_a_row(database: Database) -> None:
    sink = database.sink(create=True, keep_coordinates=True)
    assert sink.records_held([at(0)]) == set()
    landed(sink, [{"id": n, "v": "x"} for n in range(10)])
    database.run("DELETE FROM out WHERE id = 4")
    database.run("INSERT INTO out VALUES (99, 'a row of another writer', NULL)")
    wanted = [
        OffsetRange("orders", 0, 7, 20),
        at(1),
        OffsetRange("orders", 0, 3, 6),
        at(5),
        OffsetRange("other", 0, 0, 9),
    ]
    assert sink.records_held(wanted) == {("orders", 0, offset) for offset in (1, 3, 5, 7, 8, 9)}
    assert sink.records_held([]) == set()


def test_records_held_without_coordinates_are_not_known(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    assert sink.records_held([at(0)]) is None
    assert database.sink(keep_coordinates=True).records_held([at(0)]) is None


def test_other_writers_of_the_table_are_named(database: Database) -> None:
    sink = database.sink(create=True)
    assert sink.other_writers() == []
    landed(sink, [{"id": 1, "v": "x"}])
    for pipeline, name, table in (
        ("returns", "out", "out"),
        ("orders", "copy", "out"),
        ("orders.redrive", "out", "out"),
        ("returns", "out", "elsewhere"),
    ):
        other = PostgresSink(pipeline, name, database.url, table, create=True)
        other.prepare(ROWS)
        commit(other, token(0, 0, 0, pipeline=pipeline), [])
    assert sink.other_writers() == ["orders.redrive/out", "orders/copy", "returns/out"]


def test_discard_leaves_what_is_staged_until_the_position_has_the_batch(database: Database) -> None:
    sink = database.sink(create=True)
    sink.prepare(ROWS)
    manifest, _ = staged(sink, token(0, 0, 1), batch_of(ROWS, [{"id": 1, "v": "x"}]))
    sink.discard(token(0, 0, 1), [])
    assert len(database.staging()) == 1
    commit(sink, token(0, 0, 1), [manifest])
    staged(sink, token(0, 0, 1), batch_of(ROWS, [{"id": 1, "v": "x"}]), attempt="1")
    staged(sink, token(1, 1, 2), batch_of(ROWS, [{"id": 2, "v": "y"}], 1))
    assert len(database.staging()) == 2
    sink.discard(token(0, 0, 1), [manifest])
    assert len(database.staging()) == 1


def test_database_that_refuses_later_than_at_the_start_may_let_in_again(postgres: PostgresServer) -> None:
    sink = PostgresSink("orders", "out", postgres.url(password="guess"), "out")
    with pytest.raises(TransientError) as error:
        sink.position()
    assert error.value.code == "SINK_ACCESS_DENIED"
    assert_no_secret(error.value)


# What happens around the commit.
def test_two_drivers_at_the_same_time_with_one_token_land_it_once(database: Database) -> None:
    batch, rows = token(1, 0, 5000), batch_of(ROWS, [{"id": n, "v": "x"} for n in range(5000)])
    sinks = [database.sink(create=True) for _ in range(3)]
    for sink in sinks:
        sink.prepare(ROWS)
    manifests = [staged(sink, batch, rows)[0] for sink in sinks]
    together = threading.Barrier(len(sinks))
    failed: list[BaseException] = []

    def drive(sink: PostgresSink, manifest: Manifest) -> None:
        try:
            together.wait(30)
            commit(sink, batch, [manifest])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=drive, args=pair) for pair in zip(sinks, manifests, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert database.run("SELECT count(*), count(DISTINCT id) FROM out") == [(5000, 5000)]


def blocked(database: Database) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'penstock'"
    return database.run(waiting) == [(1,)]


def test_writer_that_holds_a_key_is_waited_for_and_then_updated(database: Database) -> None:
    sink = database.sink(create=True, rules=BY_ID)
    sink.prepare(ROWS)
    manifest, _ = staged(sink, token(0, 0, 2), batch_of(ROWS, [{"id": 1, "v": "ours"}, {"id": 2, "v": "ours"}]))
    with psycopg.connect(database.url) as other:
        other.execute("INSERT INTO out VALUES (1, 'theirs'), (3, 'theirs')")
        committing = threading.Thread(target=commit, args=(sink, token(0, 0, 2), [manifest]))
        committing.start()
        until(lambda: blocked(database))
        other.commit()
        committing.join(60)
    assert database.rows() == [{"id": 1, "v": "ours"}, {"id": 2, "v": "ours"}, {"id": 3, "v": "theirs"}]


def test_deadlock_with_another_writer_is_tried_again(database: Database) -> None:
    sink = database.sink(create=True, rules=BY_ID)
    landed(sink, [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}])
    manifest, _ = staged(sink, token(1, 2, 4), batch_of(ROWS, [{"id": 1, "v": "b"}, {"id": 2, "v": "b"}]))
    with psycopg.connect(database.url) as other:
        # The other one waits longer before it looks for a deadlock, so it is ours that is given up.
        other.execute("SET deadlock_timeout = '1min'")
        other.execute("UPDATE out SET v = 'theirs' WHERE id = 2")
        committing = threading.Thread(target=commit, args=(sink, token(1, 2, 4), [manifest]))
        committing.start()
        until(lambda: blocked(database))
        other.execute("UPDATE out SET v = 'theirs' WHERE id = 1")
        other.commit()
        committing.join(60)
    assert database.rows() == [{"id": 1, "v": "b"}, {"id": 2, "v": "b"}]
    assert last_commit(sink) == token(1, 2, 4)


def test_reader_of_a_staging_table_does_not_hold_the_commit_up(database: Database) -> None:
    sink = database.sink(create=True)
    sink.prepare(ROWS)
    manifest, _ = staged(sink, token(0, 0, 1), batch_of(ROWS, [{"id": 1, "v": "x"}]))
    (name,) = database.staging()
    with psycopg.connect(database.url) as backup:
        backup.execute(f"LOCK TABLE penstock.{name} IN ACCESS SHARE MODE".encode())
        commit(sink, token(0, 0, 1), [manifest])
        assert database.staging() == {name}
    land(sink, token(1, 1, 2), batch_of(ROWS, [{"id": 2, "v": "y"}], 1))
    assert database.staging() == set()
    assert [row["id"] for row in database.rows()] == [1, 2]


def test_task_that_dies_while_staging_leaves_nothing(database: Database) -> None:
    sink = pickle.loads(pickle.dumps(database.sink(create=True)))
    sink.prepare(ROWS)
    staging = sink.stage(token(0, 0, 1), SlotAttempt(0, "0"), ROWS)
    staging.write(batch_of(ROWS, [{"id": 1, "v": "x"}]))
    backend = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock' AND datname = current_database()"
    ((pid,),) = database.run(backend)
    database.run(f"SELECT pg_terminate_backend({pid})")
    until(lambda: database.run(backend) == [])
    assert database.staging() == set()
    with pytest.raises(TransientError) as error:
        staging.finish()
    staging.abort()
    assert error.value.code == "SINK_DATABASE_UNAVAILABLE"
    assert_no_secret(error.value)


def test_connections_are_closed_after_every_piece_of_work(database: Database) -> None:
    sink = database.sink(create=True)
    landed(sink, [{"id": 1, "v": "x"}])
    staging = sink.stage(token(1, 1, 2), SlotAttempt(0, "0"), ROWS)
    staging.write(batch_of(ROWS, [{"id": 2, "v": "x"}]))
    staging.abort()
    sink.discard(token(0, 0, 1), [])
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock' AND datname = current_database()"
    until(lambda: database.run(ours) == [(0,)])
    assert database.staging() == set()


def test_staging_of_a_query_of_long_ago_is_cleared_and_a_young_one_is_left(database: Database) -> None:
    sink = database.sink(create=True)
    sink.prepare(ROWS)
    staged(sink, token(7, 0, 1, query="old"), batch_of(ROWS, [{"id": 1, "v": "x"}]))
    (young,) = database.staging()
    parts = young.split("_")
    old = "_".join([*parts[:4], f"{int(parts[4], 16) - 100_000:08x}", parts[5]])
    database.run(f"CREATE TABLE penstock.{old} ()")
    land(sink, token(0, 0, 1, query="new"), batch_of(ROWS, [{"id": 2, "v": "y"}]))
    assert database.staging() == {young}


def test_commit_in_a_database_with_lazy_commits_is_durable(database: Database) -> None:
    database.run(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    database.run("CREATE TABLE out (id bigint, v text)")
    database.run("CREATE TABLE seen (setting text)")
    database.run(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    database.run("CREATE TRIGGER look AFTER INSERT ON out EXECUTE FUNCTION look()")
    landed(database.sink(), [{"id": 1, "v": "x"}])
    assert database.run("SELECT setting FROM seen") == [("on",)]


# A server that dies.
def test_server_killed_inside_a_commit_leaves_nothing_and_the_batch_lands_once_later(mortal: Database) -> None:
    sink = mortal.sink(create=True, rules=BY_ID)
    landed(sink, [{"id": n, "v": "old"} for n in range(100)])
    batch, rows = token(1, 100, 300), batch_of(ROWS, [{"id": n, "v": "new"} for n in range(50, 250)], 100)
    manifest, _ = staged(sink, batch, rows)
    raised: list[PenstockError] = []

    def drive() -> None:
        try:
            commit(sink, batch, [manifest])
        except PenstockError as error:
            raised.append(error)

    other = psycopg.connect(mortal.url)
    other.execute("SELECT 1 FROM out WHERE id = 70 FOR UPDATE")
    committing = threading.Thread(target=drive)
    committing.start()
    until(lambda: blocked(mortal))
    mortal.server.kill()
    committing.join(60)
    other.close()
    assert [error.code for error in raised] == ["SINK_DATABASE_UNAVAILABLE"]
    assert isinstance(raised[0], TransientError)
    with pytest.raises(TransientError, match="SINK_DATABASE_UNAVAILABLE"):
        holds(sink, batch)

    mortal.server.start()
    assert not holds(sink, batch)
    assert {row["v"] for row in mortal.rows()} == {"old"}
    with pytest.raises(TransientError) as lost:
        commit(sink, batch, [manifest])
    assert (lost.value.code, lost.value.context["found"]) == ("SINK_STAGED_ROWS_LOST", "0")
    land(sink, batch, rows)
    assert [row["id"] for row in mortal.rows()] == list(range(250))
    assert mortal.run("SELECT count(*) FROM out WHERE v = 'new'") == [(200,)]
    assert mortal.staging() == set()


def test_server_killed_after_a_commit_landed_and_before_its_answer_the_rows_are_there_once(mortal: Database) -> None:
    class Unanswered(PostgresSink):
        def _transact(self, connection: Any, *given: Any) -> None:
            super()._transact(connection, *given)
            if mortal.rows("count(*) AS n") == [{"n": 3}] and not killed:
                killed.append(True)
                mortal.server.kill()
                mortal.server.start()
                connection.execute("SELECT 1")

    killed: list[bool] = []
    sink = Unanswered("orders", "out", mortal.url, "out", create=True)
    landed(sink, [{"id": n, "v": "x"} for n in range(3)])
    assert killed == [True]
    assert [row["id"] for row in mortal.rows()] == [0, 1, 2]
    assert last_commit(sink) == token(0, 0, 3)


def test_server_killed_while_rows_are_staged_is_a_passing_failure(mortal: Database) -> None:
    sink = mortal.sink(create=True)
    sink.prepare(ROWS)
    staging = sink.stage(token(0, 0, 1), SlotAttempt(0, "0"), ROWS)
    staging.write(batch_of(ROWS, [{"id": 1, "v": "x"}]))
    mortal.server.kill()
    with pytest.raises(TransientError, match="SINK_DATABASE_UNAVAILABLE"):
        staging.finish()
    staging.abort()
    refusal_of(lambda: mortal.sink(create=True).prepare(ROWS))
    mortal.server.start()
    land(sink, token(0, 0, 1), batch_of(ROWS, [{"id": 1, "v": "x"}]))
    assert [row["id"] for row in mortal.rows()] == [1]


def test_server_restarted_in_order_keeps_what_is_staged(mortal: Database) -> None:
    sink = mortal.sink(create=True)
    sink.prepare(ROWS)
    manifest, _ = staged(sink, token(0, 0, 1), batch_of(ROWS, [{"id": 1, "v": "x"}]))
    mortal.server.restart()
    commit(sink, token(0, 0, 1), [manifest])
    assert [row["id"] for row in mortal.rows()] == [1]
