"""How quarantined records stand, by what redrives and drops have marked: a frame of records enters, and leaves with
the columns of `STATE_COLUMNS`."""

from __future__ import annotations

from enum import Enum

import polars as pl

from penstock.quarantine.records import IDENTITY, REFUSED_BY


class Outcome(Enum):
    """What a mark says."""

    REDRIVEN = "redriven"
    FAILED = "failed"
    DROPPED = "dropped"
    UNDROPPED = "undropped"
    RETURNED = "returned"
    """It was redriven, and the sinks named by `wanted_by` have no row of it any more."""


class State(Enum):
    """How a record stands."""

    WAITING = "waiting"
    FAILED = "failed"
    PARKED = "parked"
    REDRIVEN = "redriven"
    DROPPED = "dropped"


STATE_COLUMNS = ("state", "failures", "run", "wanted_by", "last_stage", "last_code")
"""`run` is the one that redrove it; `wanted_by` names the sinks that have no row of it, null for all of them; where it
failed in a redrive, the last stage and code are those of the last one."""


def with_states(records: pl.DataFrame, marks: pl.DataFrame, max_redrives: int) -> pl.DataFrame:
    """The records with how they stand now.

    A record that was redriven stays so until that is taken back. Of dropping and taking that back the last counts. One
    that failed in a redrive, or was taken back, is wanted by those sinks alone that had no row of it then.
    """
    outcome, failed = pl.col("outcome"), pl.col("outcome") == Outcome.FAILED.value
    drops = outcome.filter(outcome.is_in([Outcome.DROPPED.value, Outcome.UNDROPPED.value]))
    brought = outcome.is_in([Outcome.REDRIVEN.value, Outcome.RETURNED.value])
    missing = outcome.is_in([Outcome.FAILED.value, Outcome.RETURNED.value])
    by_record = (
        marks.sort("marked_at", maintain_order=True)
        .group_by(IDENTITY, maintain_order=True)
        .agg(
            failures=failed.sum().cast(pl.Int64),
            run=pl.col("run").filter(outcome == Outcome.REDRIVEN.value).last(),
            redriven=outcome.filter(brought).last() == Outcome.REDRIVEN.value,
            dropped=drops.last() == Outcome.DROPPED.value,
            missed=missing.any(),
            left=pl.col("wanted_by").filter(missing).last(),
            failed_stage=pl.col("stage").filter(failed).last(),
            failed_code=pl.col("code").filter(failed).last(),
        )
    )
    failures = pl.col("failures").fill_null(0)
    state = (
        pl.when(pl.col("redriven"))
        .then(pl.lit(State.REDRIVEN.value))
        .when(pl.col("dropped"))
        .then(pl.lit(State.DROPPED.value))
        .when(failures >= max_redrives)
        .then(pl.lit(State.PARKED.value))
        .when(failures > 0)
        .then(pl.lit(State.FAILED.value))
        .otherwise(pl.lit(State.WAITING.value))
    )
    again = failures > 0
    joined = records.join(by_record, on=IDENTITY, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        state=state,
        failures=failures,
        wanted_by=pl.when("missed").then("left").otherwise(REFUSED_BY),
        last_stage=pl.when(again).then("failed_stage").otherwise("stage"),
        last_code=pl.when(again).then("failed_code").otherwise("code"),
    ).drop("redriven", "dropped", "missed", "left", "failed_stage", "failed_code")
