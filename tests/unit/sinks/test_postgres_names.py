from __future__ import annotations

import pytest
from tests.committing import last_commit

from penstock.errors import MissingError
from penstock.model import BatchToken
from penstock.postgres import quote
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.names import (
    NAME_BYTES,
    StagedName,
    TableName,
    query_mark,
    sink_mark,
    staged_name,
    text,
)

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("given", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("shop.Orders", "shop", "Orders"),
        ('"a.b"."c ""d"""', "a.b", 'c "d"'),
        ('shop."order items"', "shop", "order items"),
    ],
)
def test_table_name_in_each_form_is_split_and_kept_as_it_is(given: str, schema: str, name: str) -> None:
    assert TableName.parse("out", given) == TableName(schema, name)


@pytest.mark.parametrize("given", ["", "a.b.c", "a b", 'a"b', ".a", "a.", '"a', "x" * 64, "ü" * 32])
def test_table_name_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(MissingError) as refused:
        TableName.parse("out", given)
    assert (refused.value.code, refused.value.exit_code) == ("SINK_TABLE_NAME", 3)


def test_quoted_names_and_literals_end_where_they_should() -> None:
    assert quote('a"; DROP TABLE x; --') == '"a""; DROP TABLE x; --"'
    assert text("it's") == "'it''s'"
    assert text("\\'") == "E'\\\\'''"


def test_staging_name_of_the_longest_batch_fits_and_tells_whose_it_is() -> None:
    mark = sink_mark("p" * 500, "s" * 500, TableName("x", "y" * 63))
    token = BatchToken("p", "q" * 500, 2**63 - 1, ())
    name = staged_name(mark, token)
    assert len(name) <= NAME_BYTES
    parsed = StagedName.parse(name)
    assert parsed is not None
    assert (parsed.sink_mark, parsed.query_mark, parsed.batch_id) == (mark, query_mark(token), 2**63 - 1)
    assert StagedName.parse("penstock_commits") is None


def test_staging_names_of_two_attempts_or_sinks_differ() -> None:
    token = BatchToken("p", "q", 1, ())
    marks = {sink_mark("a", "bc", TableName("s", "t")), sink_mark("ab", "c", TableName("s", "t"))}
    assert len(marks) == 2
    assert len({staged_name("0123456789", token) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (f"postgresql://bob:{SECRET}@db.example:5433/shop", "db.example:5433/shop/public.t"),
        (f"host=db.example dbname=shop user=bob password={SECRET}", "db.example/shop/public.t"),
        (f"postgresql://bob:{SECRET}@db.example", "db.example/the default database/public.t"),
        (f"jdbc:postgresql://bob:{SECRET}@db.example/shop", "postgresql/public.t"),
    ],
)
def test_target_shows_neither_user_nor_password(url: str, target: str) -> None:
    sink = PostgresSink("p", "out", url, "t")
    assert sink.target == target
    assert SECRET not in repr(vars(sink))


def test_url_that_is_none_is_refused_without_showing_it() -> None:
    sink = PostgresSink("p", "out", f"jdbc:postgresql://bob:{SECRET}@db/shop", "t")
    with pytest.raises(MissingError) as refused:
        last_commit(sink)
    assert refused.value.code == "SINK_URL_INVALID"
    assert SECRET not in str(refused.value)
    assert refused.value.__context__ is None
