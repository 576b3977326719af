"""Values of one type as another where nothing is lost: what comes back from there is what was there before.

Numbers become numbers of another size, and numbers and text each other; `017` is not 17, and 1.5 no integer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types


def exactly(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """`values` as `kind`, and which of them are exact; null where they are not, and a null is not exact."""
    if values.type == kind:
        return values, np.asarray(values.is_valid())
    if not (_is_plain(values.type) and _is_plain(kind)):
        return pa.nulls(len(values), kind), np.zeros(len(values), bool)
    try:
        cast = _cast(values, kind)
        exact = pc.fill_null(pc.equal(_cast(cast, values.type), values), False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            return pa.nulls(1, kind), np.zeros(1, bool)
        parts = [exactly(values.slice(at, 1), kind) for at in range(len(values))]
        return pa.concat_arrays([part for part, _ in parts]), np.concatenate([exact for _, exact in parts])
    return pc.if_else(exact, cast, None), np.asarray(exact)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_decimal(kind) and types.is_integer(values.type):
        # Arrow asks for room for the largest integer, whatever the values are.
        values = values.cast(pa.decimal128(38, 0))
    return values.cast(kind)


def _is_plain(kind: pa.DataType) -> bool:
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(is_number or types.is_string(kind) or types.is_binary(kind))
