"""A table in PostgreSQL, before a database is asked: its name and its url."""

from __future__ import annotations

import pytest

from penstock.errors import MissingError
from penstock.tables.postgres import PostgresLookup

SECRET = "hunter2"


@pytest.mark.parametrize("table", ["", "a.b.c", "customers; DROP TABLE x", 'a"b', '"open'])
def test_table_of_a_name_that_is_none_is_refused(table: str) -> None:
    with pytest.raises(MissingError) as refused:
        PostgresLookup("customers", "postgresql://localhost/x", table)
    assert (refused.value.code, refused.value.context["given"]) == ("TABLE_NAME_INVALID", table)


@pytest.mark.parametrize("url", [f"postgresql:/orders:{SECRET}", f"https://orders:{SECRET}@host/x", SECRET])
def test_table_of_a_url_that_is_none_is_refused_and_its_password_not_shown(url: str) -> None:
    with pytest.raises(MissingError) as refused:
        PostgresLookup("customers", url, "customers").schema()
    assert refused.value.code == "TABLE_URL_INVALID"
    assert SECRET not in str(refused.value)
