"""From the pipeline file to its parts: the only place where a `type:` becomes a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock import config as cfg
from penstock.config.arrow_types import parse_columns
from penstock.contracts import Decoder, Sink, Transform
from penstock.decoders import JsonDecoder, RawDecoder, TextDecoder
from penstock.errors import MissingError
from penstock.kafka import KafkaSettings, Subscription
from penstock.quarantine import Quarantine, RefusingQuarantine
from penstock.readers import KafkaReader
from penstock.sinks import DeltaSink
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
    sinks: tuple[Sink, ...]
    quarantine: Sink
    gaps: Sink | None
    lane: LaneChoice

    @property
    def schema(self) -> pa.Schema | None:
        """The columns that reach the sinks; `None` where only Spark can say."""
        schema = self.decoder.schema
        for transform in self.transforms:
            if transform.no_arrow_form(schema) is not None:
                return None
            schema = transform.output(schema)
        return as_nullable(schema)


def build(config: cfg.PipelineConfig) -> Pipeline:
    """Make the parts that a pipeline file names."""
    source = config.source
    settings = KafkaSettings(source.brokers, cfg.reveal(source.options))
    decoder = _decoder(config.decode)
    transforms = tuple(_transform(step) for step in config.transforms)
    return Pipeline(
        config=config,
        settings=settings,
        subscription=Subscription(source.topics or (), source.pattern, source.assign),
        reader=KafkaReader(settings),
        decoder=decoder,
        transforms=transforms,
        sinks=tuple(_sink(config.name, sink) for sink in config.sinks),
        quarantine=_quarantine(config),
        gaps=_gaps(config),
        lane=choose_lane(decoder.schema, transforms, config.lane),
    )


def choose_lane(schema: pa.Schema, transforms: Sequence[Transform], forced: Lane | None) -> LaneChoice:
    """The direct lane where every transform has an exact Arrow form; else the frame lane, and why."""
    reason = None
    for number, transform in enumerate(transforms):
        why = transform.no_arrow_form(schema)
        if why is not None:
            reason = f"transforms[{number}], {transform!r}: {why}"
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


def _decoder(decode: cfg.DecodeConfig) -> Decoder:
    match decode:
        case cfg.JsonDecodeConfig():
            return JsonDecoder(
                parse_columns(decode.columns or ""),
                extra_fields=decode.extra_fields,
                extra_column=decode.extra_column,
                tombstones=decode.tombstones,
                max_bytes=decode.max_bytes,
            )
        case cfg.TextDecodeConfig():
            return TextDecoder(decode.column, tombstones=decode.tombstones, max_bytes=decode.max_bytes)
        case cfg.RawDecodeConfig():
            return RawDecoder()
    raise _not_yet(f"decode.format: {decode.format}")


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


def _sink(pipeline: str, sink: cfg.SinkConfig) -> Sink:
    if isinstance(sink, cfg.DeltaSinkConfig) and sink.mode == "append":
        return DeltaSink(
            pipeline,
            sink.name,
            sink.path,
            partition_by=sink.partition_by,
            evolve=sink.evolve,
            keep_coordinates=sink.coordinates,
        )
    mode = f" with mode: {sink.mode}" if isinstance(sink, cfg.DeltaSinkConfig) else ""
    raise _not_yet(f"sink {sink.name}, type: {sink.type}{mode}")


def _quarantine(config: cfg.PipelineConfig) -> Sink:
    quarantine = config.quarantine
    if quarantine is None:
        return RefusingQuarantine()
    if quarantine.topic is not None or quarantine.table is None:
        raise _not_yet("quarantine.topic")
    sink = DeltaSink(config.name, "quarantine", quarantine.table, keep_coordinates=False)
    return Quarantine(sink, config.name)


def _gaps(config: cfg.PipelineConfig) -> Sink | None:
    if config.source.on_data_loss == "fail":
        return None
    assert config.quarantine is not None and config.quarantine.table is not None
    return DeltaSink(config.name, "gaps", f"{config.quarantine.table}_gaps", keep_coordinates=False)


def _not_yet(what: str) -> MissingError:
    return MissingError(
        "NOT_IN_THIS_VERSION",
        f"{what} is a valid definition, but this version cannot run it",
        hint="formats: json, text, raw; sinks: delta with mode: append; quarantine: table",
    )
