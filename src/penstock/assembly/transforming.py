"""Builds transforms from the steps of the file.

The columns that steps use are checked against those of the decoders: for a file with a `schema:` when it is loaded,
here if they come from a registry, with the same messages and locations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from penstock import config as cfg
from penstock.assembly.tables import PendingRows, Tables
from penstock.config.arrow_types import columns_of, parse_columns
from penstock.config.flows import follow
from penstock.config.problems import Path as PathInFile
from penstock.config.yaml_source import Document
from penstock.contracts import Transform
from penstock.errors import transient_is_fatal
from penstock.model import COORDINATES
from penstock.transforms import (
    Cast,
    Dedupe,
    DedupeWithin,
    Derive,
    Drop,
    Enrich,
    ExpectRule,
    Explode,
    Flatten,
    Join,
    JoinSide,
    Mask,
    MaskRule,
    Rename,
    Sql,
    Watermark,
    Where,
    Window,
    enrich_steps,
    expect_steps,
)
from penstock.transforms.step import OnError
from penstock.transforms.streaming import Streaming


@dataclass(frozen=True)
class StepContext:
    """The context that steps are built with."""

    folder: Path
    """The folder of the user's modules."""
    topics: tuple[str, ...] | None
    tables: Tables
    times: Mapping[str, str]
    """The column of the event time of each source that is joined."""
    on_error: OnError
    """Default for rows that a step fails on: quarantined if possible."""


@dataclass(frozen=True)
class PlacedStep:
    """A transform and its place in the file."""

    place: str
    transform: Transform


def build_transforms(
    steps: Sequence[cfg.TransformConfig | None], around: StepContext, prefix: str = ""
) -> tuple[PlacedStep, ...]:
    """The transforms of some steps, in order; a step may become several."""
    found: list[PlacedStep] = []
    time: str | None = None
    for index, step in enumerate(steps):
        if step is None:
            continue
        if isinstance(step, cfg.WatermarkConfig):
            time = step.watermark.column
        place = f"{prefix}transforms[{index}]" + (f" {step.name}" if step.name is not None else "")
        found += [PlacedStep(place, transform) for transform in _transforms(step, around, time)]
    return tuple(found)


def watermark_column(steps: Sequence[cfg.TransformConfig | None]) -> str | None:
    """The column of the watermark among some steps."""
    return next((step.watermark.column for step in steps if isinstance(step, cfg.WatermarkConfig)), None)


def _transforms(step: cfg.TransformConfig, around: StepContext, time: str | None) -> tuple[Transform, ...]:
    match step:
        case cfg.ExpectConfig():
            rules = [ExpectRule(name, rule.rule, rule.action) for name, rule in step.expect.items()]
            return expect_steps(rules, step.on_error or around.on_error)
        case cfg.EnrichConfig():
            return _enrich(step, around.tables)
    return (_transform(step, around, time),)


def _transform(step: cfg.TransformConfig, around: StepContext, time: str | None) -> Transform:
    folder = str(around.folder)
    match step:
        case cfg.WhereConfig():
            return Where(step.where, step.on_error or around.on_error)
        case cfg.DeriveConfig():
            return Derive(step.derive, step.on_error or around.on_error)
        case cfg.RenameConfig():
            return Rename(step.rename)
        case cfg.DropConfig():
            return Drop(step.drop)
        case cfg.CastConfig():
            return Cast(step.cast, step.on_error or around.on_error)
        case cfg.ExplodeConfig():
            exploded = step.explode
            return Explode(exploded.column, exploded.into, exploded.position, exploded.keep_empty)
        case cfg.FlattenConfig():
            return Flatten(step.flatten.columns, step.flatten.separator, step.flatten.depth)
        case cfg.MaskConfig():
            return Mask({name: _mask(how) for name, how in step.mask.items()})
        case cfg.DedupeConfig():
            if step.dedupe.within is None:
                return Dedupe(step.dedupe.keys)
            return DedupeWithin(step.keys, time or "", step.dedupe.within)
        case cfg.MapArrowConfig():
            from penstock.transforms.map_arrow import MapArrow

            mapped = step.map_arrow
            columns = parse_columns(mapped.columns) if mapped.columns is not None else None
            return MapArrow(folder, mapped.function, mapped.on_error, columns)
        case cfg.PythonConfig():
            from penstock.transforms.map_arrow import PythonFrame

            return PythonFrame(folder, step.python)
        case cfg.SqlConfig():
            return Sql(step.sql)
        case cfg.WatermarkConfig():
            return Watermark(step.watermark.column, step.watermark.delay, step.watermark.late)
        case cfg.WindowConfig():
            one = step.window
            return Window(time or "", one.aggregates, one.by, one.size, one.slide, one.gap, one.emit, around.topics)
        case cfg.JoinConfig():
            return _join(step, around)
        case cfg.StatefulConfig():
            from penstock.transforms.stateful import Stateful

            own = step.stateful
            return Stateful(folder, own.cls, own.keys, parse_columns(own.columns), own.time, own.ttl, own.rows)
    raise AssertionError(f"{step.kind} is built with its neighbours")


def _enrich(step: cfg.EnrichConfig, tables: Tables) -> tuple[Transform, ...]:
    """The join with a table: one over Arrow where its rows fit in memory."""
    one = step.enrich
    with transient_is_fatal():
        schema, fits = tables.schema(one.table), tables.may_fit(one.table)
    first, *others = enrich_steps(one.table, one.on, one.take, schema, one.on_miss, one.on_duplicate)
    assert isinstance(first, Enrich)
    return (first.with_rows(PendingRows()) if fits else first, *others)


def _join(step: cfg.JoinConfig, around: StepContext) -> Join:
    settings = step.join
    before, after = settings.bounds or (timedelta(), timedelta())
    left, right = (JoinSide(name, around.times[name]) for name in (settings.left, settings.right))
    return Join(left, right, settings.on, before, after, settings.type)


def _mask(how: str | cfg.MaskSettings) -> MaskRule:
    if not isinstance(how, cfg.MaskSettings):
        return MaskRule("hash" if how == "hash" else "redact")
    if how.hash is not None:
        return MaskRule("hash", how.hash.get_secret_value())
    return MaskRule("keep_last", None, how.keep_last or 0)


def refuse_missing_columns(config: cfg.PipelineConfig, flow: cfg.Flow, decoded: Mapping[PathInFile, pa.Schema]) -> None:
    """Raise `InvalidDefinition` with everything that the steps of a flow name and that is not there."""
    file = Document(config.positions)
    columns = {
        path: columns_of(pa.schema([field for field in schema if field.name != COORDINATES]))
        for path, schema in decoded.items()
    }
    follow(columns, flow, file)
    if file.problems:
        raise cfg.InvalidDefinition(file.problems)


def step_output(schema: pa.Schema, step: Transform) -> pa.Schema | None:
    """The output columns of a step, or None if only Spark knows."""
    if step.no_arrow_form(schema) is None:
        return step.output(schema)
    return step.known_output(schema) if isinstance(step, Streaming) else None


def steps_output(schema: pa.Schema, steps: Sequence[Transform]) -> pa.Schema | None:
    """The output columns of some steps, or None if only Spark knows."""
    found: pa.Schema | None = schema
    for step in steps:
        found = step_output(found, step) if found is not None else None
    return found
