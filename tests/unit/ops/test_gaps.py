"""Gaps that were written down, read back: of this pipeline, since a time, with a sum; none where none were."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.config import PipelineConfig, load
from penstock.model import BatchToken
from penstock.ops.gaps import find_gaps
from penstock.quarantine import GAPS_SCHEMA, Gap, gap_rows

FILE = """\
name: orders
source: {{type: kafka, brokers: "localhost:9092", topics: [orders], on_data_loss: {mode}}}
decode: {{format: json, schema: "order_id BIGINT NOT NULL"}}
quarantine: {{{quarantine}}}
sinks: [{{name: out, type: delta, path: lake/orders}}]
checkpoint: checkpoints/orders
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., PipelineConfig]:
    def written(mode: str = "record", quarantine: str = "table: lake/bad") -> PipelineConfig:
        (tmp_path / "orders.yaml").write_text(FILE.format(mode=mode, quarantine=quarantine))
        return load(tmp_path / "orders.yaml")

    return written


def record(table: Path, batch_id: int, day: int, *gaps: Gap, pipeline: str = "orders") -> None:
    token = BatchToken(pipeline, "q", batch_id, ())
    rows = gap_rows(token, gaps, datetime(2026, 1, day, 8, tzinfo=UTC))
    write_deltalake(table, pa.Table.from_batches([rows], GAPS_SCHEMA), mode="append")


def test_gaps_recorded_are_listed_oldest_first_with_their_sum(
    tmp_path: Path, pipeline: Callable[..., PipelineConfig]
) -> None:
    table = tmp_path / "lake/bad_gaps"
    record(table, 7, 12, Gap("orders", 1, 50, None, "the partition is gone"))
    record(table, 3, 10, Gap("orders", 0, 10, 25, "retention passed"), Gap("orders", 1, 0, 5, "retention passed"))
    record(table, 1, 11, Gap("orders", 0, 0, 1000, "of another"), pipeline="others")
    found = find_gaps(pipeline())
    assert [(gap.partition, gap.start, gap.end, gap.offsets, gap.batch_id) for gap in found.gaps] == [
        (0, 10, 25, 15, 3),
        (1, 0, 5, 5, 3),
        (1, 50, None, None, 7),
    ]
    assert found.as_json()["total"] == {"gaps": 3, "offsets": 20, "open_ended": 1}
    later = find_gaps(pipeline("fail"), datetime(2026, 1, 11, tzinfo=UTC))
    assert [gap.batch_id for gap in later.gaps] == [7]


@pytest.mark.parametrize("mode", ["fail", "record"])
def test_gaps_never_recorded_are_none_and_no_error(pipeline: Callable[..., PipelineConfig], mode: str) -> None:
    found = find_gaps(pipeline(mode))
    assert (found.recorded, found.gaps, found.on_data_loss) == (False, (), mode)
    assert find_gaps(pipeline("fail", "topic: orders.bad")).table is None
