"""Exact decimals made to fit a DECIMAL type: rounded half up, and where they do not fit."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.terms import Datum, Outcome

OUT_OF_RANGE = "NUMERIC_VALUE_OUT_OF_RANGE"
WIDE_DIGITS = 76


def fit(exact: Datum, kind: pa.DataType) -> Outcome:
    """Values of any precision, rounded half up to `kind`, and where they do not fit it."""
    whole, scale = exact.type.precision - exact.type.scale, exact.type.scale
    if scale > kind.scale:
        roomy = pa.decimal256(min(whole + scale + 1, WIDE_DIGITS), scale)
        exact = pc.round(pc.cast(exact, roomy), ndigits=kind.scale, round_mode="half_towards_infinity")
        whole += 1
    if whole <= kind.precision - kind.scale:
        return pc.cast(exact, kind, safe=False), {}
    bound = pa.scalar(Decimal(10) ** (kind.precision - kind.scale), pa.decimal256(WIDE_DIGITS - scale, 0))
    outside = pc.greater_equal(
        pc.abs(pc.cast(exact, pa.decimal256(WIDE_DIGITS, scale))), pc.cast(bound, pa.decimal256(WIDE_DIGITS, scale))
    )
    within = pc.if_else(pc.fill_null(outside, False), pa.scalar(None, exact.type), exact)
    return pc.cast(within, kind, safe=False), {OUT_OF_RANGE: outside}
