"""Compaction and clean-up of a pipeline's tables, also while the pipeline runs.

Input: a pipeline file and limits. Output: the figures of each table before and after. The plan starts no JVM; the rest
only if a table needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.assembly.reaching import settings_of, spark_settings_of
from penstock.assembly.targets import build_targets
from penstock.config import PipelineConfig
from penstock.errors import DefinitionError, MissingError, TransientError
from penstock.model.upkeep import Cleaned, TableFigures
from penstock.sinks.maintenance import NoLock
from penstock.supervision.upkeep import SHORTEST_KEEP, Tended, TendedTable, tables_of, tend, use_spark


@dataclass(frozen=True)
class PlannedTable:
    """The current state of a table, and what a compaction would find."""

    table: TendedTable
    figures: TableFigures | None
    cleaning: Cleaned | None
    needs_spark: bool

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.table.name,
            "target": self.table.target,
            "figures": asdict(self.figures) if self.figures else None,
            "removable": asdict(self.cleaning) if self.cleaning else None,
            "through_spark": self.needs_spark,
        }


@dataclass(frozen=True)
class CompactPlan:
    """What would be done."""

    pipeline: str
    tables: tuple[PlannedTable, ...]
    others: tuple[tuple[str, str], ...]
    """Sinks with nothing to compact, and why."""
    within: timedelta
    keep: timedelta
    clean: bool
    spark: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.pipeline,
            "tables": [one.as_json() for one in self.tables],
            "others": [{"name": name, "why": why} for name, why in self.others],
        }


def plan_compact(
    config: PipelineConfig, sink: str | None, within: timedelta, keep: timedelta, *, clean: bool = True
) -> CompactPlan:
    """Look at the tables; nothing is written."""
    if keep < SHORTEST_KEEP:
        raise DefinitionError(
            "KEEP_TOO_SHORT",
            "files that were current within the last hour are not removed: readers and running batches may need them",
            context={"asked for": f"{keep.total_seconds():g} s", "at least": "1 hour"},
        )
    targets = build_targets(config, settings_of(config.source))
    tables = tables_of(config, targets)
    others = [(one.name, one.no_maintenance) for one in targets.sinks if one.maintenance() is None]
    if sink is not None:
        names = [table.name for table in tables] + [name for name, _ in others]
        if sink not in names:
            raise MissingError(
                "SINK_UNKNOWN",
                f'the pipeline has no table named "{sink}"',
                context={"tables": ", ".join(names)},
            )
        tables, others = [t for t in tables if t.name == sink], [one for one in others if one[0] == sink]
    return CompactPlan(
        config.name,
        tuple(_planned(table, keep, clean) for table in tables),
        tuple(others),
        within,
        keep,
        clean,
        spark_settings_of(config),
    )


def apply_compact(
    plan: CompactPlan, log: Path | None = None, progress: Callable[[str], None] = lambda name: None, session: Any = None
) -> list[Tended]:
    """Do it, table after table, until the time is up. A given session is used and left open."""
    deadline = time.monotonic() + plan.within.total_seconds()
    done: list[Tended] = []
    with _lazy_session(plan, log, session) as started:
        for one in plan.tables:
            if one.figures is None:
                continue
            progress(one.table.name)
            if one.needs_spark:
                use_spark(one.table, started())
            done.append(tend(one.table, deadline, plan.keep, clean=plan.clean))
    return done


def raise_what_is_left(done: list[Tended]) -> None:
    """Raise the first error, or a transient one if a compaction kept yielding to the stream."""
    for one in done:
        if one.error is not None:
            raise one.error
    lost = [one for one in done if one.compacted.left is not None and one.compacted.gave_way]
    if lost:
        raise TransientError(
            "COMPACTION_GAVE_WAY",
            "not everything was compacted: the stream has priority, and needed the table each time",
            context={one.table.name: f"yielded {one.compacted.gave_way} times: {one.compacted.left}" for one in lost},
            hint="retry when the stream is less busy; or let the pipeline do it between batches:\n"
            "maintenance: {every: 1 hour}",
        )


@contextmanager
def _lazy_session(plan: CompactPlan, log: Path | None, given: Any) -> Iterator[Callable[[], Any]]:
    """A session that is started when the first table needs it, and stopped at the end; a given one is left open."""
    own: list[Any] = []

    def session() -> Any:
        if given is not None:
            return given
        if not own:
            from penstock.spark.session import start_session

            own.append(start_session(f"penstock compact {plan.pipeline}", plan.spark, tables=True, log=log))
        return own[0]

    try:
        yield session
    finally:
        if own:
            from penstock.spark.session import stop_session

            stop_session(own[0])


def _planned(table: TendedTable, keep: timedelta, clean: bool) -> PlannedTable:
    care = table.maintenance
    figures = care.figures()
    look = clean and figures is not None
    cleaning = care.clean(keep, NoLock(), time.monotonic() + 60, dry_run=True) if look else None
    return PlannedTable(table, figures, cleaning, figures is not None and care.needs_sql)
