"""Which pieces of Spark SQL have an Arrow form.

A piece may fail on a row, as it may in Spark. Where Spark's optimizer could change whether it does, there is no form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.transforms.expressions import calendar, choice, comparison, division, nested, rounding, searching, strings
from penstock.transforms.expressions.compiler import Compiler, Form, Forms, check_safe
from penstock.transforms.expressions.laziness import Failure
from penstock.transforms.expressions.literals import number
from penstock.transforms.expressions.terms import NoFormError, Term, call, literal


def compile_tree(tree: exp.Expr, text: str, schema: pa.Schema, *, condition: bool) -> tuple[Term, tuple[Failure, ...]]:
    """The term of a whole expression, and what in it may fail."""
    return Compiler(text, schema, _FORMS, condition=condition).compile(tree)


def _binary(make: Callable[[Term, Term], Term]) -> Form:
    return lambda c, node: make(c.term(node.this), c.term(node.expression))


def _compare(operator: str) -> Form:
    return lambda c, node: comparison.compare(operator, c.term(node.this), c.term(node.expression))


def _not(term: Term) -> Term:
    return call(pa.bool_(), pc.invert, comparison.truth(term))


def _like(c: Compiler, node: Any) -> Term:
    found = searching.like(c.term(node.this), c.term(node.expression))
    return _not(found) if node.args.get("negate") else found


def _between(c: Compiler, node: Any) -> Term:
    subject, low, high = (c.term(node.args[name]) for name in ("this", "low", "high"))
    check_safe("BETWEEN", subject, low, high)
    return choice.both(comparison.compare(">=", subject, low), comparison.compare("<=", subject, high))


def _number_or_text(c: Compiler, node: Any) -> Term:
    return literal(node.name, pa.string()) if node.is_string else number(node.name)


def _substring(c: Compiler, node: Any) -> Term:
    size = node.args.get("length")
    return strings.substring(c.term(node.this), c.term(node.args["start"]), c.term(size) if size else None)


def _trim(c: Compiler, node: Any) -> Term:
    taken = node.args.get("expression")
    return strings.trim(c.term(node.this), node.args.get("position") or "", c.term(taken) if taken else None)


def _item(c: Compiler, node: Any) -> Term:
    if len(node.expressions) != 1:
        raise NoFormError("a slice is left to Spark")
    return nested.item(c.term(node.this), c.term(node.expressions[0]))


_BINARY = ("this", "expression")
_CAST: tuple[Form, tuple[str, ...]] = (Compiler.cast, ("this", "to", "safe"))
_FORMS: Forms = {
    exp.Column: (Compiler.column, ("this", "table", "db", "catalog")),
    exp.Dot: (Compiler.dot, _BINARY),
    exp.Paren: (lambda c, node: c.term(node.this), ("this",)),
    exp.Literal: (_number_or_text, ("this", "is_string")),
    exp.Boolean: (lambda c, node: literal(bool(node.this), pa.bool_()), ("this",)),
    exp.Null: (lambda c, node: literal(None, pa.null()), ()),
    exp.EQ: (_compare("="), _BINARY),
    exp.NEQ: (_compare("<>"), _BINARY),
    exp.LT: (_compare("<"), _BINARY),
    exp.LTE: (_compare("<="), _BINARY),
    exp.GT: (_compare(">"), _BINARY),
    exp.GTE: (_compare(">="), _BINARY),
    exp.NullSafeEQ: (_compare("<=>"), _BINARY),
    exp.NullSafeNEQ: (lambda c, node: _not(_compare("<=>")(c, node)), _BINARY),
    exp.And: (_binary(choice.both), _BINARY),
    exp.Or: (_binary(choice.either), _BINARY),
    exp.Not: (lambda c, node: _not(c.term(node.this)), ("this",)),
    exp.Is: (Compiler.test, _BINARY),
    exp.In: (
        lambda c, node: comparison.is_in(c.term(node.this), [c.term(option) for option in node.expressions]),
        ("this", "expressions"),
    ),
    exp.Between: (_between, ("this", "low", "high")),
    exp.Like: (_like, ("this", "expression", "negate")),
    exp.IsNan: (lambda c, node: comparison.is_nan(c.term(node.this)), ("this",)),
    exp.Case: (Compiler.cases, ("this", "ifs", "default")),
    exp.If: (Compiler.condition, ("this", "true", "false")),
    exp.Nvl2: (Compiler.condition, ("this", "true", "false")),
    exp.Nullif: (Compiler.null_if, _BINARY),
    exp.Coalesce: (
        lambda c, node: choice.coalesce([c.term(node.this), *map(c.term, node.expressions)]),
        ("this", "expressions"),
    ),
    exp.Add: (Compiler.arithmetic, _BINARY),
    exp.Sub: (Compiler.arithmetic, _BINARY),
    exp.Mul: (Compiler.arithmetic, _BINARY),
    exp.Div: (_binary(division.quotient), ("this", "expression", "typed", "safe")),
    exp.IntDiv: (_binary(division.whole_quotient), _BINARY),
    exp.Mod: (_binary(division.remainder), _BINARY),
    exp.Neg: (Compiler.negative, ("this",)),
    exp.Floor: (lambda c, node: rounding.floor(c.term(node.this)), ("this",)),
    exp.Ceil: (lambda c, node: rounding.ceiling(c.term(node.this)), ("this",)),
    exp.Cast: _CAST,
    exp.TryCast: _CAST,
    exp.DPipe: (_binary(strings.concat), (*_BINARY, "safe")),
    exp.Trim: (_trim, ("this", "position", "expression")),
    exp.Substring: (_substring, ("this", "start", "length")),
    exp.StrPosition: (
        lambda c, node: searching.position(c.term(node.this), c.term(node.args["substr"])),
        ("this", "substr"),
    ),
    exp.Bracket: (_item, ("this", "expressions")),
    exp.TimestampTrunc: (
        lambda c, node: calendar.truncate(node.args["unit"].name, c.term(node.this)),
        ("this", "unit"),
    ),
    exp.Anonymous: (Compiler.call, ("this", "expressions")),
}
"""Every piece of syntax with an Arrow form, and the options of it that are understood."""
