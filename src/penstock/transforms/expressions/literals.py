"""Constants with the types that Spark gives them: `1` is INT, `3000000000` BIGINT, `1.5` DECIMAL(2,1), `1e3` DOUBLE."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from penstock.transforms.expressions.terms import TIMESTAMP, TIMESTAMP_NTZ, NoFormError, Term, literal

_MAX_DIGITS = 38
_TYPES = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: TIMESTAMP,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def number(text: str) -> Term:
    """A number as it is written, the sign included."""
    if re.fullmatch(r"-?\d+", text):
        whole = int(text)
        for kind in (pa.int32(), pa.int64()):
            if -(1 << (kind.bit_width - 1)) <= whole < 1 << (kind.bit_width - 1):
                return replace(literal(whole, kind), written=True)
        return _decimal(text)
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+)", text):
        return _decimal(text)
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text) and math.isfinite(float(text)):
        return literal(float(text), pa.float64())
    raise NoFormError(f"the number {text} is left to Spark")


def cast_target(node: exp.DataType) -> pa.DataType:
    """The Arrow type of a type in a cast."""
    if node.this == exp.DType.DECIMAL:
        parameters = [int(parameter.name) for parameter in node.expressions]
        precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
        if not 0 <= scale <= precision <= _MAX_DIGITS or precision == 0:
            raise NoFormError(f"{node.sql('spark')} is left to Spark")
        return pa.decimal128(precision, scale)
    if node.this not in _TYPES or node.expressions or node.args.get("collate"):
        raise NoFormError(f"a cast to {node.sql('spark')} is left to Spark")
    return _TYPES[node.this]


def _decimal(text: str) -> Term:
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > _MAX_DIGITS:
        raise NoFormError(f"the number {text} has more than {_MAX_DIGITS} digits")
    return literal(value, pa.decimal128(precision, scale))
