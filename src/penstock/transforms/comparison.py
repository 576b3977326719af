"""Comparisons and three-valued logic as Spark has them: NaN equals itself and is above every number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.conversion import common_type, convert
from penstock.transforms.terms import TIMESTAMP, Datum, NoFormError, Term, call

_BOOL = pa.bool_()
# Above this many constants Spark looks a value up in a set that tells 0.0 from -0.0; below it compares.
_SET_FROM = 10


def compare(operator: str, left: Term, right: Term) -> Term:
    """`left operator right` for `=  <>  <  <=  >  >=  <=>`."""
    left, right = _comparable(left, right)
    if operator in (">", ">="):
        left, right, operator = right, left, operator.replace(">", "<")
    if operator == "<=>":
        return call(_BOOL, _null_safe_equal, _equal(left, right), left, right)
    if operator == "=":
        return _equal(left, right)
    if operator == "<>":
        return call(_BOOL, pc.invert, _equal(left, right))
    if operator == "<":
        return _less(left, right)
    return call(_BOOL, pc.invert, _less(right, left))


def is_in(value: Term, options: Sequence[Term]) -> Term:
    """`value IN (options)`: unknown where the value, or an option that might have matched, is NULL."""
    kind = common_type([value.type, *(option.type for option in options)])
    if kind == pa.null():
        raise NoFormError("NULL has no type of its own here")
    value, options = convert(value, kind), [convert(option, kind) for option in options]
    constants = [option.value for option in options if option.value is not None]
    if pa.types.is_floating(kind) and len(constants) >= _SET_FROM:
        raise NoFormError(f"IN over {_SET_FROM} or more floating-point values is left to Spark")
    if len(constants) < len(options) or pa.types.is_floating(kind):
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


def is_null(term: Term) -> Term:
    """`term IS NULL`."""
    return call(_BOOL, pc.is_null, term)


def is_nan(term: Term) -> Term:
    """`isnan(term)`: false for NULL."""
    if not pa.types.is_floating(term.type):
        raise NoFormError("isnan of another type than FLOAT or DOUBLE is left to Spark")
    return call(_BOOL, lambda datum: pc.coalesce(pc.is_nan(datum), pa.scalar(False)), term)


def choose(cases: Sequence[tuple[Term, Term]], otherwise: Term) -> Term:
    """The value of the first condition that is true."""
    kind = common_type([*(value.type for _, value in cases), otherwise.type])
    result = convert(otherwise, kind)
    for condition, value in reversed(cases):
        result = call(kind, _if, truth(condition), convert(value, kind), result)
    return result


def coalesce(terms: Sequence[Term]) -> Term:
    """The first value that is not NULL."""
    kind = common_type([term.type for term in terms])
    return call(kind, pc.coalesce, *(convert(term, kind) for term in terms))


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
    if _may_be_nan(left) and _may_be_nan(right):
        return call(_BOOL, _equal_floats, left, right)
    return call(_BOOL, pc.equal, left, right)


def _less(left: Term, right: Term) -> Term:
    if _may_be_nan(right):
        return call(_BOOL, _less_floats, left, right)
    return call(_BOOL, pc.less, left, right)


def _may_be_nan(term: Term) -> bool:
    if not pa.types.is_floating(term.type):
        return False
    return term.value is None or (term.value.is_valid and math.isnan(term.value.as_py()))


def _equal_floats(left: Datum, right: Datum) -> Datum:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(left: Datum, right: Datum) -> Datum:
    return pc.or_(pc.less(left, right), pc.and_not(pc.is_nan(right), pc.is_nan(left)))


def _null_safe_equal(equal: Datum, left: Datum, right: Datum) -> Datum:
    return pc.coalesce(equal, pc.and_(pc.is_null(left), pc.is_null(right)))


def _look_up(datum: Datum, known: pa.Array, missed: pa.Scalar) -> Datum:
    found = pc.if_else(pc.is_in(datum, value_set=known), pa.scalar(True), missed)
    return pc.if_else(pc.is_valid(datum), found, pa.scalar(None, _BOOL))


def _if(condition: Datum, then: Datum, otherwise: Datum) -> Datum:
    return pc.if_else(pc.coalesce(condition, pa.scalar(False)), then, otherwise)
