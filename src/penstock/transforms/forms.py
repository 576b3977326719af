"""Which pieces of Spark SQL have an Arrow form: syntax in, typed terms out.

Nothing here can fail on a row, so branches and conditions may be evaluated on every row: what may overflow,
divide by zero or not parse has no Arrow form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.transforms import calendar, comparison, strings
from penstock.transforms.conversion import common_type, convert
from penstock.transforms.literals import cast_target, number
from penstock.transforms.parsing import invalid, name_parts
from penstock.transforms.terms import Datum, NoFormError, Term, call, is_plain, literal, sql_name


class Compiler:
    """Turns syntax into terms over one schema."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema

    def term(self, node: exp.Expr) -> Term:
        """The term of a piece of syntax. What is not known here, or has options not known here, has no form."""
        known = _FORMS.get(type(node))
        if known is None:
            raise NoFormError(
                f"{node.sql('spark')} has no Arrow form" if len(node.sql()) < 60 else "it has no Arrow form"
            )
        form, options = known
        unknown = [name for name, value in node.args.items() if value and name not in options]
        if unknown:
            raise NoFormError(f"{type(node).__name__.lower()} with {', '.join(unknown)} has no Arrow form")
        return form(self, node)

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
            return Term(kind, lambda rows: rows.column(index))
        return Term(kind, lambda rows: pc.struct_field(rows.column(index), path))

    def arithmetic(self, node: exp.Expr) -> Term:
        """Floating-point arithmetic, which cannot fail. Other arithmetic may overflow, which Spark reports."""
        left, right = self.term(node.this), self.term(node.expression)
        if isinstance(node, exp.Div):
            return self._quotient(left, right)
        kind = common_type([left.type, right.type])
        if not pa.types.is_floating(kind):
            raise NoFormError(f"arithmetic on {sql_name(kind)} may overflow, which Spark answers with an error")
        return call(kind, _ARITHMETIC[type(node)], convert(left, kind), convert(right, kind))

    def negative(self, node: exp.Expr) -> Term:
        """A negative number, or the negative of a floating-point value."""
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number("-" + node.this.name)
        operand = self.term(node.this)
        if not pa.types.is_floating(operand.type):
            raise NoFormError(
                f"the negative of a {sql_name(operand.type)} may overflow, which Spark answers with an error"
            )
        return call(operand.type, pc.negate, operand)

    def cases(self, node: exp.Expr) -> Term:
        """CASE in both shapes."""
        subject = self.term(node.this) if node.this else None
        cases = []
        for branch in node.args["ifs"]:
            condition = self.term(branch.this)
            if subject is not None:
                condition = comparison.compare("=", subject, condition)
            if condition.type == pa.null():
                raise NoFormError("WHEN NULL is left to Spark")
            cases.append((condition, self.term(branch.args["true"])))
        default = node.args.get("default")
        return comparison.choose(cases, self.term(default) if default else literal(None, pa.null()))

    def condition(self, node: exp.Expr) -> Term:
        """IF and nvl2: two values, chosen by a condition."""
        if not node.args.get("false"):
            raise NoFormError("if takes three values")
        test = self.term(node.this)
        if isinstance(node, exp.Nvl2):
            test = call(pa.bool_(), pc.invert, comparison.is_null(test))
        return comparison.choose([(test, self.term(node.args["true"]))], self.term(node.args["false"]))

    def null_if(self, node: exp.Expr) -> Term:
        """`nullif(a, b)`: always of the type of `a`."""
        left, right = self.term(node.this), self.term(node.expression)
        return comparison.choose([(comparison.compare("=", left, right), literal(None, left.type))], left)

    def test(self, node: exp.Expr) -> Term:
        """`IS NULL`, `IS TRUE`, `IS FALSE`."""
        subject, wanted = self.term(node.this), self.term(node.expression)
        if wanted.is_null:
            return comparison.is_null(subject)
        return comparison.compare("<=>", comparison.truth(subject), comparison.truth(wanted))

    def function(self, node: exp.Expr) -> Term:
        """Functions that the parser knows by name only."""
        arguments = node.expressions
        name = node.name.lower()
        if len(arguments) != 1 or name not in ("isnull", "isnotnull", "weekday"):
            raise NoFormError(f"{name} has no Arrow form")
        if name == "weekday":
            return calendar.part(name, self.term(arguments[0]))
        null = comparison.is_null(self.term(arguments[0]))
        return null if name == "isnull" else call(pa.bool_(), pc.invert, null)

    def _quotient(self, left: Term, right: Term) -> Term:
        decimals = [pa.types.is_decimal(term.type) for term in (left, right)]
        floats = [pa.types.is_floating(term.type) for term in (left, right)]
        if any(decimals) and not any(floats):
            raise NoFormError("division of decimals is left to Spark")
        if right.value is None or right.is_null or not right.value.as_py():
            raise NoFormError("it may divide by zero, which Spark answers with an error")
        common_type([left.type, right.type])
        double = pa.float64()
        return call(double, pc.divide, convert(left, double), convert(right, double))

    def _position(self, name: str, names: list[str]) -> int:
        found = [index for index, known in enumerate(names) if known.lower() == name.lower()]
        if not found:
            raise invalid(self._text, f'field "{name}" is not there', hint=f"fields: {', '.join(names)}")
        if len(found) > 1:
            raise NoFormError(f"`{name}` names several columns")
        return found[0]


Form = Callable[[Compiler, Any], Term]


def _logic(function: Callable[..., Datum]) -> Form:
    return lambda c, node: call(
        pa.bool_(), function, comparison.truth(c.term(node.this)), comparison.truth(c.term(node.expression))
    )


def _compare(operator: str) -> Form:
    return lambda c, node: comparison.compare(operator, c.term(node.this), c.term(node.expression))


def _search(name: str) -> Form:
    return lambda c, node: strings.search(name, c.term(node.this), c.term(node.expression))


def _part(name: str) -> Form:
    return lambda c, node: calendar.part(name, c.term(node.this))


def _not(term: Term) -> Term:
    return call(pa.bool_(), pc.invert, comparison.truth(term))


def _like(c: Compiler, node: Any) -> Term:
    found = strings.like(c.term(node.this), c.term(node.expression))
    return _not(found) if node.args.get("negate") else found


def _between(c: Compiler, node: Any) -> Term:
    subject = c.term(node.this)
    low = comparison.compare(">=", subject, c.term(node.args["low"]))
    return call(pa.bool_(), pc.and_kleene, low, comparison.compare("<=", subject, c.term(node.args["high"])))


def _number_or_text(c: Compiler, node: Any) -> Term:
    return literal(node.name, pa.string()) if node.is_string else number(node.name)


def _substring(c: Compiler, node: Any) -> Term:
    size = node.args.get("length")
    return strings.substring(c.term(node.this), c.term(node.args["start"]), c.term(size) if size else None)


_ARITHMETIC: Mapping[type[exp.Expr], Callable[..., Datum]] = {
    exp.Add: pc.add,
    exp.Sub: pc.subtract,
    exp.Mul: pc.multiply,
}
_BINARY = ("this", "expression")
_CAST: tuple[Form, tuple[str, ...]] = (
    lambda c, node: convert(c.term(node.this), cast_target(node.args["to"])),
    ("this", "to", "safe"),
)
_FORMS: Mapping[type[exp.Expr], tuple[Form, tuple[str, ...]]] = {
    exp.Column: (Compiler.column, ("this", "table", "db", "catalog")),
    exp.Dot: (Compiler.column, _BINARY),
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
    exp.And: (_logic(pc.and_kleene), _BINARY),
    exp.Or: (_logic(pc.or_kleene), _BINARY),
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
        lambda c, node: comparison.coalesce([c.term(node.this), *map(c.term, node.expressions)]),
        ("this", "expressions"),
    ),
    exp.Add: (Compiler.arithmetic, _BINARY),
    exp.Sub: (Compiler.arithmetic, _BINARY),
    exp.Mul: (Compiler.arithmetic, _BINARY),
    exp.Div: (Compiler.arithmetic, ("this", "expression", "typed", "safe")),
    exp.Neg: (Compiler.negative, ("this",)),
    exp.Cast: _CAST,
    exp.TryCast: _CAST,
    exp.Length: (lambda c, node: strings.length(c.term(node.this)), ("this",)),
    exp.Concat: (lambda c, node: strings.concat(*map(c.term, node.expressions)), ("expressions", "safe")),
    exp.DPipe: (lambda c, node: strings.concat(c.term(node.this), c.term(node.expression)), (*_BINARY, "safe")),
    exp.Trim: (lambda c, node: strings.trim(c.term(node.this), node.args.get("position") or ""), ("this", "position")),
    exp.Substring: (_substring, ("this", "start", "length")),
    exp.StartsWith: (_search("startswith"), _BINARY),
    exp.EndsWith: (_search("endswith"), _BINARY),
    exp.Contains: (_search("contains"), _BINARY),
    exp.TsOrDsToDate: (lambda c, node: calendar.to_date(c.term(node.this)), ("this", "safe")),
    exp.Year: (_part("year"), ("this",)),
    exp.Quarter: (_part("quarter"), ("this",)),
    exp.Month: (_part("month"), ("this",)),
    exp.WeekOfYear: (_part("weekofyear"), ("this",)),
    exp.Day: (_part("day"), ("this",)),
    exp.DayOfMonth: (_part("day"), ("this",)),
    exp.DayOfYear: (_part("dayofyear"), ("this",)),
    exp.DayOfWeek: (_part("dayofweek"), ("this",)),
    exp.Hour: (_part("hour"), ("this",)),
    exp.Minute: (_part("minute"), ("this",)),
    exp.Second: (_part("second"), ("this",)),
    exp.TimestampTrunc: (
        lambda c, node: calendar.truncate(node.args["unit"].name, c.term(node.this)),
        ("this", "unit"),
    ),
    exp.Anonymous: (Compiler.function, ("this", "expressions")),
}
"""Every piece of syntax with an Arrow form, and the options of it that are understood."""
