"""Digests as hexadecimal text: md5, sha1 and sha2."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.transforms.expressions.conversion import convert
from penstock.transforms.expressions.strings import constant_int, text
from penstock.transforms.expressions.terms import Datum, NoFormError, Term, call

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
