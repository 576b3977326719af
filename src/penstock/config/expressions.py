"""Spark SQL expressions and queries, read by sqlglot: which columns they use and what cannot be in them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from penstock.config.fields import COORDINATES
from penstock.config.problems import TextError

# A statement that sqlglot does not know is logged as a warning; here it becomes a problem with its place.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class ExpressionError(TextError):
    """An expression or query that is refused."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A column that an expression uses: its name, then the struct fields after it."""

    parts: tuple[str, ...]
    offsets: tuple[int, ...]


def read_expression(text: str) -> tuple[Reference, ...]:
    """The columns that an expression over one row uses. Raises `ExpressionError`."""
    tree = _parse(text, "expression")
    if isinstance(tree, exp.Alias):
        raise ExpressionError(f'unexpected "{tree.alias}" at the end of the expression', _end_of(tree.this, text))
    if isinstance(tree, exp.Query | exp.Command | exp.DDL | exp.Star | exp.DML | exp.Drop):
        raise ExpressionError("expected an expression over the columns", 0, "write a whole query as - sql:")
    for node in tree.walk():
        if isinstance(node, exp.Query):
            raise ExpressionError(
                "subqueries are not possible in an expression", _offset(node), "write queries as - sql:"
            )
        if isinstance(node, exp.AggFunc | exp.Window | exp.UDTF):
            what = node.sql_name() if isinstance(node, exp.Func) else "a window"
            hint = "an expression sees one row at a time; for several rows, use - sql:"
            raise ExpressionError(f"{what} is not possible here", _offset(node), hint)
    return tuple(_references(tree))


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What is known about an aggregate expression."""

    references: tuple[Reference, ...]
    numeric: tuple[Reference, ...]
    """The columns that are summed or averaged directly."""


def read_aggregate(text: str) -> Aggregate:
    """The columns that an aggregate over many rows uses. Raises `ExpressionError`."""
    tree = _parse(text, "aggregate")
    if isinstance(tree, exp.Alias):
        raise ExpressionError(f'unexpected "{tree.alias}" at the end of the expression', _end_of(tree.this, text))
    for node in tree.walk():
        if isinstance(node, exp.Query | exp.Window):
            what = "a query" if isinstance(node, exp.Query) else "OVER"
            raise ExpressionError(f"{what} is not possible in an aggregate", _offset(node))
    for node in tree.find_all(exp.Distinct):
        hint = "approx_count_distinct(...) is"
        raise ExpressionError("DISTINCT is not possible over a stream", _offset(node), hint)
    # Aggregates that the parser knows by name only are left to Spark.
    if not tree.find(exp.AggFunc, exp.Anonymous):
        raise ExpressionError("expected an aggregate over the rows of a window", 0, "such as count(*) or sum(amount)")
    summed = [node.this for node in tree.find_all(exp.Sum, exp.Avg) if isinstance(node.this, exp.Column)]
    return Aggregate(tuple(_references(tree)), tuple(one for column in summed for one in _references(column)))


@dataclass(frozen=True, slots=True)
class Query:
    """What is known about a query over `input`."""

    references: tuple[Reference, ...]
    """The columns of `input` that it uses; empty where only Spark knows."""
    outputs: tuple[str, ...] | None
    """The output names; `*` means all columns of `input`. None if only Spark knows."""
    tables: tuple[str, ...] = ()
    """The other tables that it reads."""


def read_query(text: str) -> Query:
    """What a query over `input` uses and gives. Raises `ExpressionError`."""
    tree = _parse(text, "query")
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Subquery):
        raise ExpressionError("expected one SELECT over input", 0, "such as: SELECT * FROM input")
    defined = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    tables = [table for table in tree.find_all(exp.Table) if table.name.lower() not in defined]
    if not any(table.name.lower() == "input" and not table.db for table in tables):
        read = ", ".join(dict.fromkeys(table.sql(dialect="spark") for table in tables)) or "no table"
        raise ExpressionError(f"the query reads {read}, not input", 0, "the rows of the batch are in the table input")
    for argument, words in (("limit", "LIMIT"), ("offset", "OFFSET"), ("order", "ORDER BY")):
        found = tree.args.get(argument)
        if found is not None:
            at = re.search(words.replace(" ", r"\s+"), text, re.IGNORECASE)
            raise ExpressionError(
                f"{words} over a stream applies to each batch separately",
                at.start() if at else 0,
                "remove it: which rows share a batch is undefined",
            )
    others = tuple(dict.fromkeys(table.name for table in tables if not table.db and table.name.lower() != "input"))
    if isinstance(tree, exp.Select) and _reads_only_input(tree):
        return Query(tuple(_input_references(tree)), _outputs(tree, simple=True), others)
    return Query((), _outputs(tree, simple=False), others)


def place_for_coordinates(query: str) -> int | None:
    """Where the coordinates can join the select list: at its end, in a plain SELECT from `input` alone.

    Grouping, DISTINCT, joins, set operations and `*` are not changed: there a row has no coordinates, several, or
    already has them.
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


def _reads_only_input(tree: exp.Select) -> bool:
    nested = any(node is not tree for node in tree.find_all(exp.Query))
    return not nested and not any(tree.args.get(part) for part in ("joins", "laterals", "with_", "pivots"))


def _input_references(tree: exp.Select) -> Iterator[Reference]:
    """References without the table's name before them and without the select list's own names."""
    table = tree.find(exp.Table)
    prefixes = {"input", (table.alias if table else "").lower()} - {""}
    aliases = {name.lower() for item in tree.expressions for name in _item_names(item, explicit=True)}
    for reference in _references(tree):
        parts, offsets = reference.parts, reference.offsets
        if len(parts) > 1 and parts[0].lower() in prefixes:
            parts, offsets = parts[1:], offsets[1:]
        if parts[0].lower() not in aliases and parts[0] != "*":
            yield Reference(parts, offsets)


def _outputs(tree: exp.Query, *, simple: bool) -> tuple[str, ...] | None:
    outputs: list[str] = []
    for item in tree.selects:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            star = item if isinstance(item, exp.Star) else item.this
            if not simple or any(star.args.values()):
                return None
            outputs.append("*")
            continue
        names = _item_names(item, explicit=False)
        if not names:
            return None
        outputs.extend(names)
    return tuple(outputs)


def _item_names(item: exp.Expr, *, explicit: bool) -> tuple[str, ...]:
    if isinstance(item, exp.Alias):
        return (item.alias,)
    if isinstance(item, exp.Aliases):
        return tuple(alias.name for alias in item.expressions)
    if isinstance(item, exp.Column | exp.Dot) and not explicit:
        return (item.name,)
    return ()


def _parse(text: str, what: str) -> exp.Expr:
    try:
        trees = [tree for tree in Spark().parse(text) if tree is not None]
    except TokenError:
        at = max(text.rfind(quote) for quote in "'\"`")
        raise ExpressionError("unclosed quote", max(at, 0)) from None
    except ParseError as error:
        raise _unreadable(text, error) from None
    except RecursionError:
        raise ExpressionError(f"the {what} is nested too deep") from None
    if not trees:
        raise ExpressionError(f"the {what} is empty")
    if len(trees) > 1:
        raise ExpressionError(f"several statements; expected one {what}", text.find(";"))
    return trees[0]


def _unreadable(text: str, error: ParseError) -> ExpressionError:
    first = error.errors[0]
    word = first["highlight"] or ""
    lines = text.split("\n")[: first["line"]]
    end = sum(len(line) + 1 for line in lines[:-1]) + first["col"]
    offset = max(min(end, len(text)) - len(word), 0)
    description: str = first["description"] or ""
    if description.startswith("Required keyword"):
        return ExpressionError(f'not Spark SQL: something is missing after "{word}"', offset)
    if description.startswith("Expecting"):
        return ExpressionError(f'not Spark SQL: expected {description.split()[-1]} after "{word}"', offset)
    if description.startswith("Expected TYPE"):
        return ExpressionError(f'not Spark SQL: "{word}" is not a type', offset)
    return ExpressionError(f'not Spark SQL: unexpected "{word}"', offset)


def _references(tree: exp.Expr) -> Iterator[Reference]:
    for column in tree.find_all(exp.Column):
        identifiers = [part for part in column.parts if isinstance(part, exp.Identifier)]
        if len(identifiers) < len(column.parts):
            continue
        node: exp.Expr = column
        while isinstance(node.parent, exp.Dot) and node.parent.this is node:
            node = node.parent
            if not isinstance(node.expression, exp.Identifier):
                break
            identifiers.append(node.expression)
        yield Reference(tuple(i.name for i in identifiers), tuple(i.meta.get("start", 0) for i in identifiers))


def _offset(node: exp.Expr) -> int:
    starts = [inner.meta["start"] for inner in node.walk() if "start" in inner.meta]
    return min(starts, default=0)


def _end_of(node: exp.Expr, text: str) -> int:
    ends = [inner.meta["end"] for inner in node.walk() if "end" in inner.meta]
    after = max(ends, default=-1) + 1
    return after + len(text[after:]) - len(text[after:].lstrip())
