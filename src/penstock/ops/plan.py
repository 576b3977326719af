"""What a run would do: the data flow, its start, the position of each sink, and all problems.

Nothing is written, but for a small object in each bucket of an object store, which is removed again: it shows whether
the store refuses a second commit. No JVM is started. All checks are run, so that all problems are shown at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from penstock.assembly.build import Flow, Pipeline, build, joined_schema
from penstock.assembly.placing import check_places, open_ports, placement_of
from penstock.assembly.reaching import checkpoint_of, committed_places_of, places_of, storage_of
from penstock.assembly.state import check_state
from penstock.assembly.tables import Lookups
from penstock.assembly.transforming import PlacedStep, step_output
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.logs import describe_batches
from penstock.config import PipelineConfig, show_duration
from penstock.config.arrow_types import arrow_to_ddl
from penstock.contracts import Sink, StatefulTransform
from penstock.errors import PenstockError, transient_is_fatal
from penstock.flow import decide
from penstock.kafka import Cluster
from penstock.metrics import BatchMetrics
from penstock.metrics.history import history_of
from penstock.model import BAD_SCHEMA, COMPUTED, COORDINATES, lag_of
from penstock.preflight.checks import StartPoint, check_agreement, check_brokers, check_checkpoint, start_point
from penstock.preflight.options import RunOptions
from penstock.quarantine import GAPS_SCHEMA
from penstock.spark.placement import DeployMode, check_master
from penstock.storage.reaching import check_conditional_writes, check_reachable
from penstock.supervision.flow_control import observed_in


def trigger_words(config: PipelineConfig) -> str:
    """When batches start."""
    if config.trigger.available_now:
        return "read all available records, then stop"
    every = config.trigger.every
    return f"every {every.total_seconds():g} s" if every else "as fast as batches finish"


def flow_words(config: PipelineConfig) -> str:
    """How large the batches are."""
    if not config.adaptive:
        fixed = [one.max_offsets for one in config.sources.values()] or [config.source.max_offsets]
        return f"a fixed cap of {' and '.join(f'{one:,}' if one else 'no' for one in fixed)} offsets a batch"
    flow = config.flow
    known = observed_in(history_of(config.checkpoint).read(BatchMetrics))
    first = f"{decide(flow, known).cap:,} offsets based on earlier batches" if known else "a small one at first"
    aim, most = show_duration(flow.target_batch), show_duration(flow.max_batch)
    return f"batches of about {aim} while behind, at most {most}; {first}"


def checkpoint_words(checkpoint: SparkCheckpoint) -> str:
    """How far the checkpoint is."""
    begun, done = checkpoint.last_begun(), checkpoint.last_committed()
    if begun is None:
        return "fresh"
    text = f"query {(checkpoint.query_id() or 'unknown')[:8]}, {describe_batches(begun, done)}"
    return text if begun == done else f"{text} and to be repeated"


Result = TypeVar("Result")


@dataclass(frozen=True)
class PlannedStep:
    """One transform and its output columns; None if only Spark knows."""

    place: str
    text: str
    lane: str
    """The lane that it needs."""
    columns: tuple[str, ...] | None
    state: str | None = None
    """What state it keeps, and what ends it."""


@dataclass(frozen=True)
class PlannedInput:
    """One of the sources that a flow joins."""

    name: str
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True)
class PlannedFlow:
    """One flow: its records, columns, steps and lane."""

    name: str
    """The route; empty if there is only one."""
    topics: tuple[str, ...] | None
    lane: str
    lane_reason: str
    schema: str | None
    """The registry schema of the columns, if any."""
    columns: tuple[str, ...]
    steps: tuple[PlannedStep, ...]
    sinks: tuple[str, ...]
    inputs: tuple[PlannedInput, ...] = ()


@dataclass(frozen=True)
class PlannedSink:
    """One sink: its guarantee and its position."""

    name: str
    target: str
    guarantee: str
    holds: str
    takes: str = "all rows"
    """The rows and columns that it gets."""


@dataclass(frozen=True)
class PlannedPartition:
    """One partition: the log bounds, and where the run would start."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    start: int | None

    @property
    def waiting(self) -> int | None:
        """How many offsets the run would have before it."""
        return None if self.start is None else lag_of(self.log_end, self.start)


@dataclass(frozen=True)
class RunPlan:
    """Everything that `penstock plan` prints."""

    pipeline: str
    lane: str
    lane_reason: str
    source: str
    start: str | None
    partitions: tuple[PlannedPartition, ...]
    flows: tuple[PlannedFlow, ...]
    sinks: tuple[PlannedSink, ...]
    trigger: str
    flow: str
    checkpoint: str
    group: str | None
    """The consumer group for the progress of the sinks."""
    master: str | None = None
    """The cluster that runs it; None for this process alone."""
    buckets: tuple[str, ...] = ()
    """Stores where commits are conditional writes, and which were verified to refuse a failed condition."""
    alerts: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    problems: tuple[PenstockError, ...] = field(default=())

    @property
    def waiting(self) -> int:
        """All offsets before the run."""
        return sum(p.waiting or 0 for p in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        body = {name: value for name, value in asdict(self).items() if name != "problems"}
        body["waiting"] = self.waiting
        body["problems"] = [
            {"code": p.code, "summary": p.summary, "context": p.context, "hint": p.hint} for p in self.problems
        ]
        return body


def plan_run(config: PipelineConfig, options: RunOptions = RunOptions(), deploy_mode: DeployMode = "client") -> RunPlan:
    """Look at brokers, checkpoint and sinks, and say what a run would do."""
    check_reachable(storage_of(config), places_of(config))
    pipeline = build(config)
    problems: list[PenstockError] = []

    def attempt(check: Callable[[], Result]) -> Result | None:
        try:
            return check()
        except PenstockError as error:
            # Several checks may find the same problem.
            if str(error) not in map(str, problems):
                problems.append(error)
            return None

    buckets = attempt(lambda: check_conditional_writes(storage_of(config), committed_places_of(config)))
    checkpoint = checkpoint_of(config)
    cluster = attempt(lambda: Cluster(pipeline.settings))
    bounds = attempt(lambda: check_brokers(cluster, pipeline)) if cluster else None
    attempt(lambda: check_checkpoint(checkpoint))
    attempt(lambda: check_state(pipeline, checkpoint))
    ids = attempt(lambda: cluster.topic_ids({at.topic for at in bounds or ()})) if cluster else None
    agreed = attempt(lambda: check_agreement(pipeline, checkpoint, bounds, options=options, topic_ids=ids))
    start: StartPoint | None = None
    if cluster is not None and bounds is not None:
        start = attempt(lambda: start_point(pipeline, checkpoint, bounds, cluster, agreed.resumed if agreed else None))
    attempt(lambda: _read_tables(pipeline))
    placement = placement_of(config, deploy_mode)
    attempt(lambda: check_master(placement))
    notices = [*(attempt(lambda: check_places(config, placement)) or []), *open_ports(config, placement)]
    sinks = [(sink, attempt(partial(_look_at, sink))) for sink in _all_sinks(pipeline)]
    for sink, schema in _schemas(pipeline):
        attempt(partial(sink.check, schema))
    return RunPlan(
        pipeline=config.name,
        lane=pipeline.lane.lane,
        lane_reason=pipeline.lane.reason,
        source=f"{pipeline.subscription.describe()} at {config.source.brokers}",
        start=start.origin if start else None,
        partitions=tuple(
            PlannedPartition(
                at.topic,
                at.partition,
                log.start,
                log.end,
                start.offsets.get(at, log.start) if start else None,
            )
            for at, log in sorted((bounds or {}).items())
        ),
        flows=tuple(_flow(pipeline, flow) for flow in pipeline.flows),
        sinks=tuple(
            PlannedSink(sink.name, sink.target, sink.guarantee.value, seen or "cannot be read", _takes(pipeline, sink))
            for sink, seen in sinks
        ),
        trigger=trigger_words(config),
        flow=flow_words(config),
        group=config.group,
        alerts=tuple(map(str, config.alerts.rules)) if config.alerts is not None else (),
        checkpoint=f"{config.checkpoint} ({checkpoint_words(checkpoint)})",
        notices=(*((start.notice,) if start and start.notice else ()), *notices, *_unverified(pipeline)),
        master=None if placement.is_local else placement.master,
        buckets=tuple(buckets or ()),
        problems=tuple(_causes(problems)),
    )


def _causes(problems: Sequence[PenstockError]) -> list[PenstockError]:
    """Without those that only pass on another one: of an unreachable sink the reason is enough."""
    lines = {f"{one.code} {one.line}" for one in problems}
    return [one for one in problems if one.code != "SINK_UNREACHABLE" or one.context.get("sink") not in lines]


def _unverified(pipeline: Pipeline) -> list[str]:
    """A line for each place whose options turn off the authentication of the brokers."""
    places = [("source", pipeline.settings)]
    places += [(f"sink {sink.name}", sink.settings) for sink in pipeline.sinks if hasattr(sink, "settings")]
    return [
        f"{place}: the option {name} allows a man-in-the-middle to read and change everything"
        for place, settings in places
        for name in settings.unverified
    ]


def _read_tables(pipeline: Pipeline) -> None:
    """Read the tables that are joined in memory: they are there, have the columns, and their keys are unique."""
    every = [step for flow in pipeline.flows for side in flow.sides for step in side.transforms]
    every += [step for flow in pipeline.flows for step in flow.transforms]
    with transient_is_fatal():
        lookups = Lookups(pipeline.tables, every, None, lambda text: None)
        lookups.refresh()
        lookups.held(every)


def _all_sinks(pipeline: Pipeline) -> list[Sink]:
    gaps = [pipeline.targets.gaps] if pipeline.targets.gaps is not None else []
    return [*pipeline.quarantines, *gaps, *pipeline.sinks]


def _schemas(pipeline: Pipeline) -> list[tuple[Sink, pa.Schema]]:
    """The columns that each sink would get, if known without Spark."""
    found: list[tuple[Sink, pa.Schema]] = [(sink, BAD_SCHEMA) for sink in pipeline.quarantines]
    if pipeline.targets.gaps is not None:
        found.append((pipeline.targets.gaps, GAPS_SCHEMA))
    for flow in pipeline.flows:
        schema = flow.schema
        if schema is not None:
            found += [(inlet.sink, inlet.schema(schema)) for inlet in flow.inlets]
    return found


def _look_at(sink: Sink) -> str:
    position = sink.position()
    return (
        "no batch yet" if position is None else f"batch {position.last.batch_id} of query {position.last.query_id[:8]}"
    )


def _takes(pipeline: Pipeline, sink: Sink) -> str:
    if sink in pipeline.quarantines:
        return "bad records"
    config = next((c for c, s in zip(pipeline.config.sinks, pipeline.sinks, strict=True) if s is sink), None)
    if config is None:
        return "gaps"
    parts = ["all rows" if config.where is None else f"rows where {config.where}"]
    if config.select is not None:
        parts.append(f"columns {', '.join(config.select)}")
    if config.merges:
        parts.append(f"merged by {', '.join(getattr(config, 'keys', None) or ())}")
    if pruned := getattr(config, "prune_by", ()):
        parts.append(f"reading only where {', '.join(pruned)} can match: it must never change for a key")
    if note := getattr(sink, "note", None):
        parts.append(note)
    return ", ".join(parts)


def _flow(pipeline: Pipeline, flow: Flow) -> PlannedFlow:
    schema = pipeline.schemas.get(flow.config.decode_path)
    return PlannedFlow(
        name=flow.name,
        topics=flow.config.topics,
        lane=flow.lane.lane,
        lane_reason=flow.lane.reason,
        schema=f"{schema.subject} version {schema.version}, id {schema.id}" if schema is not None else None,
        columns=_columns(flow.decoder.schema),
        steps=_flow_steps(flow),
        sinks=tuple(inlet.sink.name for inlet in flow.inlets),
        inputs=tuple(
            PlannedInput(
                side.name, side.topics, _columns(side.decoder.schema), _steps(side.decoder.schema, side.placed)
            )
            for side in flow.sides
        ),
    )


def _flow_steps(flow: Flow) -> tuple[PlannedStep, ...]:
    if not flow.sides:
        return _steps(flow.decoder.schema, flow.placed)
    join, *others = flow.placed
    schema = joined_schema(flow)
    first = _step(join, "frame", _columns(schema) if schema is not None else None)
    return (first, *_steps(schema, others))


def _steps(schema: pa.Schema | None, placed: Sequence[PlacedStep]) -> tuple[PlannedStep, ...]:
    steps: dict[str, PlannedStep] = {}
    for one in placed:
        lane = "frame" if schema is None or one.transform.no_arrow_form(schema) is not None else "direct"
        schema = step_output(schema, one.transform) if schema is not None else None
        columns = _columns(schema) if schema is not None else None
        # A step that became two transforms is shown as one: what the first does, and the columns of the last.
        begun = steps.get(one.place)
        steps[one.place] = replace(begun, columns=columns) if begun is not None else _step(one, lane, columns)
    return tuple(steps.values())


def _step(one: PlacedStep, lane: str, columns: tuple[str, ...] | None) -> PlannedStep:
    step = one.transform
    state = f"remembers {step.keeps}; {step.bound}" if isinstance(step, StatefulTransform) else None
    return PlannedStep(one.place, repr(step), lane, columns, state)


def _columns(schema: pa.Schema) -> tuple[str, ...]:
    return tuple(
        f"{f.name} {arrow_to_ddl(f.type)}{'' if f.nullable else ' NOT NULL'}"
        for f in schema
        if f.name != COORDINATES and not f.name.startswith(COMPUTED)
    )
