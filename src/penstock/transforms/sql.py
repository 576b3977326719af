"""`sql`: anything that Spark SQL can say, over a relation named input. Only Spark can run it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from penstock.errors import TerminalError
from penstock.model import COORDINATES, Split
from penstock.transforms.columns import quote


class Sql:
    """A query over the rows that enter."""

    def __init__(self, query: str) -> None:
        self.query = query

    def __repr__(self) -> str:
        return f"sql {' '.join(self.query.split())}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark."""
        return "`sql` is run by Spark"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """Never known here."""
        raise self._needs_spark()

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Never run here."""
        raise self._needs_spark()

    def select(self, columns: Sequence[str]) -> str:
        """The query as it is, with the coordinates added to its columns where each row comes from one row."""
        place = _place_for_coordinates(self.query) if COORDINATES in columns else None
        if place is None:
            return self.query
        return f"{self.query[:place]}, {quote(COORDINATES)} {self.query[place:]}"

    def _needs_spark(self) -> TerminalError:
        return TerminalError("TRANSFORM_NEEDS_SPARK", "`sql` is run by Spark", hint="run it in the frame lane")


def _place_for_coordinates(query: str) -> int | None:
    """Where the coordinates can join the select list: at its end, in a plain SELECT from `input` alone.

    Grouping, DISTINCT, joins, set operations and `*` are left as they are: there a row has no coordinates of
    its own, several, or has them already.
    """
    tree = sqlglot.parse_one(query, dialect="spark")
    plain = (
        isinstance(tree, exp.Select)
        and not any(tree.args.get(part) for part in ("group", "distinct", "joins", "laterals", "having", "with_"))
        and not tree.is_star
        and COORDINATES not in tree.named_selects
        and not any(item.find(exp.AggFunc) and not item.find(exp.Window) for item in tree.selects)
    )
    if not plain:
        return None
    depth = 0
    for token in sqlglot.tokenize(query, dialect="spark"):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.FROM and depth == 0:
            return int(token.start)
    return None
