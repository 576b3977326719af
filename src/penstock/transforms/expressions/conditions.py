"""Comparisons, three-valued logic, and what evaluates an operand only for some rows: CASE and its kin.

As Spark has them: NaN equals itself and is above every number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.casts import convert
from penstock.transforms.expressions.terms import (
    TIMESTAMP,
    Datum,
    Functions,
    NoFormError,
    Rows,
    Term,
    call,
    common_type,
    require_type,
    value_type,
)

functions = Functions()

_BOOL = pa.bool_()
# Above this many constants Spark looks a value up in a set that distinguishes 0.0 from -0.0; below it compares.
_SET_FROM = 10


def compare(operator: str, left: Term, right: Term) -> Term:
    """`left operator right` for `=  <>  <  <=  >  >=  <=>`."""
    left, right = _comparable(left, right)
    if operator == "<=>":
        return call(_BOOL, _null_safe_equal(left, right), left, right, strict=False)
    if operator == "=":
        return _equal(left, right)
    if operator == "<>":
        return call(_BOOL, pc.invert, _equal(left, right))
    if operator in ("<", ">="):
        below = _less(left, right)
        return below if operator == "<" else call(_BOOL, pc.invert, below)
    above = _greater(left, right)
    return above if operator == ">" else call(_BOOL, pc.invert, above)


def is_in(value: Term, options: Sequence[Term]) -> Term:
    """`value IN (options)`: unknown where the value, or an option that might have matched, is NULL."""
    kind = value_type([value.type, *(option.type for option in options)])
    value, options = convert(value, kind), [convert(option, kind) for option in options]
    constants = [option.value for option in options if option.value is not None]
    if any(option.fails for option in options):
        raise NoFormError("IN over values that may fail is left to Spark")
    if pa.types.is_floating(kind) and len(constants) >= _SET_FROM:
        raise NoFormError(f"IN over {_SET_FROM} or more floating-point values is left to Spark")
    if len(constants) < len(options) or pa.types.is_floating(kind):
        if value.fails and len(constants) < len(options):
            raise NoFormError("IN of a value that may fail over others than constants is left to Spark")
        found = _equal(value, options[0])
        for option in options[1:]:
            found = call(_BOOL, pc.or_kleene, found, _equal(value, option))
        return found
    known = pa.array([scalar.as_py() for scalar in constants if scalar.is_valid], kind)
    missed = pa.scalar(None if len(known) < len(constants) else False, _BOOL)
    return call(_BOOL, lambda datum: _look_up(datum, known, missed), value)


def truth(term: Term) -> Term:
    """A term used as a condition."""
    if term.type not in (_BOOL, pa.null()):
        raise NoFormError("a condition that is not BOOLEAN is left to Spark")
    return convert(term, _BOOL)


@functions.named("isnull")
def is_null(term: Term) -> Term:
    """`term IS NULL`."""
    return call(_BOOL, pc.is_null, term)


@functions.named("isnotnull")
def is_not_null(term: Term) -> Term:
    """`term IS NOT NULL`."""
    return call(_BOOL, pc.invert, is_null(term))


def is_nan(term: Term) -> Term:
    """`isnan(term)`: false for NULL."""
    floats = require_type(term, "isnan", pa.float32(), pa.float64())
    return call(_BOOL, lambda datum: pc.coalesce(pc.is_nan(datum), pa.scalar(False)), floats)


def _comparable(left: Term, right: Term) -> tuple[Term, Term]:
    moments = (pa.date32(), TIMESTAMP)
    if left.type in moments and right.type == pa.string() and right.value is not None:
        right = convert(right, left.type)
    if right.type in moments and left.type == pa.string() and left.value is not None:
        left = convert(left, right.type)
    kind = common_type([left.type, right.type])
    if kind == pa.null():
        raise NoFormError("NULL is compared with NULL")
    if _is_beyond(left, right) or _is_beyond(right, left):
        raise NoFormError("an integer is compared with a number beyond BIGINT, which Spark answers even for NULL")
    return convert(left, kind), convert(right, kind)


def _is_beyond(integer: Term, limit: Term) -> bool:
    if not pa.types.is_integer(integer.type) or not pa.types.is_decimal(limit.type):
        return False
    return limit.value is not None and limit.value.is_valid and abs(limit.value.as_py()) >= 2**63


def _equal(left: Term, right: Term) -> Term:
    return call(_BOOL, _equality(left, right), left, right)


def _equality(left: Term, right: Term) -> Callable[[Datum, Datum], Datum]:
    return _equal_floats if _may_be_nan(left) and _may_be_nan(right) else pc.equal


def _less(left: Term, right: Term) -> Term:
    return call(_BOOL, _less_floats if _may_be_nan(right) else pc.less, left, right)


def _greater(left: Term, right: Term) -> Term:
    """`left > right`: the operands are evaluated from left to right."""
    return call(_BOOL, _greater_floats if _may_be_nan(left) else pc.greater, left, right)


def _may_be_nan(term: Term) -> bool:
    if not pa.types.is_floating(term.type):
        return False
    return term.value is None or (term.value.is_valid and math.isnan(term.value.as_py()))


def _equal_floats(left: Datum, right: Datum) -> Datum:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(left: Datum, right: Datum) -> Datum:
    return pc.or_(pc.less(left, right), pc.and_not(pc.is_nan(right), pc.is_nan(left)))


def _greater_floats(left: Datum, right: Datum) -> Datum:
    return _less_floats(right, left)


def _null_safe_equal(left: Term, right: Term) -> Callable[[Datum, Datum], Datum]:
    equal = _equality(left, right)
    return lambda a, b: pc.coalesce(equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b)))


def _look_up(datum: Datum, known: pa.Array, missed: pa.Scalar) -> Datum:
    found = pc.if_else(pc.is_in(datum, value_set=known), pa.scalar(True), missed)
    return pc.if_else(pc.is_valid(datum), found, pa.scalar(None, _BOOL))


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
    """The first value that is not NULL; those after it are not evaluated."""
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


def _extreme(greatest: bool, *terms: Term) -> Term:
    """The greatest or least value; NULLs do not take part."""
    if len(terms) < 2:
        raise NoFormError("greatest and least take two values or more")
    kind = value_type([term.type for term in terms])
    less = _less_floats if pa.types.is_floating(kind) else pc.less

    def run(*data: Datum) -> Datum:
        best = data[0]
        for datum in data[1:]:
            better = less(best, datum) if greatest else less(datum, best)
            best = pc.if_else(pc.or_kleene(pc.is_null(best), pc.fill_null(better, False)), datum, best)
        return best

    return call(kind, run, *(convert(term, kind) for term in terms), strict=False)


functions.named("greatest")(partial(_extreme, True))
functions.named("least")(partial(_extreme, False))


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
        raise NoFormError("a constant next to a condition that may fail is left to Spark")
