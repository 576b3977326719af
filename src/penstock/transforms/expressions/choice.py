"""What evaluates an operand only for some rows: logic, CASE and its kin. And the greatest and the least."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.comparison import less_than, truth
from penstock.transforms.expressions.conversion import common_type, convert
from penstock.transforms.expressions.terms import Datum, NoFormError, Rows, Term, call

_BOOL = pa.bool_()


def both(left: Term, right: Term, *, as_filter: bool = False) -> Term:
    """`left AND right`: the right one is evaluated where the left one is not false; in a filter, where it is true."""
    left, right = truth(left), truth(right)
    if not right.fails:
        return call(_BOOL, pc.and_kleene, left, right, strict=False)
    _check_constants(left, right)

    def run(rows: Rows) -> Datum:
        first = left.run(rows)
        live = first if as_filter else pc.fill_null(first, True)
        return pc.and_kleene(first, right.run(rows.only(live)))

    return Term(_BOOL, run, fails=True)


def either(left: Term, right: Term) -> Term:
    """`left OR right`: the right one is evaluated where the left one is not true."""
    left, right = truth(left), truth(right)
    if not right.fails:
        return call(_BOOL, pc.or_kleene, left, right, strict=False)
    _check_constants(left, right)

    def run(rows: Rows) -> Datum:
        first = left.run(rows)
        return pc.or_kleene(first, right.run(rows.only(pc.invert(pc.fill_null(first, False)))))

    return Term(_BOOL, run, fails=True)


def choose(cases: Sequence[tuple[Term, Term]], otherwise: Term) -> Term:
    """The value of the first condition that is true."""
    kind = common_type([*(value.type for _, value in cases), otherwise.type])
    result = convert(otherwise, kind)
    for condition, value in reversed(cases):
        result = _if(truth(condition), convert(value, kind), result)
    return result


def coalesce(terms: Sequence[Term]) -> Term:
    """The first value that is not NULL; those behind it are not evaluated."""
    kind = common_type([term.type for term in terms])
    terms = [convert(term, kind) for term in terms]
    if not any(term.fails for term in terms[1:]):
        return call(kind, pc.coalesce, *terms, strict=False)

    def run(rows: Rows) -> Datum:
        data = []
        for term in terms:
            data.append(term.run(rows))
            rows = rows.only(pc.is_null(data[-1]))
        return pc.coalesce(*data)

    return Term(kind, run, fails=True)


def extreme(terms: Sequence[Term], *, greatest: bool) -> Term:
    """The greatest or least value; NULLs do not take part."""
    if len(terms) < 2:
        raise NoFormError("greatest and least take two values or more")
    kind = common_type([term.type for term in terms])
    if kind == pa.null():
        raise NoFormError("NULL has no type of its own here")
    less = less_than(kind)

    def run(*data: Datum) -> Datum:
        best = data[0]
        for datum in data[1:]:
            better = less(best, datum) if greatest else less(datum, best)
            best = pc.if_else(pc.or_kleene(pc.is_null(best), pc.fill_null(better, False)), datum, best)
        return best

    return call(kind, run, *(convert(term, kind) for term in terms), strict=False)


def _if(condition: Term, then: Term, otherwise: Term) -> Term:
    if not (then.fails or otherwise.fails):
        return call(then.type, _select, condition, then, otherwise, strict=False)

    def run(rows: Rows) -> Datum:
        test = pc.fill_null(condition.run(rows), False)
        return pc.if_else(test, then.run(rows.only(test)), otherwise.run(rows.only(pc.invert(test))))

    return Term(then.type, run, fails=True)


def _select(condition: Datum, then: Datum, otherwise: Datum) -> Datum:
    return pc.if_else(pc.coalesce(condition, pa.scalar(False)), then, otherwise)


def _check_constants(*terms: Term) -> None:
    if any(term.value is not None for term in terms):
        raise NoFormError("a constant beside a condition that may fail is left to Spark")
