"""What a redrive would give, tried in this process: the records are decoded and transformed, and nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import polars as pl
import pyarrow as pa

from penstock.model import COORDINATES, RAW_SCHEMA
from penstock.ops.quarantine.place import quarantine_of
from penstock.ops.redrive.redrive import RedrivePlan, bodies_of
from penstock.ops.redrive.ways import narrowed
from penstock.quarantine.records import Place, raw_records

_AT_ONCE = 20_000


@dataclass(frozen=True)
class RedriveTrial:
    """What would become of the records of a plan. A target may still refuse a row at its commit."""

    redriven: int = 0
    failed: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)
    """Why records would fail again."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows each sink would get, without those of records that its target holds."""
    unknown: str | None = None
    """Why it was not tried."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.__dict__}


def try_redrive(plan: RedrivePlan) -> RedriveTrial:
    """Run the records of a plan through the pipeline as it is now. Only Spark can do so for the frame lane."""
    from penstock.assembly.build import build
    from penstock.engine.trial import trial_of

    failed: dict[Place, str] = {}
    rows: Counter[str] = Counter()
    for sinks, records in bodies_of(quarantine_of(plan.config), plan):
        pipeline = build(narrowed(plan.config, sinks))
        if pipeline.lane.lane != "direct":
            return RedriveTrial(unknown=f"only Spark can run this pipeline: {pipeline.lane.reason}")
        trial = trial_of(pipeline, _no_session, preview=True)
        for some in records.sort("topic", "partition", "offset").iter_slices(_AT_ONCE):
            [result] = trial.run([_one_batch(some)])
            bad = result.quarantine.select(["topic", "partition", "offset", "code"]).to_pylist()
            for one in reversed(bad):
                failed[one["topic"], one["partition"], one["offset"]] = one["code"]
            for name, table in result.sinks.items():
                rows[name] += _new_rows(table, plan.held_by(name))
    return RedriveTrial(plan.records - len(failed), len(failed), dict(Counter(failed.values()).most_common()), rows)


def _new_rows(table: pa.Table, held: set[Place]) -> int:
    if not held or COORDINATES not in table.column_names:
        return int(table.num_rows)
    places = table.column(COORDINATES).to_pylist()
    return sum((at["topic"], at["partition"], at["offset"]) not in held for at in places)


def _one_batch(records: pl.DataFrame) -> pa.RecordBatch:
    columns = [column.combine_chunks() for column in raw_records(records).columns]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def _no_session() -> NoReturn:
    raise AssertionError("the direct lane asks for none")
