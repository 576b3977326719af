"""What every run opens before its first batch: the session, and the slots that its sinks pin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.assembly.build import Pipeline
from penstock.assembly.placing import shipping_of
from penstock.assembly.reaching import spark_settings_of
from penstock.errors import MissingError, PenstockError
from penstock.model import COORDINATES
from penstock.spark.executors import Executors
from penstock.spark.placement import LOCAL, Placement, check_master
from penstock.spark.session import start_session, stop_session, warm_workers
from penstock.spark.shipping import Shipping
from penstock.spark.submitted import is_submitted, overruled, submitted_setting

Tell = Callable[[str], None]
_SPECULATION = "spark.speculation"
_MASTER_SECONDS = 15.0
"""Wait for a master that is being restarted."""


def _ignore(text: str) -> None:
    """For who does not listen."""


@dataclass(frozen=True)
class Needs:
    """What pipelines need of the Spark application that runs them."""

    preload: tuple[str, ...]
    """Modules that the tasks import."""
    tables: bool
    """Whether Spark SQL uses Delta or Iceberg tables."""
    light: bool
    """Whether their rows stay out of the JVM."""
    attempts: bool = True
    """Whether a task may run twice at the same time: not if a sink commits in its tasks."""
    shipping: Shipping = field(default_factory=Shipping)
    """The files to ship to executors on other machines."""

    def together(self, other: Needs) -> Needs:
        """What both need."""
        preload = tuple(dict.fromkeys((*self.preload, *other.preload)))
        return Needs(
            preload,
            self.tables or other.tables,
            self.light and other.light,
            self.attempts and other.attempts,
            self.shipping.together(other.shipping),
        )


def needs_of(pipeline: Pipeline, *, tables: bool = False) -> Needs:
    """What one pipeline needs; `tables` where its maintenance needs them."""
    # What the tasks unpickle lives in these.
    sinks = {type(part).__module__ for part in (*pipeline.sinks, *pipeline.quarantines, pipeline.reader)}
    lane = "stream" if pipeline.stateful else pipeline.lane.lane
    preload = ("penstock.assembly.build", f"penstock.engine.{lane}", *sorted(sinks), *pipeline.preload)
    tables = tables or pipeline.needs_sql or pipeline.reads_tables
    light = pipeline.lane.lane == "direct" and not tables
    return Needs(preload, tables, light, not pipeline.slot_sinks, shipping_of(pipeline.config))


@contextmanager
def application(
    name: str, settings: Mapping[str, str], needs: Needs, log: Path | None, tell: Tell = _ignore
) -> Iterator[Any]:
    """A Spark application, ended afterwards; its first session, with executors to run on."""
    if is_submitted():
        for notice in overruled(settings):
            tell(notice)
    else:
        check_master(Placement(settings.get("spark.master", LOCAL)), _MASTER_SECONDS, tell)
    session = start_session(
        name,
        _without_second_attempts(settings, needs, tell),
        tables=needs.tables,
        light=needs.light,
        preload=needs.preload,
        log=log,
        shipping=needs.shipping,
        progress=_packing(tell),
    )
    try:
        # With dynamic allocation it is waiting tasks that executors come for.
        warm_workers(session)
        Executors(session).wait(tell)
        yield session
    finally:
        stop_session(session)


def _without_second_attempts(settings: Mapping[str, str], needs: Needs, tell: Tell) -> dict[str, str]:
    """Settings without speculation if a second attempt would fence the first one, and so on forever."""
    asked = (submitted_setting(_SPECULATION) if is_submitted() else None) or settings.get(_SPECULATION, "false")
    if needs.attempts or asked != "true":
        return dict(settings)
    tell(f"{_SPECULATION} is turned off: a Kafka sink commits in its tasks, and two attempts would fence each other")
    return {**settings, _SPECULATION: "false"}


def _packing(tell: Tell) -> Callable[[int, int], None]:
    """Reports the progress of packing the Python packages, in quarters."""

    def progress(done: int, of: int) -> None:
        if done == 1:
            tell(f"packing the Python packages for the executors, once: {of:,} files")
        elif (quarter := 4 * done // of) > 4 * (done - 1) // of:
            tell(f"packed {done:,} of {of:,} files" if quarter < 4 else f"packed all {of:,} files")

    return progress


@contextmanager
def session_for(
    pipeline: Pipeline, log: Path | None, session: Any = None, *, tables: bool = False, tell: Tell = _ignore
) -> Iterator[Any]:
    """A Spark session for a pipeline, ended afterwards. One that is given is used and left open."""
    if session is not None:
        yield session
        return
    name, settings = f"penstock {pipeline.config.name}", spark_settings_of(pipeline.config)
    try:
        with application(name, settings, needs_of(pipeline, tables=tables), log, tell) as session:
            yield session
    except PenstockError as error:
        if error.code == "BATCH_FAILED" and log is not None:
            error.context["log"] = str(log)
        raise


def pinned_slots(
    pipeline: Pipeline, cores: int, schemas: Sequence[pa.Schema], tell: Callable[[str], None]
) -> int | None:
    """The fixed number of slots of every batch, if a sink commits in its slot."""
    slots: int | None = None
    for sink in pipeline.slot_sinks:
        found = sink.pin(slots or cores)
        if slots is not None and found != slots:
            raise MissingError(
                "SLOTS_DISAGREE",
                "the Kafka sinks of this pipeline were started with different numbers of slots",
                context={"slots": f"{slots} and {found}"},
                hint="set the same `slots` for all of them: a change is made between two complete batches",
            )
        slots = found
        for notice in sink.notices:
            tell(notice)
    if slots is not None and any(COORDINATES not in schema.names for schema in schemas):
        raise MissingError(
            "SINK_NEEDS_COORDINATES",
            f"a Kafka sink with guarantee exactly_once needs the column {COORDINATES}, which the SQL does not select",
            hint=f"select {COORDINATES} as well, or use guarantee: at_least_once",
        )
    return slots
