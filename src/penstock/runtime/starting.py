"""What every run opens before its first batch: the session, and the slots that its sinks pin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.config import reveal
from penstock.errors import MissingError, PenstockError
from penstock.model import COORDINATES
from penstock.runtime.build import Pipeline
from penstock.spark.session import start_session, stop_session, warm_workers


@contextmanager
def session_for(pipeline: Pipeline, log: Path | None, session: Any = None, *, tables: bool = False) -> Iterator[Any]:
    """A Spark session for a pipeline, ended afterwards. One that is given is used and left open."""
    if session is not None:
        yield session
        return
    # What the tasks unpickle lives in these.
    sinks = {type(part).__module__ for part in (*pipeline.sinks, *pipeline.quarantines, pipeline.reader)}
    lane = "stream" if pipeline.stateful else pipeline.lane.lane
    preload = ("penstock.runtime.build", f"penstock.runtime.{lane}", *sorted(sinks), *pipeline.preload)
    name, settings = f"penstock {pipeline.config.name}", reveal(pipeline.config.spark)
    tables = tables or pipeline.needs_sql or pipeline.reads_tables
    light = pipeline.lane.lane == "direct" and not tables
    session = start_session(name, settings, tables=tables, light=light, preload=preload, log=log)
    warm_workers(session)
    try:
        yield session
    except PenstockError as error:
        if error.code == "BATCH_FAILED" and log is not None:
            error.context["log"] = str(log)
        raise
    finally:
        stop_session(session)


def pinned_slots(
    pipeline: Pipeline, cores: int, schemas: Sequence[pa.Schema], tell: Callable[[str], None]
) -> int | None:
    """The number of slots that every batch has to have, where a sink commits in its slot."""
    slots: int | None = None
    for sink in pipeline.slot_sinks:
        found = sink.pin(slots or cores)
        if slots is not None and found != slots:
            raise MissingError(
                "SLOTS_DISAGREE",
                "the Kafka sinks of this pipeline were begun with different numbers of slots",
                context={"slots": f"{slots} and {found}"},
                hint="write the same `slots` for all of them: a change is made between two whole batches",
            )
        slots = found
        for notice in sink.notices:
            tell(notice)
    if slots is not None and any(COORDINATES not in schema.names for schema in schemas):
        raise MissingError(
            "SINK_NEEDS_COORDINATES",
            f"a Kafka sink with guarantee exactly_once needs the column {COORDINATES}, which the SQL leaves out",
            hint=f"select {COORDINATES} as well, or use guarantee: at_least_once",
        )
    return slots
