"""What is looked for in a string: prefixes, patterns of LIKE, places."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.strings import constant_text, text
from penstock.transforms.expressions.terms import Datum, NoFormError, Term, call, literal

_STRING = pa.string()
_LAST_OF_ONE_UNIT = 0xFFFF
_SEARCHES = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}


def search(name: str, term: Term, pattern: Term) -> Term:
    """`startswith`, `endswith` or `contains` of a constant."""
    subject = text(term, name)
    wanted = text(pattern, name)
    if wanted.value is None:
        raise NoFormError(f"{name} looks for something that is not a constant")
    if wanted.is_null:
        return literal(None, pa.bool_())
    function, sought = _SEARCHES[name], wanted.value.as_py()
    return call(pa.bool_(), lambda datum: function(datum, pattern=sought), subject)


def position(term: Term, sought: Term) -> Term:
    """`instr`: the place of a constant, counted in code points from 1; 0 where it is not."""
    wanted = constant_text(sought, "instr")
    return call(pa.int32(), lambda datum: _find(datum, wanted), text(term, "instr"))


def like(term: Term, pattern: Term) -> Term:
    """`term LIKE pattern`: `_` is any one character and `%` any number of them, line breaks included."""
    subject = text(term, "LIKE")
    if pattern.type != _STRING or pattern.value is None:
        raise NoFormError("the pattern of LIKE is not a constant")
    wanted = pattern.value.as_py()
    if any(ord(char) > _LAST_OF_ONE_UNIT for char in wanted):
        # Spark quotes the two UTF-16 units of such a character one by one, after which they match nothing.
        raise NoFormError("LIKE with a character beyond U+FFFF is left to Spark")
    core = wanted.strip("%")
    if "_" not in wanted and "%" not in core:
        if wanted == core:
            return call(pa.bool_(), lambda datum: pc.equal(datum, pa.scalar(core)), subject)
        opened, closed = wanted.startswith("%"), wanted.endswith("%")
        name = "contains" if opened and closed else "endswith" if opened else "startswith"
        return search(name, term, literal(core, _STRING))
    # Between \Q and \E all is literal, and a pattern has no backslash: the text was refused if it had one.
    wild = {"_": ".", "%": ".*"}
    regex = r"(?s)\A" + "".join(wild.get(char) or rf"\Q{char}\E" for char in wanted) + r"\z"
    return call(pa.bool_(), lambda datum: pc.match_substring_regex(datum, pattern=regex), subject)


def _find(texts: Datum, wanted: str) -> Datum:
    if pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
        return pc.cast(pc.add(pc.find_substring(texts, pattern=wanted), 1), pa.int32())
    places = [None if value is None else value.find(wanted) + 1 for value in texts.to_pylist()]
    return pa.array(places, pa.int32())
