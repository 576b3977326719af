"""`upper` and `lower` by the tables of Unicode 16, which Spark takes from ICU. Python's may be older.

The full mappings are meant, as in Python: one letter may become several, and a sigma that ends a word is another one.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.strings import text
from penstock.transforms.expressions.terms import Datum, Term, call

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
