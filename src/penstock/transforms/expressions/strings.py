"""String functions, by code point and by byte as Spark counts them; what is looked for in a string; digests as
hexadecimal text.

`upper` and `lower` follow the tables of Unicode 16, which Spark takes from ICU; Python's may be older. The full
mappings are meant, as in Python: one letter may become several, and a sigma that ends a word is another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.casts import convert
from penstock.transforms.expressions.nested import elements
from penstock.transforms.expressions.terms import (
    TIMESTAMP,
    Datum,
    Functions,
    NoFormError,
    Term,
    call,
    constant_int,
    constant_text,
    literal,
    require_type,
)

functions = Functions()

_STRING, _INT = pa.string(), pa.int32()
_LAST_OF_ONE_UNIT = 0xFFFF
_MOST_PADDING = 10_000


def text(term: Term, name: str) -> Term:
    """An operand that has to be a string. Numbers and times are written as CAST does."""
    kind = term.type
    written = pa.types.is_integer(kind) or pa.types.is_decimal128(kind) or kind in (pa.date32(), TIMESTAMP)
    if kind not in (_STRING, pa.null()) and not written:
        raise NoFormError(f"{name} of another type than STRING is left to Spark")
    return convert(term, _STRING)


def _of_text(
    *names: str, gives: pa.DataType, by: Callable[..., Datum], constants: tuple[Callable[[Term, str], Any], ...] = ()
) -> None:
    """Registers a function of a string and some constants: `by` gets the strings and the values of the constants."""

    def function(term: Term, *others: Term) -> Term:
        if len(others) != len(constants):
            raise NoFormError(f"{names[0]} of {1 + len(others)} operands is left to Spark")
        values = [read(other, names[0]) for read, other in zip(constants, others, strict=True)]
        return call(gives, lambda texts: by(texts, *values), text(term, names[0]))

    functions.named(*names)(function)


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


_SEARCHES = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}
for _name in _SEARCHES:
    functions.named(_name)(partial(search, _name))


@functions.named("instr")
def position(term: Term, sought: Term) -> Term:
    """`instr`: the place of a constant, counted in code points from 1; 0 where it is not."""
    wanted = constant_text(sought, "instr")
    return call(_INT, lambda datum: _find(datum, wanted), text(term, "instr"))


@functions.named("locate")
def _locate(sought: Term, term: Term) -> Term:
    return position(term, sought)


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
        return pc.cast(pc.add(pc.find_substring(texts, pattern=wanted), 1), _INT)
    places = [None if value is None else value.find(wanted) + 1 for value in texts.to_pylist()]
    return pa.array(places, _INT)


_NEWER = {
    **{0x019B: 0xA7DC, 0x0264: 0xA7CB, 0x1C8A: 0x1C89, 0xA7CD: 0xA7CC, 0xA7DB: 0xA7DA},
    **{small: small - 0x20 for small in range(0x10D70, 0x10D86)},
}
"""Small letters that have had a capital since Unicode 15 or 16, and that capital. A test compares all of Unicode."""

_SMALLS = {capital: small for small, capital in _NEWER.items()}


def _mapped(texts: Datum, plain: Callable[..., Datum], odd: Callable[[str], str]) -> Datum:
    beyond = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    mapped = plain(texts)
    if not pc.any(beyond, min_count=0).as_py():
        return mapped
    return pc.replace_with_mask(mapped, beyond, pa.array(map(odd, texts.filter(beyond).to_pylist()), _STRING))


def _upper(texts: Datum) -> Datum:
    return _mapped(texts, pc.ascii_upper, lambda value: value.translate(_NEWER).upper())


def _lower(texts: Datum) -> Datum:
    return _mapped(texts, pc.ascii_lower, lambda value: value.translate(_SMALLS).lower())


def _slice(texts: Datum, place: int, size: int | None) -> Datum:
    """From a place, counted from 1 (0 means 1 too) or from the end, at most `size` code points."""
    if size is not None and size <= 0:
        return pc.if_else(pc.is_valid(texts), "", pa.scalar(None, _STRING))
    if place < 0:
        begin, end = place, None if size is None or place + size >= 0 else place + size
    else:
        begin = max(place - 1, 0)
        end = None if size is None else begin + size
    return pc.utf8_slice_codeunits(texts, start=begin, stop=end)


def _right(texts: Datum, size: int) -> Datum:
    return _slice(texts, -size, None) if size > 0 else _slice(texts, 1, 0)


_of_text("upper", "ucase", gives=_STRING, by=_upper)
_of_text("lower", "lcase", gives=_STRING, by=_lower)
_of_text("left", gives=_STRING, by=lambda texts, size: _slice(texts, 1, size), constants=(constant_int,))
_of_text("right", gives=_STRING, by=_right, constants=(constant_int,))
_of_text(
    "repeat", gives=_STRING, by=lambda texts, times: pc.binary_repeat(texts, max(times, 0)), constants=(constant_int,)
)


@functions.named("reverse")
def _reverse(term: Term) -> Term:
    return call(_STRING, pc.utf8_reverse, require_type(term, "reverse", _STRING))


@functions.named("length", "char_length", "character_length", "len")
def _length(term: Term) -> Term:
    """Code points of a string, bytes of a binary."""
    return _byte_length(term) if term.type == pa.binary() else call(_INT, pc.utf8_length, text(term, "length"))


@functions.named("octet_length")
def _byte_length(term: Term) -> Term:
    return call(_INT, pc.binary_length, term if term.type == pa.binary() else text(term, "octet_length"))


def _digest(make: Callable[[bytes], Any], term: Term) -> Term:
    data = term if term.type == pa.binary() else convert(text(term, "a digest"), pa.binary())

    def run(values: Datum) -> Datum:
        texts = [None if value is None else make(value).hexdigest() for value in values.to_pylist()]
        return pa.array(texts, _STRING)

    return call(_STRING, run, data)


functions.named("md5")(partial(_digest, partial(hashlib.md5, usedforsecurity=False)))
functions.named("sha", "sha1")(partial(_digest, partial(hashlib.sha1, usedforsecurity=False)))
_SHA2: dict[int, Callable[[bytes], Any]] = {
    0: hashlib.sha256,
    224: hashlib.sha224,
    256: hashlib.sha256,
    384: hashlib.sha384,
    512: hashlib.sha512,
}


@functions.named("sha2")
def _sha2(term: Term, size: Term) -> Term:
    """224 to 512 bits; 0 means 256."""
    bits = constant_int(size, "sha2")
    if bits not in _SHA2:
        raise NoFormError(f"sha2 of {bits} bits is left to Spark")
    return _digest(_SHA2[bits], term)


@functions.named("concat")
def concat(*terms: Term) -> Term:
    """The strings one after another, NULL where one is. Spark evaluates all of them."""
    texts = [text(term, "concat") for term in terms]
    return call(_STRING, lambda *data: pc.binary_join_element_wise(*data, ""), *texts, strict=False)


@functions.named("concat_ws")
def _concat_ws(separator: Term, *terms: Term) -> Term:
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


_TRIMS = {"": pc.utf8_trim, "BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}


def trim(term: Term, side: str, characters: Term | None = None) -> Term:
    """Without some characters at an end or both; by default U+0020 and no other white space."""
    if side not in _TRIMS:
        raise NoFormError(f"trim {side} is left to Spark")
    function, taken = _TRIMS[side], " " if characters is None else constant_text(characters, "trim")
    return call(_STRING, lambda datum: function(datum, characters=taken), text(term, "trim"))


@functions.named("btrim")
def _trim_both(term: Term, characters: Term | None = None) -> Term:
    return trim(term, "", characters)


def substring(term: Term, start: Term, size: Term | None) -> Term:
    """From a constant place, at most `size` code points."""
    place = constant_int(start, "substring")
    wanted = None if size is None else constant_int(size, "substring")
    return call(_STRING, lambda texts: _slice(texts, place, wanted), text(term, "substring"))


def _pad(at_left: bool, term: Term, width: Term, filling: Term | None = None) -> Term:
    """Exactly `width` code points, unless there is nothing to fill up with."""
    count = max(constant_int(width, "pad"), 0)
    fill = " " if filling is None else constant_text(filling, "pad")
    if count > _MOST_PADDING:
        raise NoFormError(f"padding to more than {_MOST_PADDING} characters is left to Spark")
    repeated = (fill * count)[:count]
    paddings = pa.array([repeated[:size] for size in range(count + 1)], _STRING)

    def run(datum: Datum) -> Datum:
        cut = pc.utf8_slice_codeunits(datum, start=0, stop=count)
        missing = pc.subtract(pa.scalar(count, _INT), pc.utf8_length(cut))
        padding = paddings.take(missing)
        return pc.binary_join_element_wise(*((padding, cut) if at_left else (cut, padding)), "")

    return call(_STRING, run, text(term, "pad"))


functions.named("lpad")(partial(_pad, True))
functions.named("rpad")(partial(_pad, False))


@functions.named("replace")
def _replace(term: Term, search: Term, replacement: Term | None = None) -> Term:
    """One constant replaced by another, everywhere."""
    sought = constant_text(search, "replace")
    new = "" if replacement is None else constant_text(replacement, "replace")
    subject = text(term, "replace")
    if not sought:
        return subject
    return call(_STRING, lambda datum: pc.replace_substring(datum, pattern=sought, replacement=new), subject)


@functions.named("split_part")
def _split_part(term: Term, delimiter: Term, number: Term) -> Term:
    """A part between delimiters, counted from 1 or from the end; the empty string where there are fewer."""
    between, place = constant_text(delimiter, "split_part"), constant_int(number, "split_part")
    if not between or not place:
        raise NoFormError("split_part by nothing, or of part 0, is left to Spark")

    def run(datum: Datum) -> Datum:
        parts = pc.split_pattern(datum, pattern=between)
        found = elements(parts, pa.scalar(place - 1 if place > 0 else place, _INT))
        return pc.if_else(pc.is_valid(datum), pc.fill_null(found, ""), pa.scalar(None, _STRING))

    return call(_STRING, run, text(term, "split_part"))
