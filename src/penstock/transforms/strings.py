"""String functions, by code point and by byte as Spark counts them.

Case mapping is not here: Java's tables and Arrow's differ (final sigma, dotted I, newer scripts).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.conversion import convert
from penstock.transforms.terms import NoFormError, Term, call, literal

_STRING = pa.string()
_LAST_OF_ONE_UNIT = 0xFFFF
_TRIMS = {"": pc.utf8_trim, "BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}
_SEARCHES = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}


def length(term: Term) -> Term:
    """Code points of a string, bytes of a binary."""
    if term.type == pa.binary():
        return call(pa.int32(), pc.binary_length, term)
    return call(pa.int32(), pc.utf8_length, _text(term, "length"))


def concat(*terms: Term) -> Term:
    """The strings one after another, NULL where one is."""
    texts = [_text(term, "concat") for term in terms]
    return call(_STRING, lambda *data: pc.binary_join_element_wise(*data, ""), *texts)


def trim(term: Term, side: str) -> Term:
    """Without the spaces at an end or both; Spark takes off U+0020 and no other white space."""
    if side not in _TRIMS:
        raise NoFormError(f"trim {side} is left to Spark")
    function = _TRIMS[side]
    return call(_STRING, lambda datum: function(datum, characters=" "), _text(term, "trim"))


def substring(term: Term, start: Term, size: Term | None) -> Term:
    """From a constant place, counted from 1 (0 means 1 too), at most `size` code points."""
    begin = max(_number(start, "substring") - 1, 0)
    if _number(start, "substring") < 0:
        raise NoFormError("substring counted from the end is left to Spark")
    end = None if size is None else begin + max(_number(size, "substring"), 0)
    return call(
        _STRING,
        lambda datum: pc.utf8_slice_codeunits(datum, start=begin, stop=end),
        _text(term, "substring"),
    )


def search(name: str, term: Term, pattern: Term) -> Term:
    """`startswith`, `endswith` or `contains` of a constant."""
    text = _text(term, name)
    wanted = _text(pattern, name)
    if wanted.value is None:
        raise NoFormError(f"{name} looks for something that is not a constant")
    if wanted.is_null:
        return literal(None, pa.bool_())
    function, sought = _SEARCHES[name], wanted.value.as_py()
    return call(pa.bool_(), lambda datum: function(datum, pattern=sought), text)


def like(term: Term, pattern: Term) -> Term:
    """`term LIKE pattern`: `_` is any one character and `%` any number of them, line breaks included."""
    text = _text(term, "LIKE")
    if pattern.type != _STRING or pattern.value is None:
        raise NoFormError("the pattern of LIKE is not a constant")
    wanted = pattern.value.as_py()
    if any(ord(char) > _LAST_OF_ONE_UNIT for char in wanted):
        # Spark quotes the two UTF-16 units of such a character one by one, after which they match nothing.
        raise NoFormError("LIKE with a character beyond U+FFFF is left to Spark")
    core = wanted.strip("%")
    if "_" not in wanted and "%" not in core:
        if wanted == core:
            return call(pa.bool_(), lambda datum: pc.equal(datum, pa.scalar(core)), text)
        opened, closed = wanted.startswith("%"), wanted.endswith("%")
        name = "contains" if opened and closed else "endswith" if opened else "startswith"
        return search(name, term, literal(core, _STRING))
    # Between \Q and \E all is literal, and a pattern has no backslash: the text was refused if it had one.
    wild = {"_": ".", "%": ".*"}
    regex = r"(?s)\A" + "".join(wild.get(char) or rf"\Q{char}\E" for char in wanted) + r"\z"
    return call(pa.bool_(), lambda datum: pc.match_substring_regex(datum, pattern=regex), text)


def _text(term: Term, name: str) -> Term:
    if term.type not in (_STRING, pa.null()):
        raise NoFormError(f"{name} of another type than STRING is left to Spark")
    return convert(term, _STRING)


def _number(term: Term, name: str) -> int:
    value = None if term.value is None else term.value.as_py()
    if term.type != pa.int32() or not isinstance(value, int):
        raise NoFormError(f"{name} with a place that is not an INT constant is left to Spark")
    return value
