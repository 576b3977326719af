"""Rows replaced where only Spark can: Delta tables that bind their writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.committing import commit, holds, last_commit
from tests.contract.rows import land, prepared, records, stage, token

from penstock.model import COORDINATES, BatchToken, OffsetRange
from penstock.sinks.delta import DeltaSink
from penstock.spark.sql import SparkSql

pytestmark = [pytest.mark.services, pytest.mark.long]
RANGES = (OffsetRange("orders", 0, 1, 3), OffsetRange("orders", 0, 5, 6))
REPLAY = BatchToken("orders.replay-1", "replay", 0, RANGES)
EXPECTED = [(n, "again" if n in (1, 2, 5) else f"note {n}") for n in range(8)]


def replayed(sink: Any) -> None:
    commit(sink, REPLAY, [stage(sink, REPLAY, [records([1, 2, 5], note="again")])])
    assert holds(sink, REPLAY)


@pytest.mark.parametrize("setting", ["delta.enableChangeDataFeed", "delta.constraints.some"])
def test_delta_table_that_asks_more_of_its_writers_is_replaced_by_spark(
    spark: Any, tmp_path: Path, setting: str
) -> None:
    path = str(tmp_path / "table")
    live = prepared(DeltaSink("orders", "out", path))
    land(live, token(0, 0, 4))
    land(live, token(1, 4, 8))
    value = "id >= 0" if "constraints" in setting else "true"
    if "constraints" in setting:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT some CHECK ({value})")
    else:
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{setting}' = '{value}')")
    sink = DeltaSink("orders.replay-1", "out", path).replacing(RANGES)
    assert sink.needs_sql
    assert sink.would_replace() is None
    sink.use(SparkSql(spark))
    replayed(prepared(sink))
    rows = spark.read.format("delta").load(path).select(f"{COORDINATES}.offset", "note").collect()
    assert sorted((row["offset"], row["note"]) for row in rows) == EXPECTED
    again = DeltaSink("orders.replay-1", "out", path).replacing(RANGES)
    assert last_commit(again) == REPLAY
