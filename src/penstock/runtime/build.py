"""From the pipeline file to its parts: the only place, with `targets`, where a `type:` becomes a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock import config as cfg
from penstock.config.arrow_types import parse_columns
from penstock.contracts import Decoder, Sink, SlotSink, SqlSink, Transform
from penstock.decoders import JsonDecoder, RawDecoder, TextDecoder, Tombstones
from penstock.errors import MissingError
from penstock.kafka import KafkaSettings, Subscription
from penstock.readers import KafkaReader
from penstock.runtime.inlet import Computed, Inlet
from penstock.runtime.targets import Targets, build_inlets, build_targets
from penstock.transforms import Cast, Dedupe, Derive, Drop, Rename, Sql, Where

Lane = Literal["direct", "frame"]


@dataclass(frozen=True)
class LaneChoice:
    """Which lane, and what decided it."""

    lane: Lane
    reason: str


@dataclass(frozen=True)
class Pipeline:
    """The parts of one pipeline, made but not opened: no connection, no JVM."""

    config: cfg.PipelineConfig
    settings: KafkaSettings
    subscription: Subscription
    reader: KafkaReader
    decoder: Decoder
    transforms: tuple[Transform, ...]
    computed: Computed | None
    inlets: tuple[Inlet, ...]
    targets: Targets
    delete_by: tuple[str, ...]
    """The keys by which tombstones delete; none where they do not."""
    lane: LaneChoice

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Where the rows go, in the order of the file."""
        return self.targets.sinks

    @property
    def quarantines(self) -> tuple[Sink, ...]:
        """Where bad records go."""
        return self.targets.quarantines

    @property
    def steps(self) -> tuple[Transform, ...]:
        """The transforms, and what the sinks have computed for them."""
        return (*self.transforms, *((self.computed,) if self.computed is not None else ()))

    @property
    def needs_sql(self) -> bool:
        """Whether some sink commits through Spark SQL."""
        return any(isinstance(sink, SqlSink) and sink.needs_sql for sink in self.sinks)

    @property
    def slot_sinks(self) -> list[SlotSink]:
        """The sinks that pin the number of slots."""
        return [sink for sink in (*self.sinks, *self.targets.topics) if isinstance(sink, SlotSink)]

    @property
    def schema(self) -> pa.Schema | None:
        """The columns that reach the inlets; `None` where only Spark can say."""
        schema = self.decoder.schema
        for transform in self.steps:
            if transform.no_arrow_form(schema) is not None:
                return None
            schema = transform.output(schema)
        return as_nullable(schema)


def build(config: cfg.PipelineConfig) -> Pipeline:
    """Make the parts that a pipeline file names."""
    source = config.source
    settings = KafkaSettings(source.brokers, cfg.reveal(source.options))
    delete_by = _delete_by(config)
    decoder = _decoder(config.decode, "drop" if delete_by else _tombstones(config.decode))
    transforms = tuple(_transform(step) for step in config.transforms)
    targets = build_targets(config, settings)
    computed, inlets = build_inlets(config.sinks, targets.sinks)
    steps = (*transforms, *((computed,) if computed is not None else ()))
    return Pipeline(
        config=config,
        settings=settings,
        subscription=Subscription(source.topics or (), source.pattern, source.assign),
        reader=KafkaReader(settings),
        decoder=decoder,
        transforms=transforms,
        computed=computed,
        inlets=inlets,
        targets=targets,
        delete_by=delete_by,
        lane=choose_lane(decoder.schema, steps, config.lane),
    )


def choose_lane(schema: pa.Schema, transforms: Sequence[Transform], forced: Lane | None) -> LaneChoice:
    """The direct lane where every transform has an exact Arrow form; else the frame lane, and why."""
    reason = None
    for number, transform in enumerate(transforms):
        why = transform.no_arrow_form(schema)
        if why is not None:
            where = "" if isinstance(transform, Computed) else f"transforms[{number}], "
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


def _delete_by(config: cfg.PipelineConfig) -> tuple[str, ...]:
    """The keys of the sinks that merge, where tombstones delete there."""
    asked = getattr(config.decode, "tombstones", "pass")
    keys = {tuple(getattr(sink, "keys", ())) for sink in config.sinks if cfg.merges(sink)}
    if asked not in (None, "delete") or len(keys) != 1:
        return ()
    return keys.pop()


def _tombstones(decode: cfg.DecodeConfig) -> Tombstones:
    asked = getattr(decode, "tombstones", None)
    return asked if asked in ("pass", "drop") else "quarantine"


def _decoder(decode: cfg.DecodeConfig, tombstones: Tombstones) -> Decoder:
    match decode:
        case cfg.JsonDecodeConfig():
            return JsonDecoder(
                parse_columns(decode.columns or ""),
                extra_fields=decode.extra_fields,
                extra_column=decode.extra_column,
                tombstones=tombstones,
                max_bytes=decode.max_bytes,
            )
        case cfg.TextDecodeConfig():
            return TextDecoder(decode.column, tombstones=tombstones, max_bytes=decode.max_bytes)
        case cfg.RawDecodeConfig():
            return RawDecoder()
    raise MissingError(
        "NOT_IN_THIS_VERSION",
        f"decode.format: {decode.format} is a valid definition, but this version cannot run it",
        hint="formats: json, text, raw",
    )


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
