"""Builds the parts of a pipeline from its file: with `targets` and `decoding`, the only place where a `type:` becomes a
class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from penstock import config as cfg
from penstock.assembly.decoding import build_decoder, build_key, build_side_decoder
from penstock.assembly.inlet import Inlet, RouteCondition, SinkExpressions
from penstock.assembly.layout import Layout, lay_out
from penstock.assembly.reaching import settings_of, storage_of, subscription_of
from penstock.assembly.schemas import Schemas, ask_registries
from penstock.assembly.tables import Tables
from penstock.assembly.targets import Targets, build_inlets, build_targets
from penstock.assembly.transforming import (
    PlacedStep,
    StepContext,
    build_transforms,
    refuse_missing_columns,
    steps_output,
    watermark_column,
)
from penstock.assembly.user_code import folder_of, refuse_missing_code
from penstock.contracts import Decoder, Reader, Sink, SlotSink, Transform
from penstock.decoders import RecordDecoder, TombstoneDecoder, Tombstones
from penstock.errors import MissingError, transient_is_fatal
from penstock.kafka import KafkaSettings, Subscription
from penstock.model import COORDINATES, COORDINATES_FIELD, NEVER_NULL
from penstock.quarantine import RefusingQuarantine
from penstock.readers import KafkaReader
from penstock.storage import Storage
from penstock.transforms import Join, Watermark
from penstock.transforms.step import OnError

Lane = Literal["direct", "frame"]


@dataclass(frozen=True)
class LaneChoice:
    """Which lane, and what decided it."""

    lane: Lane
    reason: str


@dataclass(frozen=True)
class Side:
    """One of the sources that a flow joins, up to the join."""

    name: str
    topics: tuple[str, ...]
    decoder: RecordDecoder
    placed: tuple[PlacedStep, ...]

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """What happens to its rows."""
        return tuple(one.transform for one in self.placed)


@dataclass(frozen=True)
class Flow:
    """One flow through the pipeline: the whole of it, or a route."""

    config: cfg.Flow
    decoder: RecordDecoder
    """Of a flow that joins sources: the first one's."""
    placed: tuple[PlacedStep, ...]
    computed: SinkExpressions | None
    inlets: tuple[Inlet, ...]
    deleting: tuple[Sink, ...]
    """The sinks where tombstones delete rows."""
    delete_by: tuple[str, ...]
    """The keys by which they delete; empty if they do not."""
    key: RecordDecoder | None
    lane: LaneChoice
    sides: tuple[Side, ...] = ()

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """What happens to the rows."""
        return tuple(one.transform for one in self.placed)

    def layout(self, steps: Sequence[Transform] | None = None) -> Layout | None:
        """The layout of its state, optionally with other steps; None if it is stateless."""
        sides = [(side.name, side.topics, side.decoder, side.transforms) for side in self.sides]
        return lay_out(self.decoder, self.config.topics, self.steps if steps is None else steps, sides)

    @property
    def name(self) -> str:
        """Its label among other flows; empty if it is the only one."""
        return self.config.name

    @property
    def steps(self) -> tuple[Transform, ...]:
        """The transforms, and what the sinks have computed for them."""
        return (*self.transforms, *((self.computed,) if self.computed is not None else ()))

    @property
    def schema(self) -> pa.Schema | None:
        """The input columns of the inlets; `None` if only Spark knows."""
        schema = joined_schema(self)
        found = steps_output(schema, self.steps if not self.sides else self.steps[1:]) if schema is not None else None
        return as_nullable(found) if found is not None else None

    def tombstones(self, schema: pa.Schema) -> Decoder | None:
        """Tombstones as deletes by the keys, typed as the rows that reach the sinks."""
        if not self.delete_by:
            return None
        fields = {field.name.lower(): field for field in schema}
        return TombstoneDecoder(pa.schema([fields[name.lower()] for name in self.delete_by]), self.key)


@dataclass(frozen=True)
class Pipeline:
    """The parts of one pipeline, made but not opened: no JVM, and no connection but to a registry."""

    config: cfg.PipelineConfig
    settings: KafkaSettings
    subscription: Subscription
    reader: Reader
    targets: Targets
    schemas: Schemas
    """The registry schemas of the decoders."""
    flows: tuple[Flow, ...]
    tables: Tables

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks, in the order of the file."""
        return self.targets.sinks

    @property
    def quarantines(self) -> tuple[Sink, ...]:
        """Where bad records go."""
        return self.targets.quarantines

    @property
    def storage(self) -> Storage:
        """Access to every location in the file."""
        return storage_of(self.config)

    @property
    def lane(self) -> LaneChoice:
        """The lane: the frame where any flow needs it."""
        chosen = next((flow for flow in self.flows if flow.lane.lane == "frame"), self.flows[0])
        return replace(chosen.lane, reason=f"{chosen.name}: {chosen.lane.reason}") if chosen.name else chosen.lane

    @property
    def stateful(self) -> bool:
        """Whether some step keeps state from batch to batch."""
        return any(flow.layout() is not None for flow in self.flows)

    @property
    def preload(self) -> tuple[str, ...]:
        """The third-party modules that the tasks of some steps import, which is slow."""
        if not any(isinstance(step, cfg.StatefulConfig) for step in self.config.transforms):
            return ()
        spark = ("pandas.serializers", "streaming.stateful_processor_util", "streaming.proto.StateMessage_pb2")
        return ("pandas", "penstock.transforms.stateful", *(f"pyspark.sql.{module}" for module in spark))

    @property
    def needs_sql(self) -> bool:
        """Whether some sink commits through Spark SQL."""
        return any(sink.needs_sql for sink in self.sinks)

    @property
    def reads_tables(self) -> bool:
        """Whether Spark itself may have to read a Delta or Iceberg table."""
        lake = any(
            isinstance(table, cfg.DeltaTableConfig | cfg.IcebergTableConfig) for table in self.config.tables.values()
        )
        return lake and self.lane.lane == "frame"

    @property
    def slot_sinks(self) -> list[SlotSink]:
        """The sinks that pin the number of slots."""
        return [sink for sink in self.sinks if isinstance(sink, SlotSink)]

    def with_sinks(self, change: Callable[[Sink], Sink]) -> Pipeline:
        """The same pipeline, with `change` applied to each sink."""
        targets = replace(self.targets, sinks=tuple(change(sink) for sink in self.targets.sinks))
        flows = (_flow(self.config, flow.config, targets, self.schemas, self.tables, False) for flow in self.flows)
        return replace(self, targets=targets, flows=tuple(flows))

    def reading(self, schemas: Schemas, *, frozen: bool = False) -> Pipeline:
        """The same pipeline and sinks, with decoders for other schemas."""
        flows = tuple(
            _flow(self.config, flow.config, self.targets, schemas, self.tables, frozen) for flow in self.flows
        )
        return replace(self, schemas=schemas, flows=flows)


def build(config: cfg.PipelineConfig, schemas: Schemas | None = None, tables: Tables | None = None) -> Pipeline:
    """Build the parts of a pipeline file; schemas that are not given are read from the registries."""
    refuse_missing_code(config)
    tables = tables or Tables(config.tables, storage=storage_of(config))
    source = config.source
    settings = settings_of(source)
    targets = build_targets(config, settings)
    if schemas is None:
        with transient_is_fatal():
            schemas = ask_registries(config)
    return Pipeline(
        config=config,
        settings=settings,
        subscription=subscription_of(source),
        reader=KafkaReader(settings, chunk_bytes=source.chunk_bytes),
        targets=targets,
        schemas=schemas,
        flows=tuple(_flow(config, flow, targets, schemas, tables, frozen=False) for flow in cfg.flows(config)),
        tables=tables,
    )


def _flow(
    config: cfg.PipelineConfig, flow: cfg.Flow, targets: Targets, schemas: Schemas, tables: Tables, frozen: bool
) -> Flow:
    sinks = [config.sinks[index] for index in flow.sinks]
    made = [targets.sinks[index] for index in flow.sinks]
    delete_by = _delete_by(flow, sinks)
    topic = cfg.only_topic(flow.topics, config.source)
    decoder = build_decoder(flow, "drop" if delete_by else _tombstones(flow), topic, schemas, frozen)
    refuses = any(isinstance(quarantine, RefusingQuarantine) for quarantine in targets.quarantines)
    on_error: OnError = "fail" if refuses else "quarantine"
    sides = _sides(config, flow, schemas, tables, frozen, on_error)
    own = {one.decode_path: side.decoder.schema for one, side in zip(flow.sides, sides, strict=True)}
    refuse_missing_columns(config, flow, own or {flow.decode_path: decoder.schema})
    placed = build_transforms(flow.transforms, _step_context(config, flow, tables, on_error))
    if flow.where is not None:
        placed = (PlacedStep("where", RouteCondition(flow.where, on_error)), *placed)
    computed, inlets = build_inlets(sinks, made, on_error)
    # A join is the first step and its sides have their own columns: it always runs in Spark.
    every = [*placed, *([PlacedStep("", computed)] if computed is not None else [])]
    return Flow(
        config=flow,
        decoder=decoder,
        placed=placed,
        computed=computed,
        inlets=inlets,
        deleting=tuple(sink for one, sink in zip(sinks, made, strict=True) if one.merges) if delete_by else (),
        delete_by=delete_by,
        key=build_key(flow, topic, schemas, frozen) if delete_by else None,
        lane=choose_lane(decoder.schema, every, config.lane),
        sides=sides,
    )


def _sides(
    config: cfg.PipelineConfig, flow: cfg.Flow, schemas: Schemas, tables: Tables, frozen: bool, on_error: OnError
) -> tuple[Side, ...]:
    found = []
    for side in flow.sides:
        topic = cfg.only_topic(side.topics, config.source)
        decoder = build_side_decoder(side, topic, schemas, frozen)
        around = StepContext(folder_of(config), side.topics, tables, {}, on_error)
        found.append(
            Side(side.name, side.topics, decoder, build_transforms(side.transforms, around, f"sources.{side.name}."))
        )
    return tuple(found)


def _step_context(config: cfg.PipelineConfig, flow: cfg.Flow, tables: Tables, on_error: OnError) -> StepContext:
    topics = flow.topics or config.source.named_topics
    times = {side.name: watermark_column(side.transforms) or "" for side in flow.sides}
    return StepContext(folder_of(config), topics, tables, times, on_error)


def joined_schema(flow: Flow) -> pa.Schema | None:
    """The columns that enter the first step; of a flow that joins sources, those that leave the join."""
    if not flow.sides:
        return flow.decoder.schema
    join = flow.transforms[0]
    assert isinstance(join, Join), "checked when the file was loaded"
    found = {side.name: steps_output(side.decoder.schema, side.transforms) for side in flow.sides}
    left, right = found[join.left.name], found[join.right.name]
    return join.known_join(left, right) if left is not None and right is not None else None


def choose_lane(schema: pa.Schema, placed: Sequence[PlacedStep], forced: Lane | None) -> LaneChoice:
    """The direct lane where every transform has an exact Arrow form; else the frame lane, and why."""
    reason = None
    for one in placed:
        transform = one.transform
        if isinstance(transform, Watermark):
            # It is the step after it that needs Spark.
            continue
        why = transform.no_arrow_form(schema)
        if why is not None:
            where = "" if isinstance(transform, SinkExpressions | RouteCondition) else f"{one.place}, "
            reason = f"{where}{transform!r}: {why}"
            break
        schema = transform.output(schema)
    if forced == "direct" and reason is not None:
        raise MissingError(
            "LANE_IMPOSSIBLE",
            "the file asks for `lane: direct`, which this pipeline does not support",
            context={"because of": reason},
            hint="remove `lane`, or change that transform",
        )
    if forced is not None:
        return LaneChoice(forced, "`lane` in the file says so")
    if reason is not None:
        return LaneChoice("frame", reason)
    return LaneChoice("direct", "every transform has an exact Arrow form" if placed else "no transforms")


def as_nullable(schema: pa.Schema) -> pa.Schema:
    """Every column nullable, as Spark's own writers create tables: both lanes then make the same table.

    A column that is never null is marked, so that it can be written to a table that requires a value.
    """
    return pa.schema([COORDINATES_FIELD if field.name == COORDINATES else _nullable(field) for field in schema])


def _nullable(field: pa.Field) -> pa.Field:
    return field if field.nullable else field.with_nullable(True).with_metadata({NEVER_NULL: b"true"})


def _delete_by(flow: cfg.Flow, sinks: Sequence[cfg.SinkConfig]) -> tuple[str, ...]:
    """The keys of the merging sinks where tombstones delete.

    A tombstone has no `when_newer` column, so it does not delete in a sink that orders rows by one.
    """
    if flow.sides or any(map(cfg.remembers, flow.transforms)):
        return ()
    asked = getattr(flow.decode, "tombstones", "pass")
    merging = [sink for sink in sinks if sink.merges]
    keys = {tuple(getattr(sink, "keys", ())) for sink in merging}
    ordered = any(getattr(sink, "when_newer", None) is not None for sink in merging)
    if asked not in (None, "delete") or len(keys) != 1 or ordered:
        return ()
    return keys.pop()


def _tombstones(flow: cfg.Flow) -> Tombstones:
    asked = getattr(flow.decode, "tombstones", None)
    return asked if asked in ("pass", "drop") else "quarantine"
