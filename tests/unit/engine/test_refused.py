"""Refused rows keep their bytes, or are kept by their coordinates where the topic has lost these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.engine.slots import Collected, decoded_numbers, refusing

from penstock.engine.direct import run_slot
from penstock.engine.refused import BYTES_GONE, refused_records
from penstock.model import RAW_SCHEMA, OffsetRange, Refusal

RANGE = OffsetRange("orders", 0, 0, 4)


def raw(*offsets: int) -> pa.RecordBatch:
    rows = [
        {
            "topic": "orders",
            "partition": 0,
            "offset": o,
            "value": b"%d" % o,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        }
        for o in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)


class ReadOnce:
    """A topic whose records are gone once they were read, or of which only some are left then."""

    def __init__(self, first: Sequence[pa.RecordBatch], left: Sequence[pa.RecordBatch] = ()) -> None:
        self._answers = iter([first, left])

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        yield from next(self._answers)


def refusal(offset: int, by: str = "") -> Refusal:
    return Refusal(OffsetRange("orders", 0, offset, offset + 1), "STEP_FAILED", "no number", "transform", by)


def test_refused_record_that_the_topic_no_longer_has_is_kept_by_its_coordinates() -> None:
    reader = ReadOnce([raw(1, 3)])
    found = [row for bad in refused_records(reader, [refusal(1), refusal(2, "pg")]) for row in bad.to_pylist()]
    assert [(row["offset"], row["code"], row["value"]) for row in found] == [
        (1, "STEP_FAILED", b"1"),
        (2, BYTES_GONE, None),
    ]
    assert found[1]["message"].startswith("STEP_FAILED: no number")
    assert (found[1]["topic"], found[1]["partition"], found[1]["refused_by"]) == ("orders", 0, "pg")


def test_record_refused_by_several_sinks_is_one_bad_record_that_names_them() -> None:
    (bad,) = refused_records(ReadOnce([raw(1)]), [refusal(1, "a"), refusal(1, "b")])
    assert bad.column("refused_by").to_pylist() == ["a,b"]


@pytest.mark.parametrize("by_sink", [False, True])
def test_slot_of_the_direct_lane_quarantines_refused_rows_without_a_second_look_at_the_topic(by_sink: bool) -> None:
    reader: Any = ReadOnce([raw(0, 1), raw(2, 3)])
    out, quarantine = Collected("out", refuses=refusing(2) if by_sink else None), Collected("quarantine")
    work = decoded_numbers(reader, out, quarantine, step=None if by_sink else refusing(2))
    report = run_slot(work, 0, [RANGE])
    assert [(row["offset"], row["value"]) for row in quarantine.rows] == [(2, b"2")]
    assert [row["n"] for row in out.rows] == [0, 1, 3]
    assert (report.rows_in, report.rows_out, report.quarantined) == (4, 3, 1)
