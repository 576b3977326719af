from __future__ import annotations

import pytest
import sqlglot

from penstock.sinks.spark_sql import literal, quoted


@pytest.mark.parametrize(
    "name", ["shop", "a'b", "a\\'b", "a\\", "a`b", "a``", "'; DROP TABLE x; --", "a\\\\'", "../../up", "a.b", '"']
)
def test_name_in_a_procedure_call_stays_one_string(name: str) -> None:
    statement = f"SELECT {literal(quoted('space', name))} AS found"
    [found] = sqlglot.parse(statement, read="spark")
    assert found is not None
    assert found.selects[0].this.this == quoted("space", name)
