"""Which pieces of Spark SQL have an Arrow form, and syntax compiled to typed terms.

A piece may fail on a row, as it may in Spark. Where Spark's optimizer could change whether it does, there is no form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.transforms.expressions import conditions, laziness, moments, nested, numbers, strings
from penstock.transforms.expressions.conversion import common_type, convert
from penstock.transforms.expressions.functions import function
from penstock.transforms.expressions.laziness import Failure
from penstock.transforms.expressions.parsing import invalid, name_parts
from penstock.transforms.expressions.terms import (
    NoFormError,
    Term,
    call,
    cast_target,
    is_plain,
    literal,
    number,
    sql_name,
)

Form = Callable[["Compiler", exp.Expr], Term]
Forms = Mapping[type[exp.Expr], tuple[Form, tuple[str, ...]]]
"""By kind of syntax: what makes its term, and the options of it that are understood."""

_OPERATORS: Mapping[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}


class Compiler:
    """Turns syntax into terms over one schema. A `condition` is a filter: a part that is NULL ends its evaluation."""

    def __init__(self, text: str, schema: pa.Schema, forms: Forms, *, condition: bool = False) -> None:
        self._text = text
        self._forms = forms
        self._schema = schema
        self._condition = condition
        self._failing: set[int] = set()
        self._operands: dict[int, tuple[str, list[Term]]] = {}
        """By the id of the term of a sum or product of integers: what it is a sum or product of."""

    def compile(self, tree: exp.Expr) -> tuple[Term, tuple[laziness.Failure, ...]]:
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
        """The term of a piece of syntax. What is not known here, or has options not known here, has no form."""
        known = self._forms.get(type(node))
        if known is None:
            raise NoFormError(
                f"{node.sql('spark')} has no Arrow form" if len(node.sql()) < 60 else "it has no Arrow form"
            )
        form, options = known
        unknown = [name for name, value in node.args.items() if value and name not in options]
        if unknown:
            raise NoFormError(f"{type(node).__name__.lower()} with {', '.join(unknown)} has no Arrow form")
        term = form(self, node)
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
            return moments.add_days(left, right, sign=sign)
        if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)) or operator == "-":
            return numbers.combine(operator, left, right)
        kind = common_type([left.type, right.type])
        parts = [*self._parts(operator, left, kind), *self._parts(operator, right, kind)]
        is_mixed = any(part.value is not None for part in parts)
        term = numbers.chain(operator, parts) if is_mixed else numbers.combine(operator, left, right)
        self._operands[id(term)] = (operator, [*parts, term])
        return term

    def negative(self, node: exp.Expr) -> Term:
        """A negative number, or the negative of a value."""
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number("-" + node.this.name)
        return numbers.negative(self.term(node.this))

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

    def condition(self, node: exp.Expr) -> Term:
        """IF and nvl2: two values, chosen by a condition."""
        if not node.args.get("false"):
            raise NoFormError("if takes three values")
        test = self.term(node.this)
        if isinstance(node, exp.Nvl2):
            test = call(pa.bool_(), pc.invert, conditions.is_null(test))
        return conditions.choose([(test, self.term(node.args["true"]))], self.term(node.args["false"]))

    def null_if(self, node: exp.Expr) -> Term:
        """`nullif(a, b)`: always of the type of `a`."""
        left, right = self.term(node.this), self.term(node.expression)
        check_safe("nullif", left, right)
        return conditions.choose([(conditions.compare("=", left, right), literal(None, left.type))], left)

    def test(self, node: exp.Expr) -> Term:
        """`IS NULL`, `IS TRUE`, `IS FALSE`."""
        subject, wanted = self.term(node.this), self.term(node.expression)
        if wanted.is_null:
            return conditions.is_null(subject)
        return conditions.compare("<=>", conditions.truth(subject), conditions.truth(wanted))

    def cast(self, node: exp.Expr) -> Term:
        """CAST and try_cast."""
        return convert(self.term(node.this), cast_target(node.args["to"]), null_on_error=bool(node.args.get("safe")))

    def call(self, node: exp.Expr) -> Term:
        """Functions by name."""
        if not isinstance(node.this, str):
            raise NoFormError("a quoted function name is left to Spark")
        return function(node.this, [self.term(argument) for argument in node.expressions])

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
        return moments.add_interval(moment, amount.name, unit.name, sign=sign)

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


def check_safe(name: str, *terms: Term) -> None:
    """Raise where Spark may evaluate one of the operands apart from the others."""
    if any(term.fails for term in terms):
        raise NoFormError(f"{name} of something that may fail is left to Spark")


def _is_try(node: exp.Expr) -> bool:
    inner = node.unnest()
    return isinstance(inner, exp.Anonymous) and inner.name.lower() in ("try_add", "try_subtract", "try_multiply")


def compile_tree(tree: exp.Expr, text: str, schema: pa.Schema, *, condition: bool) -> tuple[Term, tuple[Failure, ...]]:
    """The term of a whole expression, and what in it may fail."""
    return Compiler(text, schema, _FORMS, condition=condition).compile(tree)


def _binary(make: Callable[[Term, Term], Term]) -> Form:
    return lambda c, node: make(c.term(node.this), c.term(node.expression))


def _compare(operator: str) -> Form:
    return lambda c, node: conditions.compare(operator, c.term(node.this), c.term(node.expression))


def _not(term: Term) -> Term:
    return call(pa.bool_(), pc.invert, conditions.truth(term))


def _like(c: Compiler, node: Any) -> Term:
    found = strings.like(c.term(node.this), c.term(node.expression))
    return _not(found) if node.args.get("negate") else found


def _between(c: Compiler, node: Any) -> Term:
    subject, low, high = (c.term(node.args[name]) for name in ("this", "low", "high"))
    check_safe("BETWEEN", subject, low, high)
    return conditions.both(conditions.compare(">=", subject, low), conditions.compare("<=", subject, high))


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
    exp.And: (_binary(conditions.both), _BINARY),
    exp.Or: (_binary(conditions.either), _BINARY),
    exp.Not: (lambda c, node: _not(c.term(node.this)), ("this",)),
    exp.Is: (Compiler.test, _BINARY),
    exp.In: (
        lambda c, node: conditions.is_in(c.term(node.this), [c.term(option) for option in node.expressions]),
        ("this", "expressions"),
    ),
    exp.Between: (_between, ("this", "low", "high")),
    exp.Like: (_like, ("this", "expression", "negate")),
    exp.IsNan: (lambda c, node: conditions.is_nan(c.term(node.this)), ("this",)),
    exp.Case: (Compiler.cases, ("this", "ifs", "default")),
    exp.If: (Compiler.condition, ("this", "true", "false")),
    exp.Nvl2: (Compiler.condition, ("this", "true", "false")),
    exp.Nullif: (Compiler.null_if, _BINARY),
    exp.Coalesce: (
        lambda c, node: conditions.coalesce([c.term(node.this), *map(c.term, node.expressions)]),
        ("this", "expressions"),
    ),
    exp.Add: (Compiler.arithmetic, _BINARY),
    exp.Sub: (Compiler.arithmetic, _BINARY),
    exp.Mul: (Compiler.arithmetic, _BINARY),
    exp.Div: (_binary(numbers.quotient), ("this", "expression", "typed", "safe")),
    exp.IntDiv: (_binary(numbers.whole_quotient), _BINARY),
    exp.Mod: (_binary(numbers.remainder), _BINARY),
    exp.Neg: (Compiler.negative, ("this",)),
    exp.Floor: (lambda c, node: numbers.floor(c.term(node.this)), ("this",)),
    exp.Ceil: (lambda c, node: numbers.ceiling(c.term(node.this)), ("this",)),
    exp.Cast: _CAST,
    exp.TryCast: _CAST,
    exp.DPipe: (_binary(strings.concat), (*_BINARY, "safe")),
    exp.Trim: (_trim, ("this", "position", "expression")),
    exp.Substring: (_substring, ("this", "start", "length")),
    exp.StrPosition: (
        lambda c, node: strings.position(c.term(node.this), c.term(node.args["substr"])),
        ("this", "substr"),
    ),
    exp.Bracket: (_item, ("this", "expressions")),
    exp.TimestampTrunc: (
        lambda c, node: moments.truncate(node.args["unit"].name, c.term(node.this)),
        ("this", "unit"),
    ),
    exp.Anonymous: (Compiler.call, ("this", "expressions")),
}
"""Every piece of syntax with an Arrow form, and the options of it that are understood."""
