"""Syntax to typed terms: the pieces that need more than their operands, and the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.transforms.expressions import arithmetic, choice, comparison, laziness, moments, nested
from penstock.transforms.expressions.conversion import common_type, convert
from penstock.transforms.expressions.functions import function
from penstock.transforms.expressions.literals import cast_target, number
from penstock.transforms.expressions.parsing import invalid, name_parts
from penstock.transforms.expressions.terms import NoFormError, Term, call, is_plain, literal, sql_name

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
            return number("-" + node.this.name)
        return arithmetic.negative(self.term(node.this))

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
        return choice.choose(cases, self.term(default) if default else literal(None, pa.null()))

    def condition(self, node: exp.Expr) -> Term:
        """IF and nvl2: two values, chosen by a condition."""
        if not node.args.get("false"):
            raise NoFormError("if takes three values")
        test = self.term(node.this)
        if isinstance(node, exp.Nvl2):
            test = call(pa.bool_(), pc.invert, comparison.is_null(test))
        return choice.choose([(test, self.term(node.args["true"]))], self.term(node.args["false"]))

    def null_if(self, node: exp.Expr) -> Term:
        """`nullif(a, b)`: always of the type of `a`."""
        left, right = self.term(node.this), self.term(node.expression)
        check_safe("nullif", left, right)
        return choice.choose([(comparison.compare("=", left, right), literal(None, left.type))], left)

    def test(self, node: exp.Expr) -> Term:
        """`IS NULL`, `IS TRUE`, `IS FALSE`."""
        subject, wanted = self.term(node.this), self.term(node.expression)
        if wanted.is_null:
            return comparison.is_null(subject)
        return comparison.compare("<=>", comparison.truth(subject), comparison.truth(wanted))

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
            term = choice.both(term, self.term(other), as_filter=True)
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
