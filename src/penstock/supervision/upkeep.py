"""The care of a pipeline's tables: which there are, what was done to each, and all of them between two batches.

In a running pipeline nothing of it can stop the stream: what goes wrong is a line, and is tried again the next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from penstock.assembly.build import Pipeline
from penstock.assembly.reaching import storage_of
from penstock.assembly.targets import Targets
from penstock.checkpoint.turns import Turns
from penstock.config import PipelineConfig, reveal
from penstock.contracts import MaintainedSink, Maintenance, Sink, Turn
from penstock.errors import PenstockError
from penstock.model.upkeep import Cleaned, Compacted, TableFigures
from penstock.sinks.delta.maintenance import DeltaMaintenance

FEW_FILES = 8
"""Up to so many small files a running pipeline leaves alone until they are more."""

SHORTEST_KEEP = timedelta(hours=1)
"""No clean-up removes what was current since: readers and batches in hand may still look at it."""


@dataclass(frozen=True)
class TendedTable:
    """A table of the pipeline that can be looked after."""

    name: str
    target: str
    maintenance: Maintenance
    turn: Turn


@dataclass(frozen=True)
class Tended:
    """What was done to one table."""

    table: TendedTable
    before: TableFigures | None
    after: TableFigures | None = None
    compacted: Compacted = field(default_factory=Compacted)
    cleaned: Cleaned = field(default_factory=Cleaned)
    seconds: float = 0.0
    error: PenstockError | None = None

    @property
    def line(self) -> str | None:
        """For people; none where there was nothing to do."""
        if self.error is not None:
            return f"maintenance of {self.table.name} was not done: {self.error.code} {self.error.line}"
        done = []
        if self.compacted.removed:
            done.append(f"{self.compacted.removed:,} files joined into {self.compacted.added:,}")
        if self.cleaned.files:
            done.append(f"{self.cleaned.files:,} files removed")
        if self.cleaned.versions:
            done.append(f"{self.cleaned.versions:,} snapshots expired")
        if self.compacted.left:
            done.append(f"not all of it: {self.compacted.left}")
        return f"maintenance of {self.table.name}: {', '.join(done)} ({self.seconds:.1f} s)" if done else None


def tables_of(config: PipelineConfig, targets: Targets) -> list[TendedTable]:
    """The tables of the sinks, and those beside the quarantine, each once."""
    found = [
        TendedTable(sink.name, sink.target, sink.maintenance(), Turns(config.checkpoint, sink.name))
        for sink in targets.sinks
        if isinstance(sink, MaintainedSink)
    ]
    quarantine = config.quarantine.table if config.quarantine is not None else None
    if quarantine is not None:
        for name, end in (("quarantine", ""), ("gaps", "_gaps"), ("redrives", "_redrives")):
            path = quarantine.rstrip("/") + end
            care = DeltaMaintenance(config.name, name, path, storage=storage_of(config))
            found.append(TendedTable(name, path, care, Turns(config.checkpoint, name)))
    return list({table.target: table for table in reversed(found)}.values())[::-1]


def turn_at(checkpoint: str, sink: Sink) -> AbstractContextManager[None]:
    """What a stream holds while it commits to a sink."""
    if isinstance(sink, MaintainedSink) and sink.takes_turns:
        return Turns(checkpoint, sink.name).stream()
    return nullcontext()


def needs_spark(pipeline: Pipeline) -> bool:
    """Whether some table is looked after through Spark, whose session must know tables then."""
    return any(table.maintenance.needs_sql for table in tables_of(pipeline.config, pipeline.targets))


def use_spark(table: TendedTable, session: Any, settings: Mapping[str, str] | None = None) -> None:
    """Give a table that needs it an engine of its own."""
    if table.maintenance.needs_sql:
        from penstock.spark.sql import SparkSql

        engine = SparkSql(session, settings)
        table.maintenance.use(engine, engine.interrupt)


def upkeep(pipeline: Pipeline, session: Any, within: float, keep: timedelta) -> Iterator[str]:
    """Look after every table for at most `within` seconds in all; yield what there is to tell."""
    deadline, settings = time.monotonic() + within, reveal(pipeline.config.spark)
    for table in tables_of(pipeline.config, pipeline.targets):
        if time.monotonic() >= deadline:
            return
        done = tend(table, deadline, keep, few=FEW_FILES, ready=lambda table: use_spark(table, session, settings))
        if done.line is not None:
            yield done.line


def tend(
    table: TendedTable,
    deadline: float,
    keep: timedelta,
    *,
    clean: bool = True,
    few: int = 1,
    ready: Callable[[TendedTable], None] = lambda table: None,
) -> Tended:
    """Compact a table with more than `few` small files, and clean it up. What goes wrong is in what is returned."""
    began = time.monotonic()
    done = Tended(table, None)
    try:
        before = table.maintenance.figures()
        done = Tended(table, before, before)
        if before is None:
            return done
        ready(table)
        if before.small_files > few:
            done = replace(done, compacted=table.maintenance.compact(table.turn, deadline))
        if clean and time.monotonic() < deadline:
            keep = max(keep, SHORTEST_KEEP)
            done = replace(done, cleaned=table.maintenance.clean(keep, table.turn, deadline))
        return replace(done, after=table.maintenance.figures(), seconds=time.monotonic() - began)
    except Exception as error:
        told = error if isinstance(error, PenstockError) else _unexpected(table, error)
        return replace(done, error=told, seconds=time.monotonic() - began)


def _unexpected(table: TendedTable, error: Exception) -> PenstockError:
    return PenstockError("UNEXPECTED", f"sink {table.name}: looking after the table: {type(error).__name__}: {error}")
