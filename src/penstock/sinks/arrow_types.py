"""Which Arrow types are text, bytes and lists, however Arrow lays their values out."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as types


def is_text(kind: pa.DataType) -> bool:
    """Whether the values are text."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the values are bytes."""
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def is_listed(kind: pa.DataType) -> bool:
    """Whether the values are lists."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
