"""Spark's functions that have an Arrow form, by name. The parser leaves these calls as they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions import conditions, moments, nested, numbers, strings, texts
from penstock.transforms.expressions.conditions import extreme
from penstock.transforms.expressions.conversion import convert
from penstock.transforms.expressions.terms import TIMESTAMP, NoFormError, Term, call

Function = Callable[..., Term]


def function(name: str, arguments: list[Term]) -> Term:
    """The term of a function call."""
    counts, form = FUNCTIONS.get(name.lower(), ((), None))
    if form is None or len(arguments) not in counts:
        raise NoFormError(f"{name.lower()} has no Arrow form")
    return form(*arguments)


def _is_not_null(term: Term) -> Term:
    return call(pa.bool_(), pc.invert, conditions.is_null(term))


def _to_date(term: Term) -> Term:
    return convert(term, pa.date32()) if term.type == pa.string() else moments.to_date(term)


def _unix_timestamp(term: Term) -> Term:
    if term.type == pa.date32():
        term = convert(term, TIMESTAMP)
    if term.type != TIMESTAMP:
        raise NoFormError("unix_timestamp of another type than TIMESTAMP is left to Spark")
    # Unlike its kin it rounds towards 1970.
    return call(pa.int64(), lambda times: pc.divide(pc.cast(times, pa.int64()), 1_000_000), term)


def _date_format(term: Term, pattern: Term) -> Term:
    if term.type not in (pa.date32(), TIMESTAMP):
        raise NoFormError("date_format of another type than DATE or TIMESTAMP is left to Spark")
    return call(pa.string(), texts.formatter(strings.constant_text(pattern, "date_format")), convert(term, TIMESTAMP))


def _floor_date(term: Term, unit: Term) -> Term:
    name = strings.constant_text(unit, "trunc").upper()
    if name not in ("YEAR", "YYYY", "YY", "QUARTER", "MONTH", "MON", "MM", "WEEK"):
        raise NoFormError(f"trunc by {name} is left to Spark")
    return moments.truncate_date(name, moments.to_date(term))


def _try(form: Function, *fixed: str) -> Function:
    return lambda *terms: form(*fixed, *terms, null_on_error=True)


def _search(name: str) -> Function:
    return lambda term, sought: strings.search(name, term, sought)


def _part(name: str) -> Function:
    return lambda term: moments.part(name, term)


_ANY = tuple(range(1, 256))
FUNCTIONS: Mapping[str, tuple[tuple[int, ...], Function]] = {
    "isnull": ((1,), conditions.is_null),
    "isnotnull": ((1,), _is_not_null),
    "abs": ((1,), numbers.absolute),
    "negative": ((1,), numbers.negative),
    "round": ((1, 2), lambda term, places=None: numbers.rounded(term, places)),
    "mod": ((2,), numbers.remainder),
    "greatest": (_ANY, lambda *terms: extreme(terms, greatest=True)),
    "least": (_ANY, lambda *terms: extreme(terms, greatest=False)),
    "try_add": ((2,), _try(numbers.combine, "+")),
    "try_subtract": ((2,), _try(numbers.combine, "-")),
    "try_multiply": ((2,), _try(numbers.combine, "*")),
    "try_divide": ((2,), _try(numbers.quotient)),
    "try_mod": ((2,), _try(numbers.remainder)),
    "length": ((1,), strings.length),
    "char_length": ((1,), strings.length),
    "character_length": ((1,), strings.length),
    "len": ((1,), strings.length),
    "octet_length": ((1,), strings.byte_length),
    "concat": (_ANY, strings.concat),
    "concat_ws": (_ANY, strings.concat_with),
    "btrim": ((1, 2), lambda term, taken=None: strings.trim(term, "", taken)),
    "left": ((2,), strings.left),
    "right": ((2,), strings.right),
    "lpad": ((2, 3), lambda term, width, fill=None: strings.pad(term, width, fill, at_left=True)),
    "rpad": ((2, 3), lambda term, width, fill=None: strings.pad(term, width, fill, at_left=False)),
    "replace": ((2, 3), lambda term, sought, new=None: strings.replace(term, sought, new)),
    "split_part": ((3,), strings.split_part),
    "upper": ((1,), strings.upper),
    "ucase": ((1,), strings.upper),
    "lower": ((1,), strings.lower),
    "lcase": ((1,), strings.lower),
    "repeat": ((2,), strings.repeat),
    "reverse": ((1,), strings.reverse),
    "startswith": ((2,), _search("startswith")),
    "endswith": ((2,), _search("endswith")),
    "contains": ((2,), _search("contains")),
    "instr": ((2,), strings.position),
    "locate": ((2,), lambda sought, term: strings.position(term, sought)),
    "md5": ((1,), strings.md5),
    "sha": ((1,), strings.sha1),
    "sha1": ((1,), strings.sha1),
    "sha2": ((2,), strings.sha2),
    "to_date": ((1,), _to_date),
    "to_timestamp": ((1,), lambda term: convert(term, TIMESTAMP)),
    **{name: ((1,), _part(name)) for name in moments.PARTS},
    "dayofmonth": ((1,), _part("day")),
    "date_add": ((2,), moments.add_days),
    "dateadd": ((2,), moments.add_days),
    "date_sub": ((2,), lambda moment, count: moments.add_days(moment, count, sign=-1)),
    "datediff": ((2,), moments.days_between),
    "date_diff": ((2,), moments.days_between),
    "add_months": ((2,), moments.add_months),
    "last_day": ((1,), moments.last_day),
    "trunc": ((2,), _floor_date),
    "date_format": ((2,), _date_format),
    "unix_date": ((1,), moments.unix_date),
    "date_from_unix_date": ((1,), moments.from_unix_date),
    "unix_timestamp": ((1,), _unix_timestamp),
    "unix_seconds": ((1,), lambda term: moments.to_epoch(term, 1)),
    "unix_millis": ((1,), lambda term: moments.to_epoch(term, 1_000)),
    "unix_micros": ((1,), lambda term: moments.to_epoch(term, 1_000_000)),
    "timestamp_seconds": ((1,), lambda term: moments.from_epoch(term, 1)),
    "timestamp_millis": ((1,), lambda term: moments.from_epoch(term, 1_000)),
    "timestamp_micros": ((1,), lambda term: moments.from_epoch(term, 1_000_000)),
    "size": ((1,), nested.size),
    "cardinality": ((1,), nested.size),
    "array_size": ((1,), nested.array_size),
    "element_at": ((2,), nested.element_at),
    "try_element_at": ((2,), _try(nested.element_at)),
}
"""How many arguments each function takes here, and what makes its term."""
