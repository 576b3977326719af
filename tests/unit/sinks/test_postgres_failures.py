"""What is told of an error of the database."""

from __future__ import annotations

import psycopg
import pytest

from penstock.postgres import message_of


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("value too long\nDETAIL: a whole row", "value too long"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 300 + "..."),
        ("", "Error"),
    ],
)
def test_message_is_the_first_line_and_not_too_long(said: str, told: str) -> None:
    assert message_of(psycopg.Error(said)) == told
