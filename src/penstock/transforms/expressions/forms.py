"""Which pieces of Spark SQL have an Arrow form, and syntax compiled to typed terms.

A piece may fail on a row, as it may in Spark. Where Spark's optimizer could change whether it does, there is no form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.transforms.expressions import arithmetic, conditions, laziness, nested, strings, times
from penstock.transforms.expressions.casts import convert
from penstock.transforms.expressions.laziness import Failure
from penstock.transforms.expressions.parsing import FUNCTIONS, invalid, name_parts
from penstock.transforms.expressions.terms import (
    MAX_DIGITS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    NoFormError,
    Term,
    call,
    common_type,
    is_plain,
    literal,
    sql_name,
)

Form = tuple[Callable[["Compiler", exp.Expr], Term], tuple[str, ...]]
"""What makes the term of a kind of syntax, and the arguments of it that are understood."""

_OPERATORS: Mapping[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}


class Compiler:
    """Turns syntax into terms over one schema. A `condition` is a filter: a part that is NULL ends its evaluation."""

    def __init__(self, text: str, schema: pa.Schema, *, condition: bool = False) -> None:
        self._text = text
        self._schema = schema
        self._condition = condition
        self._failing: set[int] = set()
        self._operands: dict[int, tuple[str, list[Term]]] = {}
        """By the id of the term of a sum or product of integers: what it is a sum or product of."""

    def compile(self, tree: exp.Expr) -> tuple[Term, tuple[Failure, ...]]:
        """The term of a whole expression, and what in it may fail."""
        term = self._filter(tree) if self._condition else self.term(tree)
        laziness.check(tree, self._failing)
        if self._condition:
            laziness.check_filter(tree, self._failing)
        found = laziness.failures(tree, self._failing)
        if laziness.repeated(found):
            raise NoFormError("a piece that may fail is there twice")
        return term, found

    def term(self, node: exp.Expr) -> Term:
        """The term of a piece of syntax. What is not known here, or has arguments not known here, has no form."""
        known = FORMS.get(type(node))
        if known is None:
            raise NoFormError(
                f"{node.sql('spark')} has no Arrow form" if len(node.sql()) < 60 else "it has no Arrow form"
            )
        make, understood = known
        unknown = [name for name, value in node.args.items() if value and name not in understood]
        if unknown:
            raise NoFormError(f"{type(node).__name__.lower()} with {', '.join(unknown)} has no Arrow form")
        term = make(self, node)
        if term.fails:
            self._failing.add(id(node))
        return term

    def column(self, node: exp.Expr) -> Term:
        """A column, or a field inside one. Names are matched without regard to case, as in Spark."""
        first, *rest = name_parts(node)
        if rest and first.lower() == "input":
            raise NoFormError("a column named through its table is left to Spark")
        index = self._position(first, self._schema.names)
        kind = self._schema.field(index).type
        path: list[int] = []
        for name in rest:
            if not pa.types.is_struct(kind):
                raise NoFormError(f"`{name}` is looked up in a {sql_name(kind)}")
            path.append(self._position(name, [member.name for member in kind]))
            kind = kind.field(path[-1]).type
        if not (is_plain(kind) or pa.types.is_nested(kind)):
            raise NoFormError(f"columns of type {sql_name(kind)} are left to Spark")
        if not path:
            return Term(kind, lambda rows: rows.batch.column(index))
        return Term(kind, lambda rows: pc.struct_field(rows.batch.column(index), path))

    def dot(self, node: exp.Expr) -> Term:
        """A field of something that is not a column, or a column deep inside others."""
        inner = node
        while isinstance(inner, exp.Dot):
            inner = inner.this
        if isinstance(inner, exp.Column):
            return self.column(node)
        [name] = name_parts(node.expression)
        return nested.field(self.term(node.this), name)

    def arithmetic(self, node: exp.Expr) -> Term:
        """`+ - *`, of numbers and of times."""
        operator = _OPERATORS[type(node)]
        sign = 1 if operator == "+" else -1
        if isinstance(node.expression, exp.Interval) and operator != "*":
            return self._interval(self.term(node.this), node.expression, sign)
        if any(_is_try(operand) for operand in (node.this, node.expression)):
            raise NoFormError("arithmetic over a try of its own kind is left to Spark")
        left, right = self.term(node.this), self.term(node.expression)
        if left.type == pa.date32() and pa.types.is_integer(right.type) and operator != "*":
            return times.add_days(left, right, sign=sign)
        if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)) or operator == "-":
            return arithmetic.combine(operator, left, right)
        kind = common_type([left.type, right.type])
        parts = [*self._parts(operator, left, kind), *self._parts(operator, right, kind)]
        is_mixed = any(part.value is not None for part in parts)
        term = arithmetic.chain(operator, parts) if is_mixed else arithmetic.combine(operator, left, right)
        self._operands[id(term)] = (operator, [*parts, term])
        return term

    def negative(self, node: exp.Expr) -> Term:
        """A negative number, or the negative of a value."""
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return _number("-" + node.this.name)
        return arithmetic.negative(self.term(node.this))

    def cases(self, node: exp.Expr) -> Term:
        """CASE in both shapes."""
        subject = self.term(node.this) if node.this else None
        cases = []
        for branch in node.args["ifs"]:
            condition = self.term(branch.this)
            if subject is not None:
                condition = conditions.compare("=", subject, condition)
            if condition.type == pa.null():
                raise NoFormError("WHEN NULL is left to Spark")
            cases.append((condition, self.term(branch.args["true"])))
        default = node.args.get("default")
        return conditions.choose(cases, self.term(default) if default else literal(None, pa.null()))

    def cast(self, node: exp.Expr) -> Term:
        """CAST and try_cast."""
        return convert(self.term(node.this), _cast_target(node.args["to"]), null_on_error=bool(node.args.get("safe")))

    def call(self, node: exp.Expr) -> Term:
        """Functions by name."""
        if not isinstance(node.this, str):
            raise NoFormError("a quoted function name is left to Spark")
        return FUNCTIONS.call(node.this, [self.term(argument) for argument in node.expressions])

    def _filter(self, node: exp.Expr) -> Term:
        first, *others = laziness.conjuncts(node)
        term = self.term(first)
        for other in others:
            term = conditions.both(term, self.term(other), as_filter=True)
        return term

    def _interval(self, moment: Term, node: exp.Interval, sign: int) -> Term:
        amount, unit = node.this, node.args.get("unit")
        if not isinstance(amount, exp.Literal) or not isinstance(unit, exp.Var):
            raise NoFormError("an interval that is not one constant number of one unit is left to Spark")
        return times.add_interval(moment, amount.name, unit.name, sign=sign)

    def _parts(self, operator: str, term: Term, kind: pa.DataType) -> list[Term]:
        known, parts = self._operands.get(id(term), ("", [term, term]))
        return parts[:-1] if known == operator and term.type == kind else [convert(term, kind)]

    def _position(self, name: str, names: list[str]) -> int:
        found = [index for index, known in enumerate(names) if known.lower() == name.lower()]
        if not found:
            raise invalid(self._text, f'field "{name}" is not there', hint=f"fields: {', '.join(names)}")
        if len(found) > 1:
            raise NoFormError(f"`{name}` names several columns")
        return found[0]


def _is_try(node: exp.Expr) -> bool:
    inner = node.unnest()
    return isinstance(inner, exp.Anonymous) and inner.name.lower() in ("try_add", "try_subtract", "try_multiply")


def _check_safe(name: str, *terms: Term) -> None:
    """Raise where Spark may evaluate one of the operands apart from the others."""
    if any(term.fails for term in terms):
        raise NoFormError(f"{name} of something that may fail is left to Spark")


def _not(term: Term) -> Term:
    return call(pa.bool_(), pc.invert, conditions.truth(term))


def _is(subject: Term, wanted: Term) -> Term:
    """`IS NULL`, `IS TRUE`, `IS FALSE`."""
    if wanted.is_null:
        return conditions.is_null(subject)
    return conditions.compare("<=>", conditions.truth(subject), conditions.truth(wanted))


def _between(subject: Term, low: Term, high: Term) -> Term:
    _check_safe("BETWEEN", subject, low, high)
    return conditions.both(conditions.compare(">=", subject, low), conditions.compare("<=", subject, high))


def _null_if(left: Term, right: Term) -> Term:
    """Always of the type of the left one."""
    _check_safe("nullif", left, right)
    return conditions.choose([(conditions.compare("=", left, right), literal(None, left.type))], left)


def _if(test: Term, then: Term, otherwise: Term | None) -> Term:
    if otherwise is None:
        raise NoFormError("if takes three values")
    return conditions.choose([(test, then)], otherwise)


def _like(c: Compiler, node: Any) -> Term:
    found = strings.like(c.term(node.this), c.term(node.expression))
    return _not(found) if node.args.get("negate") else found


def _trim(c: Compiler, node: Any) -> Term:
    taken = node.args.get("expression")
    return strings.trim(c.term(node.this), node.args.get("position") or "", c.term(taken) if taken else None)


def _item(c: Compiler, node: Any) -> Term:
    if len(node.expressions) != 1:
        raise NoFormError("a slice is left to Spark")
    return nested.item(c.term(node.this), c.term(node.expressions[0]))


def _literal(c: Compiler, node: Any) -> Term:
    return literal(node.name, pa.string()) if node.is_string else _number(node.name)


def _number(text: str) -> Term:
    """A number as it is written, the sign included."""
    if re.fullmatch(r"-?\d+", text):
        whole = int(text)
        for kind in (pa.int32(), pa.int64()):
            if -(1 << (kind.bit_width - 1)) <= whole < 1 << (kind.bit_width - 1):
                return replace(literal(whole, kind), written=True)
        return _decimal(text)
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+)", text):
        return _decimal(text)
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text) and math.isfinite(float(text)):
        return literal(float(text), pa.float64())
    raise NoFormError(f"the number {text} is left to Spark")


def _decimal(text: str) -> Term:
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > MAX_DIGITS:
        raise NoFormError(f"the number {text} has more than {MAX_DIGITS} digits")
    return literal(value, pa.decimal128(precision, scale))


_TYPES = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: TIMESTAMP,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def _cast_target(node: exp.DataType) -> pa.DataType:
    """The Arrow type of a type in a cast."""
    if node.this == exp.DType.DECIMAL:
        parameters = [int(parameter.name) for parameter in node.expressions]
        precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
        if not 0 <= scale <= precision <= MAX_DIGITS or precision == 0:
            raise NoFormError(f"{node.sql('spark')} is left to Spark")
        return pa.decimal128(precision, scale)
    if node.this not in _TYPES or node.expressions or node.args.get("collate"):
        raise NoFormError(f"a cast to {node.sql('spark')} is left to Spark")
    return _TYPES[node.this]


_BINARY = ("this", "expression")


def _of(make: Callable[..., Term], *names: str, also: tuple[str, ...] = ()) -> Form:
    """The form of a function of the terms of some arguments, None for one left out; `also` are understood too."""

    def form(c: Compiler, node: exp.Expr) -> Term:
        arguments = (node.args.get(name) for name in names)
        return make(*(c.term(argument) if argument else None for argument in arguments))

    return form, (*names, *also)


def _of_all(make: Callable[[Term, list[Term]], Term]) -> Form:
    """The form of a function of a term and a list of terms."""
    return lambda c, node: make(c.term(node.this), [c.term(one) for one in node.expressions]), ("this", "expressions")


_CAST: Form = (Compiler.cast, ("this", "to", "safe"))
FORMS: Mapping[type[exp.Expr], Form] = {
    exp.Column: (Compiler.column, ("this", "table", "db", "catalog")),
    exp.Dot: (Compiler.dot, _BINARY),
    exp.Paren: _of(lambda term: term, "this"),
    exp.Literal: (_literal, ("this", "is_string")),
    exp.Boolean: (lambda c, node: literal(bool(node.this), pa.bool_()), ("this",)),
    exp.Null: (lambda c, node: literal(None, pa.null()), ()),
    exp.EQ: _of(partial(conditions.compare, "="), *_BINARY),
    exp.NEQ: _of(partial(conditions.compare, "<>"), *_BINARY),
    exp.LT: _of(partial(conditions.compare, "<"), *_BINARY),
    exp.LTE: _of(partial(conditions.compare, "<="), *_BINARY),
    exp.GT: _of(partial(conditions.compare, ">"), *_BINARY),
    exp.GTE: _of(partial(conditions.compare, ">="), *_BINARY),
    exp.NullSafeEQ: _of(partial(conditions.compare, "<=>"), *_BINARY),
    exp.NullSafeNEQ: _of(lambda left, right: _not(conditions.compare("<=>", left, right)), *_BINARY),
    exp.And: _of(conditions.both, *_BINARY),
    exp.Or: _of(conditions.either, *_BINARY),
    exp.Not: _of(_not, "this"),
    exp.Is: _of(_is, *_BINARY),
    exp.In: _of_all(conditions.is_in),
    exp.Between: _of(_between, "this", "low", "high"),
    exp.Like: (_like, (*_BINARY, "negate")),
    exp.IsNan: _of(conditions.is_nan, "this"),
    exp.Case: (Compiler.cases, ("this", "ifs", "default")),
    exp.If: _of(_if, "this", "true", "false"),
    exp.Nvl2: _of(
        lambda term, then, otherwise: _if(conditions.is_not_null(term), then, otherwise), "this", "true", "false"
    ),
    exp.Nullif: _of(_null_if, *_BINARY),
    exp.Coalesce: _of_all(lambda term, others: conditions.coalesce([term, *others])),
    exp.Add: (Compiler.arithmetic, _BINARY),
    exp.Sub: (Compiler.arithmetic, _BINARY),
    exp.Mul: (Compiler.arithmetic, _BINARY),
    exp.Div: _of(arithmetic.quotient, *_BINARY, also=("typed", "safe")),
    exp.IntDiv: _of(arithmetic.whole_quotient, *_BINARY),
    exp.Mod: _of(arithmetic.remainder, *_BINARY),
    exp.Neg: (Compiler.negative, ("this",)),
    exp.Floor: _of(partial(arithmetic.to_whole, mode="down"), "this"),
    exp.Ceil: _of(partial(arithmetic.to_whole, mode="up"), "this"),
    exp.Cast: _CAST,
    exp.TryCast: _CAST,
    exp.DPipe: _of(strings.concat, *_BINARY, also=("safe",)),
    exp.Trim: (_trim, ("this", "position", "expression")),
    exp.Substring: _of(strings.substring, "this", "start", "length"),
    exp.StrPosition: _of(strings.position, "this", "substr"),
    exp.Bracket: (_item, ("this", "expressions")),
    exp.TimestampTrunc: (
        lambda c, node: times.truncate(node.args["unit"].name, c.term(node.this)),
        ("this", "unit"),
    ),
    exp.Anonymous: (Compiler.call, ("this", "expressions")),
}
"""Every piece of syntax with an Arrow form."""
