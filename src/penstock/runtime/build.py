"""From the pipeline file to its parts: the only place, with `targets` and `decoding`, where a word becomes a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from penstock import config as cfg
from penstock.contracts import Decoder, Sink, SlotSink, SqlSink, Transform
from penstock.decoders import TombstoneDecoder, Tombstones
from penstock.errors import MissingError
from penstock.kafka import KafkaSettings, Subscription
from penstock.readers import KafkaReader
from penstock.runtime.columns import refuse_missing_columns
from penstock.runtime.decoding import build_decoder, build_key
from penstock.runtime.faults import nothing_passes
from penstock.runtime.inlet import Computed, Inlet, Taken, place_of
from penstock.runtime.schemas import Schemas, ask_registries
from penstock.runtime.targets import Targets, build_inlets, build_targets
from penstock.transforms import Cast, Dedupe, Derive, Drop, Rename, Sql, Where

Lane = Literal["direct", "frame"]


@dataclass(frozen=True)
class LaneChoice:
    """Which lane, and what decided it."""

    lane: Lane
    reason: str


@dataclass(frozen=True)
class Flow:
    """One way of the rows through the pipeline: the whole of it, or a route."""

    config: cfg.Flow
    decoder: Decoder
    transforms: tuple[Transform, ...]
    computed: Computed | None
    inlets: tuple[Inlet, ...]
    deleting: tuple[Sink, ...]
    """The sinks in which tombstones delete."""
    delete_by: tuple[str, ...]
    """The keys by which they do; none where they do not."""
    key: Decoder | None
    lane: LaneChoice

    @property
    def name(self) -> str:
        """What tells it from the others; empty where there are none."""
        return self.config.name

    @property
    def steps(self) -> tuple[Transform, ...]:
        """The transforms, and what the sinks have computed for them."""
        return (*self.transforms, *((self.computed,) if self.computed is not None else ()))

    @property
    def schema(self) -> pa.Schema | None:
        """The columns that reach the inlets; `None` where only Spark can say."""
        schema = self.decoder.schema
        for transform in self.steps:
            if transform.no_arrow_form(schema) is not None:
                return None
            schema = transform.output(schema)
        return as_nullable(schema)

    def tombstones(self, schema: pa.Schema) -> TombstoneDecoder | None:
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
    reader: KafkaReader
    targets: Targets
    schemas: Schemas
    """What the registries gave for the decoders."""
    flows: tuple[Flow, ...]

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Where the rows go, in the order of the file."""
        return self.targets.sinks

    @property
    def quarantines(self) -> tuple[Sink, ...]:
        """Where bad records go."""
        return self.targets.quarantines

    @property
    def lane(self) -> LaneChoice:
        """The lane: the frame where any flow needs it."""
        chosen = next((flow for flow in self.flows if flow.lane.lane == "frame"), self.flows[0])
        return replace(chosen.lane, reason=f"{chosen.name}: {chosen.lane.reason}") if chosen.name else chosen.lane

    @property
    def needs_sql(self) -> bool:
        """Whether some sink commits through Spark SQL."""
        return any(isinstance(sink, SqlSink) and sink.needs_sql for sink in self.sinks)

    @property
    def slot_sinks(self) -> list[SlotSink]:
        """The sinks that pin the number of slots."""
        return [sink for sink in (*self.sinks, *self.targets.topics) if isinstance(sink, SlotSink)]

    def reading(self, schemas: Schemas, *, frozen: bool = False) -> Pipeline:
        """The same pipeline and sinks, with decoders for other schemas."""
        flows = tuple(_flow(self.config, flow.config, self.targets, schemas, frozen) for flow in self.flows)
        return replace(self, schemas=schemas, flows=flows)


def build(config: cfg.PipelineConfig, schemas: Schemas | None = None) -> Pipeline:
    """Make the parts that a pipeline file names; the registries are asked for schemas that are not given."""
    source = config.source
    settings = KafkaSettings(source.brokers, cfg.reveal(source.options))
    targets = build_targets(config, settings)
    if schemas is None:
        with nothing_passes():
            schemas = ask_registries(config)
    return Pipeline(
        config=config,
        settings=settings,
        subscription=Subscription(source.topics or (), source.pattern, source.assign),
        reader=KafkaReader(settings),
        targets=targets,
        schemas=schemas,
        flows=tuple(_flow(config, flow, targets, schemas, frozen=False) for flow in cfg.flows(config)),
    )


def _flow(config: cfg.PipelineConfig, flow: cfg.Flow, targets: Targets, schemas: Schemas, frozen: bool) -> Flow:
    sinks = [config.sinks[index] for index in flow.sinks]
    made = [targets.sinks[index] for index in flow.sinks]
    delete_by = _delete_by(flow, sinks)
    topic = cfg.only_topic(flow.topics, config.source)
    decoder = build_decoder(flow, "drop" if delete_by else _tombstones(flow), topic, schemas, frozen)
    refuse_missing_columns(config, flow, decoder.schema)
    transforms = tuple(_transform(step) for step in flow.transforms if step is not None)
    if flow.where is not None:
        transforms = (Taken(flow.where), *transforms)
    computed, inlets = build_inlets(sinks, made)
    steps = (*transforms, *((computed,) if computed is not None else ()))
    return Flow(
        config=flow,
        decoder=decoder,
        transforms=transforms,
        computed=computed,
        inlets=inlets,
        deleting=tuple(sink for one, sink in zip(sinks, made, strict=True) if cfg.merges(one)) if delete_by else (),
        delete_by=delete_by,
        key=build_key(flow, topic, schemas, frozen) if delete_by else None,
        lane=choose_lane(decoder.schema, steps, config.lane),
    )


def choose_lane(schema: pa.Schema, transforms: Sequence[Transform], forced: Lane | None) -> LaneChoice:
    """The direct lane where every transform has an exact Arrow form; else the frame lane, and why."""
    reason = None
    for transform in transforms:
        why = transform.no_arrow_form(schema)
        if why is not None:
            where = "" if isinstance(transform, Computed | Taken) else f"{place_of(transform, transforms)}, "
            reason = f"{where}{transform!r}: {why}"
            break
        schema = transform.output(schema)
    if forced == "direct" and reason is not None:
        raise MissingError(
            "LANE_IMPOSSIBLE",
            "the file asks for `lane: direct`, which this pipeline cannot take",
            context={"because of": reason},
            hint="leave `lane` out, or change that transform",
        )
    if forced is not None:
        return LaneChoice(forced, "`lane` in the file says so")
    if reason is not None:
        return LaneChoice("frame", reason)
    return LaneChoice("direct", "every transform has an exact Arrow form" if transforms else "no transforms")


def as_nullable(schema: pa.Schema) -> pa.Schema:
    """Every column nullable, as Spark's own writers create tables: both lanes then make the same table."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _delete_by(flow: cfg.Flow, sinks: Sequence[cfg.SinkConfig]) -> tuple[str, ...]:
    """The keys of the sinks that merge, where tombstones delete there."""
    asked = getattr(flow.decode, "tombstones", "pass")
    keys = {tuple(getattr(sink, "keys", ())) for sink in sinks if cfg.merges(sink)}
    if asked not in (None, "delete") or len(keys) != 1:
        return ()
    return keys.pop()


def _tombstones(flow: cfg.Flow) -> Tombstones:
    asked = getattr(flow.decode, "tombstones", None)
    return asked if asked in ("pass", "drop") else "quarantine"


def _transform(step: cfg.TransformConfig) -> Transform:
    match step:
        case cfg.WhereConfig():
            return Where(step.where)
        case cfg.DeriveConfig():
            return Derive(step.derive)
        case cfg.RenameConfig():
            return Rename(step.rename)
        case cfg.DropConfig():
            return Drop(step.drop)
        case cfg.CastConfig():
            return Cast(step.cast)
        case cfg.DedupeConfig():
            return Dedupe(step.dedupe.keys)
        case cfg.SqlConfig():
            return Sql(step.sql)
