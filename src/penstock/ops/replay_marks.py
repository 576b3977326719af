"""After a replay into the targets of the pipeline: quarantined records that it brought in need no redrive any more.

Without such a mark a redrive would bring them a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import polars as pl

from penstock.config import PipelineConfig
from penstock.model import BatchToken, OffsetRange
from penstock.ops.quarantine_place import quarantine_of
from penstock.quarantine.marks import MARK_SCHEMA, write_marks
from penstock.quarantine.records import IDENTITY, PLACE
from penstock.quarantine.states import Outcome, State

_OPEN = (State.WAITING.value, State.FAILED.value, State.PARKED.value)


def mark_replayed(
    config: PipelineConfig, replay: str, query_id: str, ranges: Sequence[OffsetRange], sinks: Sequence[str]
) -> int:
    """Mark the records of some ranges as redriven that a replay into these sinks found good; how many they are."""
    if config.quarantine is None or not ranges:
        return 0
    place = quarantine_of(config)
    with place.alone():
        records = place.read().filter(pl.col("state").is_in(_OPEN), _within(ranges), _wanted_by_all(config, sinks))
        bad_again = place.records.rows(list(PLACE), f"{config.name}.{replay}").unique()
        brought = records.join(bad_again, on=PLACE, how="anti", maintain_order="left")
        if not brought.is_empty():
            sink = place.marking("replays")
            sink.prepare(MARK_SCHEMA)
            marks = brought.select(*IDENTITY).with_columns(
                outcome=pl.lit(Outcome.REDRIVEN.value),
                pipeline=pl.lit(config.name),
                run=pl.lit(replay),
                marked_at=pl.lit(datetime.now(UTC)),
            )
            write_marks(sink, BatchToken(f"{config.name}.redrive", query_id, 0, ()), marks)
    return brought.height


def _within(ranges: Sequence[OffsetRange]) -> pl.Expr:
    return pl.any_horizontal(
        (pl.col("topic") == r.topic)
        & (pl.col("partition") == r.partition)
        & pl.col("offset").is_between(r.start, r.end, closed="left")
        for r in ranges
    )


def _wanted_by_all(config: PipelineConfig, sinks: Sequence[str]) -> pl.Expr:
    """The records whose every goal the replay wrote to."""
    if {sink.name for sink in config.sinks} <= set(sinks):
        return pl.lit(True)
    return pl.col("wanted_by").str.split(",").list.set_difference(list(sinks)).list.len().fill_null(1) == 0
