"""`quarantine list` and `drop`: count records, and mark records as dropped. Nothing is removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import polars as pl

from penstock.assembly.reaching import settings_of, storage_of
from penstock.config import PipelineConfig
from penstock.errors import DefinitionError, PenstockError
from penstock.kafka import Cluster, Subscription
from penstock.ops.quarantine.place import Selection, quarantine_of
from penstock.ops.redrive.runs import runs_in, unfinished_records
from penstock.quarantine.marks import OPEN_STATES, Outcome, State
from penstock.quarantine.records import IDENTITY, PLACE, REFUSED_BY, SCHEMA_ID, of_pipeline, query_table
from penstock.storage import Storage

BY = ("code", "topic", "partition", "stage", REFUSED_BY, SCHEMA_ID, "state", "run", "pipeline", "hour", "day")
"""What records can be grouped by."""
USUALLY_BY = ("code", "topic", SCHEMA_ID)
_SPANS = (("hour", "1h", 3600), ("day", "1d", 86_400), ("week", "1w", 604_800), ("month", "1mo", 2_629_800))
_MOST_SPANS = 31
_LISTED = ("topic", "partition", "offset", "stage", "code", "message", "timestamp", "quarantined_at", REFUSED_BY)


@dataclass(frozen=True)
class RecordGroup:
    """Records that have something in common."""

    what: Mapping[str, Any]
    count: int
    states: Mapping[str, int]
    first: datetime
    last: datetime


@dataclass(frozen=True)
class Listing:
    """The requested contents of a quarantine."""

    pipeline: str
    target: str
    by: tuple[str, ...]
    groups: tuple[RecordGroup, ...]
    states: Mapping[str, int]
    span: str
    """The duration that each of `times` covers."""
    times: tuple[tuple[datetime, int], ...]
    unfinished: tuple[str, ...]
    """Unfinished redrives."""
    records: tuple[Mapping[str, Any], ...] = ()

    @property
    def total(self) -> int:
        """How many records."""
        return sum(self.states.values())

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        groups = [
            {**group.what, "count": group.count, "states": group.states, "first": group.first, "last": group.last}
            for group in self.groups
        ]
        return {
            "pipeline": self.pipeline,
            "quarantine": self.target,
            "total": self.total,
            "states": self.states,
            "groups": groups,
            "times": [{self.span: moment, "count": count} for moment, count in self.times],
            "unfinished_redrives": list(self.unfinished),
            "records": list(self.records),
        }


def list_records(
    config: PipelineConfig, selection: Selection = Selection(), by: Sequence[str] = USUALLY_BY, records: int = 0
) -> Listing:
    """Count the selected records; with `records` also list that many of the newest."""
    unknown = [name for name in by if name not in BY]
    if unknown:
        raise DefinitionError(
            "BY_UNKNOWN", f"counting by {', '.join(unknown)}: unknown grouping", hint=f"one of: {', '.join(BY)}"
        )
    place = quarantine_of(config)
    found = place.selected(selection, _needed(by, records))
    moment = pl.col("quarantined_at")
    found = found.with_columns(hour=moment.dt.truncate("1h"), day=moment.dt.truncate("1d"))
    span, times = _times(found)
    return Listing(
        config.name,
        place.records.target,
        tuple(by),
        tuple(_counted(found, by)),
        _states(found),
        span,
        times,
        tuple(run.name for run in runs_in(place.folder) if not run.finished),
        tuple(_plain(found.tail(records))),
    )


def _needed(by: Sequence[str], records: int) -> list[str]:
    columns = ["pipeline", "topic", "partition", "offset", "stage", "code", "quarantined_at", REFUSED_BY]
    return [*columns, *([SCHEMA_ID] if SCHEMA_ID in by else []), *(_LISTED if records else [])]


def _counted(found: pl.DataFrame, by: Sequence[str]) -> list[RecordGroup]:
    moment = pl.col("quarantined_at")
    counts = (
        found.group_by(by or [pl.lit("all").alias("records")])
        .agg(
            pl.len().alias("_count"),
            moment.min().alias("_first"),
            moment.max().alias("_last"),
            *((pl.col("state") == state.value).sum().alias(f"_{state.value}") for state in State),
        )
        .sort(["_count", *by], descending=[True, *(False for _ in by)])
    )
    return [
        RecordGroup(
            {name: row[name] for name in by},
            row["_count"],
            {state.value: row[f"_{state.value}"] for state in State if row[f"_{state.value}"]},
            row["_first"],
            row["_last"],
        )
        for row in counts.iter_rows(named=True)
    ]


def _states(found: pl.DataFrame) -> dict[str, int]:
    counts = dict(found.group_by("state").len().iter_rows())
    return {state.value: counts[state.value] for state in State if state.value in counts}


def _times(found: pl.DataFrame) -> tuple[str, tuple[tuple[datetime, int], ...]]:
    """How many came when, in as short spans as give few enough."""
    first, last = found["quarantined_at"].min(), found["quarantined_at"].max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return _SPANS[0][0], ()
    seconds = (last - first).total_seconds()
    name, every, _ = next((span for span in _SPANS if seconds / span[2] < _MOST_SPANS), _SPANS[-1])
    counts = found.group_by(pl.col("quarantined_at").dt.truncate(every)).len().sort("quarantined_at")
    return name, tuple(counts.iter_rows())


def _plain(found: pl.DataFrame) -> list[dict[str, Any]]:
    if not found.width or not found.height:
        return []
    return list(found.select(*_LISTED, "state", "failures", "run").iter_rows(named=True))


@dataclass(frozen=True)
class DropPlan:
    """Which records would be dropped, or restored."""

    config: PipelineConfig
    selection: Selection
    undo: bool
    target: str
    records: int
    codes: Mapping[str, int]
    _marks: pl.DataFrame = field(repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.config.name,
            "quarantine": self.target,
            "undo": self.undo,
            "records": self.records,
            "codes": self.codes,
        }


def plan_drop(config: PipelineConfig, selection: Selection, *, undo: bool = False) -> DropPlan:
    """The records that would be marked as dropped: those that wait, failed or are parked. With `undo` those dropped.

    Records of an unfinished redrive are excluded.
    """
    place = quarantine_of(config)
    states = (State.DROPPED.value,) if undo else OPEN_STATES
    found = place.selected(replace(selection, limit=None)).filter(pl.col("state").is_in(states))
    found = found.join(unfinished_records(place.folder), on=PLACE, how="anti", maintain_order="left")
    found = found if selection.limit is None else found.head(selection.limit)
    codes = dict(found.group_by("code").len().sort("len", descending=True).iter_rows())
    outcome = Outcome.UNDROPPED if undo else Outcome.DROPPED
    marks = found.select(*IDENTITY, outcome=pl.lit(outcome.value))
    return DropPlan(config, selection, undo, place.records.target, found.height, codes, marks)


def apply_drop(plan: DropPlan) -> str:
    """Mark the records, all or none; returns the name of the action. Records redriven meanwhile stay redriven."""
    place, run = quarantine_of(plan.config), uuid4().hex
    with place.alone():
        place.mark("drops", plan._marks, run=run[:12], query_id=run)
    return run[:12]


# How many records went to quarantine since some moment: counted in the table, bounded on the topic.


@dataclass(frozen=True)
class QuarantineCount:
    """A count; one that is not exact is the most that there can be."""

    records: int
    exact: bool = True


def midnight() -> datetime:
    """The start of this day, in UTC."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def quarantined_since(config: PipelineConfig, since: datetime, patience: float) -> QuarantineCount | None:
    """The bad records of the pipeline, and of its replays before 0.8, since then; none without a quarantine.

    Of a topic only its offsets are asked for, and the marks that end its transactions have some too.
    """
    quarantine = config.quarantine
    if quarantine is None:
        return None
    if quarantine.table is not None:
        return QuarantineCount(_in_table(quarantine.table, config.name, since, storage_of(config)))
    if quarantine.topic is not None:
        return _on_topic(Cluster(settings_of(config.source), patience), quarantine.topic, since)
    return None


def _in_table(path: str, pipeline: str, since: datetime, storage: Storage) -> int:
    # By the statistics in the table's log no file of an earlier day is opened.
    asked = (
        f"SELECT count(*) FROM held WHERE {of_pipeline(pipeline)} "
        f"AND quarantined_at >= arrow_cast('{since.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    )
    found = query_table(path, storage, asked, "counting what is in quarantine")
    return int(found.column(0)[0].as_py()) if found is not None else 0


def _on_topic(cluster: Cluster, topic: str, since: datetime) -> QuarantineCount:
    try:
        partitions = cluster.partitions(Subscription((topic,)))
    except PenstockError as error:
        if error.code == "TOPIC_MISSING":
            return QuarantineCount(0)
        raise
    first, bounds = cluster.offsets_at(partitions, since), cluster.bounds(partitions)
    most = sum(max(0, log.end - first[at]) for at, log in bounds.items() if first.get(at, -1) >= 0)
    return QuarantineCount(most, exact=most == 0)
