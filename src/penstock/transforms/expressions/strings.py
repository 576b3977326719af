"""String functions, by code point and by byte as Spark counts them; what is looked for in a string; digests as
hexadecimal text.

`upper` and `lower` follow the tables of Unicode 16, which Spark takes from ICU; Python's may be older. The full
mappings are meant, as in Python: one letter may become several, and a sigma that ends a word is another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.conversion import convert
from penstock.transforms.expressions.nested import elements
from penstock.transforms.expressions.terms import TIMESTAMP, Datum, NoFormError, Term, call, literal

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


_NEWER = {
    **{0x019B: 0xA7DC, 0x0264: 0xA7CB, 0x1C8A: 0x1C89, 0xA7CD: 0xA7CC, 0xA7DB: 0xA7DA},
    **{small: small - 0x20 for small in range(0x10D70, 0x10D86)},
}
"""Small letters that have had a capital since Unicode 15 or 16, and that capital. A test compares all of Unicode."""

_CAPITALS = _NEWER
_SMALLS = {capital: small for small, capital in _NEWER.items()}


def upper(term: Term) -> Term:
    """All capitals."""
    return _mapped(term, "upper", pc.ascii_upper, lambda value: value.translate(_CAPITALS).upper())


def lower(term: Term) -> Term:
    """All small letters."""
    return _mapped(term, "lower", pc.ascii_lower, lambda value: value.translate(_SMALLS).lower())


def _mapped(term: Term, name: str, plain: Callable[..., Datum], odd: Callable[[str], str]) -> Term:
    def run(texts: Datum) -> Datum:
        beyond = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
        mapped = plain(texts)
        if not pc.any(beyond, min_count=0).as_py():
            return mapped
        return pc.replace_with_mask(mapped, beyond, pa.array(map(odd, texts.filter(beyond).to_pylist()), pa.string()))

    return call(pa.string(), run, text(term, name))


_SHA2: dict[int, Callable[[bytes], Any]] = {
    0: hashlib.sha256,
    224: hashlib.sha224,
    256: hashlib.sha256,
    384: hashlib.sha384,
    512: hashlib.sha512,
}


def md5(term: Term) -> Term:
    """128 bits."""
    return _digest(term, lambda data: hashlib.md5(data, usedforsecurity=False))


def sha1(term: Term) -> Term:
    """160 bits."""
    return _digest(term, lambda data: hashlib.sha1(data, usedforsecurity=False))


def sha2(term: Term, size: Term) -> Term:
    """224 to 512 bits; 0 means 256."""
    bits = constant_int(size, "sha2")
    if bits not in _SHA2:
        raise NoFormError(f"sha2 of {bits} bits is left to Spark")
    return _digest(term, _SHA2[bits])


def _digest(term: Term, function: Callable[[bytes], Any]) -> Term:
    data = term if term.type == pa.binary() else convert(text(term, "a digest"), pa.binary())

    def run(values: Datum) -> Datum:
        texts = [None if value is None else function(value).hexdigest() for value in values.to_pylist()]
        return pa.array(texts, pa.string())

    return call(pa.string(), run, data)


_MOST_PADDING = 10_000
_TRIMS = {"": pc.utf8_trim, "BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}


def length(term: Term) -> Term:
    """Code points of a string, bytes of a binary."""
    if term.type == pa.binary():
        return call(pa.int32(), pc.binary_length, term)
    return call(pa.int32(), pc.utf8_length, text(term, "length"))


def byte_length(term: Term) -> Term:
    """`octet_length(term)`."""
    if term.type == pa.binary():
        return length(term)
    return call(pa.int32(), pc.binary_length, text(term, "octet_length"))


def concat(*terms: Term) -> Term:
    """The strings one after another, NULL where one is. Spark evaluates all of them."""
    texts = [text(term, "concat") for term in terms]
    return call(_STRING, lambda *data: pc.binary_join_element_wise(*data, ""), *texts, strict=False)


def concat_with(separator: Term, *terms: Term) -> Term:
    """`concat_ws(separator, terms)`: NULLs are left out."""
    texts = [text(term, "concat_ws") for term in terms]
    if not texts:
        raise NoFormError("concat_ws of nothing is left to Spark")

    def run(between: Datum, *data: Datum) -> Datum:
        joined = data[0]
        for datum in data[1:]:
            joined = pc.coalesce(pc.binary_join_element_wise(joined, datum, between), joined, datum)
        return pc.if_else(pc.is_valid(between), pc.fill_null(joined, ""), pa.scalar(None, _STRING))

    return call(_STRING, run, text(separator, "concat_ws"), *texts, strict=False)


def trim(term: Term, side: str, characters: Term | None = None) -> Term:
    """Without some characters at an end or both; by default U+0020 and no other white space."""
    if side not in _TRIMS:
        raise NoFormError(f"trim {side} is left to Spark")
    function, taken = _TRIMS[side], " " if characters is None else constant_text(characters, "trim")
    return call(_STRING, lambda datum: function(datum, characters=taken), text(term, "trim"))


def substring(term: Term, start: Term, size: Term | None) -> Term:
    """From a constant place, counted from 1 (0 means 1 too) or from the end, at most `size` code points."""
    place = constant_int(start, "substring")
    wanted = None if size is None else constant_int(size, "substring")
    return _slice(text(term, "substring"), place, wanted)


def left(term: Term, size: Term) -> Term:
    """The first characters."""
    return _slice(text(term, "left"), 1, constant_int(size, "left"))


def right(term: Term, size: Term) -> Term:
    """The last characters."""
    count = constant_int(size, "right")
    return _slice(text(term, "right"), -count if count > 0 else 1, None if count > 0 else 0)


def pad(term: Term, width: Term, filling: Term | None, *, at_left: bool) -> Term:
    """`lpad` and `rpad`: exactly `width` code points, unless there is nothing to fill up with."""
    count = max(constant_int(width, "pad"), 0)
    fill = " " if filling is None else constant_text(filling, "pad")
    if count > _MOST_PADDING:
        raise NoFormError(f"padding to more than {_MOST_PADDING} characters is left to Spark")
    repeated = (fill * count)[:count]
    paddings = pa.array([repeated[:size] for size in range(count + 1)], _STRING)

    def run(datum: Datum) -> Datum:
        cut = pc.utf8_slice_codeunits(datum, start=0, stop=count)
        missing = pc.subtract(pa.scalar(count, pa.int32()), pc.utf8_length(cut))
        padding = paddings.take(missing)
        return pc.binary_join_element_wise(*((padding, cut) if at_left else (cut, padding)), "")

    return call(_STRING, run, text(term, "pad"))


def replace(term: Term, search: Term, replacement: Term | None) -> Term:
    """Every place where a constant stands, by another."""
    sought = constant_text(search, "replace")
    new = "" if replacement is None else constant_text(replacement, "replace")
    subject = text(term, "replace")
    if not sought:
        return subject
    return call(_STRING, lambda datum: pc.replace_substring(datum, pattern=sought, replacement=new), subject)


def split_part(term: Term, delimiter: Term, number: Term) -> Term:
    """A part between delimiters, counted from 1 or from the end; the empty string where there are fewer."""
    between, place = constant_text(delimiter, "split_part"), constant_int(number, "split_part")
    if not between or not place:
        raise NoFormError("split_part by nothing, or of part 0, is left to Spark")

    def run(datum: Datum) -> Datum:
        parts = pc.split_pattern(datum, pattern=between)
        found = elements(parts, pa.scalar(place - 1 if place > 0 else place, pa.int32()))
        return pc.if_else(pc.is_valid(datum), pc.fill_null(found, ""), pa.scalar(None, _STRING))

    return call(_STRING, run, text(term, "split_part"))


def repeat(term: Term, count: Term) -> Term:
    """The string several times."""
    times = max(constant_int(count, "repeat"), 0)
    return call(_STRING, lambda datum: pc.binary_repeat(datum, times), text(term, "repeat"))


def reverse(term: Term) -> Term:
    """The code points in the opposite order."""
    if term.type != _STRING:
        raise NoFormError("reverse of another type than STRING is left to Spark")
    return call(_STRING, pc.utf8_reverse, term)


def text(term: Term, name: str) -> Term:
    """An operand that has to be a string. Numbers and times are written as CAST does."""
    kind = term.type
    written = pa.types.is_integer(kind) or pa.types.is_decimal128(kind) or kind in (pa.date32(), TIMESTAMP)
    if kind not in (_STRING, pa.null()) and not written:
        raise NoFormError(f"{name} of another type than STRING is left to Spark")
    return convert(term, _STRING)


def constant_text(term: Term, name: str) -> str:
    """An operand that has to be a constant string."""
    value = None if term.value is None else term.value.as_py()
    if term.type != _STRING or not isinstance(value, str):
        raise NoFormError(f"{name} with something that is not a constant is left to Spark")
    return value


def constant_int(term: Term, name: str) -> int:
    """An operand that has to be a constant INT."""
    value = None if term.value is None else term.value.as_py()
    if term.type != pa.int32() or not isinstance(value, int):
        raise NoFormError(f"{name} with a place that is not an INT constant is left to Spark")
    return value


def _slice(term: Term, place: int, size: int | None) -> Term:
    if size is not None and size <= 0:
        return call(_STRING, lambda datum: pc.if_else(pc.is_valid(datum), "", pa.scalar(None, _STRING)), term)
    if place < 0:
        begin, end = place, None if size is None or place + size >= 0 else place + size
    else:
        begin = max(place - 1, 0)
        end = None if size is None else begin + size
    return call(_STRING, lambda datum: pc.utf8_slice_codeunits(datum, start=begin, stop=end), term)
