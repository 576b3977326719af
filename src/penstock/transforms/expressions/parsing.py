"""Spark SQL expression text to a syntax tree, or the reason why only Spark should read it.

The parser is sqlglot's; Spark's grammar differs from it in places. Text that the two might read differently
is found here and left to Spark, so that a tree that is returned means what Spark means by the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DefinitionError
from penstock.transforms.columns import unknown_column
from penstock.transforms.expressions import arithmetic, conditions, nested, strings, times
from penstock.transforms.expressions.terms import Functions, NoFormError

FUNCTIONS = Functions()
"""Every function with an Arrow form."""
for _module in (arithmetic, conditions, nested, strings, times):
    FUNCTIONS.update(_module.functions)

_PREDICATES = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Like, exp.ILike, exp.RegexpLike, exp.Is, exp.In, exp.Between),
)
_BOOLEANS = (*_PREDICATES, exp.Not, exp.And, exp.Or)
_OPERANDS = {
    *(TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.STRING, TokenType.NULL),
    *(TokenType.R_PAREN, TokenType.R_BRACKET),
    *SparkParser.TYPE_TOKENS,
}
_SIZED_TEXT = {"CHAR", "CHARACTER", "VARCHAR", "NCHAR", "NVARCHAR"}
_UNITS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND"}
_WORDS_OF_SPARK = {"USER", "CURRENT_USER", "SESSION_USER", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_TIME"}
_OTHER_SCOPES = (exp.Lambda, exp.Query, exp.DataType, exp.Collate, exp.Kwarg, exp.Interval)
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _AsWritten(Spark):
    """Spark's grammar, with the calls of functions known here left as they are written."""

    class Parser(SparkParser):
        FUNCTIONS = {name: make for name, make in SparkParser.FUNCTIONS.items() if name.lower() not in FUNCTIONS}


def parse_expression(text: str) -> exp.Expr:
    """The syntax tree of a Spark SQL expression. Raises `NoFormError` where only Spark can read it."""
    if "\\" in text or "${" in text:
        raise NoFormError("it has a backslash or ${, which Spark reads by rules of its own")
    tokens = _tokens(text)
    _check_brackets(text, tokens)
    _check_tokens(tokens)
    try:
        tree = sqlglot.parse_one(text, read=_AsWritten)
    except (SqlglotError, RecursionError) as error:
        raise NoFormError("it is not understood outside Spark") from error
    for node in tree.walk():
        if isinstance(node, _PREDICATES) and any(isinstance(c, _BOOLEANS) for c in node.iter_expressions()):
            raise NoFormError("it chains comparisons without parentheses")
    return tree


def name_parts(node: exp.Expr) -> list[str]:
    """The parts of a column reference: the column, then the fields inside it."""
    if isinstance(node, exp.Dot):
        return [*name_parts(node.this), *name_parts(node.expression)]
    if isinstance(node, exp.Column):
        return [part for piece in node.parts for part in name_parts(piece)]
    if isinstance(node, exp.Identifier) and (node.args.get("quoted") or _BARE_NAME.fullmatch(node.name)):
        return [node.name]
    raise NoFormError(f"`{node.sql('spark')}` is not a plain column name")


def check_columns(text: str, columns: Sequence[str]) -> None:
    """Raise where `text` certainly names a column that is not there."""
    try:
        tree = parse_expression(text)
    except NoFormError:
        return
    known = {column.lower() for column in columns} | {"input"}
    for name in _column_names(tree):
        if name.lower() not in known:
            raise unknown_column(name, columns, context={"expression": text})


def invalid(text: str, problem: str, hint: str | None = None) -> DefinitionError:
    """The error for an expression that Spark would refuse."""
    return DefinitionError("EXPRESSION_INVALID", problem, context={"expression": text}, hint=hint)


def _tokens(text: str) -> list[Token]:
    try:
        tokens = Spark().tokenize(text)
    except TokenError as error:
        raise invalid(text, "a quote or comment in the expression is not closed") from error
    if not tokens:
        raise invalid(text, "the expression is empty")
    return tokens


def _check_brackets(text: str, tokens: Sequence[Token]) -> None:
    depth = 0
    for token in tokens:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth < 0:
            break
    if depth != 0:
        raise invalid(text, "the parentheses of the expression do not match")


def _check_tokens(tokens: Sequence[Token]) -> None:
    """Leave to Spark what the parser would drop or fold without a trace in the tree."""
    for index, token in enumerate(tokens):
        previous = tokens[index - 1].token_type if index else None
        following = [later.token_type for later in tokens[index + 1 : index + 3]]
        word = token.text.upper() if token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER) else ""
        if token.comments:
            raise NoFormError("it has a comment")
        if token.token_type == TokenType.STRING and previous == TokenType.STRING:
            raise NoFormError("it has a quote doubled inside a string, or two strings side by side")
        if token.token_type == TokenType.PLUS and previous not in _OPERANDS:
            raise NoFormError("it has a plus sign in front of a value")
        if word in _SIZED_TEXT:
            raise NoFormError("it has a text type with a length")
        if word == "DATE_TRUNC" and following != [TokenType.L_PAREN, TokenType.STRING]:
            raise NoFormError("the unit of date_trunc is not a constant")


def _column_names(tree: exp.Expr) -> Iterator[str]:
    for node in tree.find_all(exp.Column):
        first = node.parts[0]
        if node.find_ancestor(*_OTHER_SCOPES) or not isinstance(first, exp.Identifier):
            continue
        is_unit = first.name.upper() in _UNITS and isinstance(node.parent, exp.Func)
        is_plain = first.args.get("quoted") or _BARE_NAME.fullmatch(first.name)
        if is_plain and not is_unit and first.name.upper() not in _WORDS_OF_SPARK:
            yield first.name
