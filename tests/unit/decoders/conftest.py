from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.model import RAW_SCHEMA

RawBatch = Callable[[Sequence[bytes | None]], pa.RecordBatch]


@pytest.fixture(scope="session")
def raw_batch() -> RawBatch:
    """Makes records of one partition, offsets from 1000, each with its own key and header."""

    def make(values: Sequence[bytes | None]) -> pa.RecordBatch:
        rows = [
            {
                "key": b"key-%d\xff" % index,
                "value": value,
                "headers": [{"key": "trace", "value": b"\x00%d" % index}],
                "topic": "orders",
                "partition": 3,
                "offset": 1000 + index,
                "timestamp": datetime(2026, 1, 1, 0, 0, index % 60, tzinfo=UTC),
            }
            for index, value in enumerate(values)
        ]
        return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)

    return make
