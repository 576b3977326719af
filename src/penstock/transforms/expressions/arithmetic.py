"""`+ - *`, the negative and the absolute value, which fail where the result does not fit its type.

Arrow's checked functions tell only that some row overflows. They are tried first; where they raise, the rows are
found by computing again with enough digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions import decimals
from penstock.transforms.expressions.conversion import common_type, convert, is_number
from penstock.transforms.expressions.terms import Datum, NoFormError, Outcome, Term, attempt, call, sql_name

_SIGNED_DIGITS = 34
_OVERFLOW = "ARITHMETIC_OVERFLOW"
_PLAIN: Mapping[str, Callable[..., Datum]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_CHECKED: Mapping[str, Callable[..., Datum]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}


def combine(operator: str, left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left operator right` for `+ - *` of numbers."""
    _check_number(left, operator)
    _check_number(right, operator)
    if null_on_error and (left.fails or right.fails):
        raise NoFormError(f"a try of `{operator}` over something that may fail is left to Spark")
    if decimals.applies(left, right):
        return decimals.combine(operator, left, right, null_on_error=null_on_error)
    kind = common_type([left.type, right.type])
    if kind == pa.null():
        raise NoFormError("NULL has no type of its own here")
    left, right = convert(left, kind), convert(right, kind)
    if not pa.types.is_integer(kind):
        return call(kind, _PLAIN[operator], left, right)
    return attempt(kind, lambda a, b: _integers(operator, kind, a, b), left, right, null_on_error=null_on_error)


def chain(operator: str, terms: Sequence[Term]) -> Term:
    """A sum or product of several integers of one type, in the order of Spark's optimizer: constants last, as one."""
    others = [term for term in terms if term.value is None]
    constants = [term for term in terms if term.value is not None]
    if not constants or not others:
        return reduce(lambda a, b: combine(operator, a, b), terms)
    if any(term.is_null for term in constants):
        raise NoFormError("NULL among other operands is left to Spark")
    folded = reduce(lambda a, b: combine(operator, a, b), constants)
    return combine(operator, reduce(lambda a, b: combine(operator, a, b), others), folded)


def negative(term: Term) -> Term:
    """`-term`."""
    _check_number(term, "-")
    if not pa.types.is_integer(term.type):
        _check_digits(term)
        return call(term.type, pc.negate, term)
    return attempt(term.type, lambda datum: _checked(pc.negate_checked, pc.negate, datum, term.type), term)


def absolute(term: Term) -> Term:
    """`abs(term)`."""
    _check_number(term, "abs")
    if not pa.types.is_integer(term.type):
        _check_digits(term)
        return call(term.type, pc.abs, term)
    return attempt(term.type, lambda datum: _checked(pc.abs_checked, pc.abs, datum, term.type), term)


def _integers(operator: str, kind: pa.DataType, left: Datum, right: Datum) -> Outcome:
    try:
        return _CHECKED[operator](left, right), {}
    except pa.ArrowInvalid:
        wide = pa.decimal256(19, 0)
        exact = _PLAIN[operator](pc.cast(left, wide), pc.cast(right, wide))
        limit = 1 << (kind.bit_width - 1)
        low, high = (pa.scalar(bound, exact.type) for bound in (-limit, limit - 1))
        error = _OVERFLOW if kind.bit_width > 16 else f"BINARY_{_OVERFLOW}"
        outside = pc.or_(pc.less(exact, low), pc.greater(exact, high))
        return _PLAIN[operator](left, right), {error: outside}


def _checked(checked: Callable[..., Datum], plain: Callable[..., Datum], datum: Datum, kind: pa.DataType) -> Outcome:
    try:
        return checked(datum), {}
    except pa.ArrowInvalid:
        return plain(datum), {_OVERFLOW: pc.equal(datum, pa.scalar(-(1 << (kind.bit_width - 1)), kind))}


def _check_number(term: Term, operator: str) -> None:
    if not is_number(term.type) and term.type != pa.null():
        raise NoFormError(f"{operator} of a {sql_name(term.type)} is left to Spark")


def _check_digits(term: Term) -> None:
    # Spark changes the sign with Scala's 34 digits, and rounds what has more.
    if pa.types.is_decimal(term.type) and term.type.precision > _SIGNED_DIGITS:
        raise NoFormError(f"the sign of a {sql_name(term.type)} is left to Spark")
