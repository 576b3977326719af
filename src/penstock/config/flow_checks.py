"""The steps of a flow, one after the other: what is wrong with them, and the columns that reach its sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config.ddl import Column, read_type
from penstock.config.fields import COORDINATES, ComputingStep
from penstock.config.flows import Flow
from penstock.config.problems import Path
from penstock.config.scope import Report, Scope
from penstock.config.stateful import JoinConfig, WatermarkConfig
from penstock.config.transforms import CastConfig, DedupeConfig, TransformConfig, WhereConfig, remembers

COORDINATES_TYPE = read_type("STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>")
Decoded = Mapping[Path, Sequence[Column] | None]
"""What the decoder at each place of the file gives; None where only a registry knows."""


def follow(decoded: Decoded, flow: Flow, report: Report) -> Scope:
    """Go through the steps of a flow, report what is wrong, and return the columns at its end.

    A transform that is None was refused already: after it nothing is known.
    """
    _check_order(flow, report)
    if flow.sides:
        sides = {}
        for side in flow.sides:
            sides[side.name] = _decoded(decoded.get(side.decode_path), report)
            _check_steps(side.transforms, sides[side.name], side.path)
        scope = Scope(report, needs_quarantine=[path for side in sides.values() for path in side.needs_quarantine])
        first, *others = flow.transforms or (None,)
        if isinstance(first, JoinConfig):
            first.check_sides(sides, scope, ("transforms", 0, "join"))
        _check_steps(others, scope, flow.path, first=1)
        return scope
    scope = _decoded(decoded.get(flow.decode_path), report)
    if flow.where is not None and not flow.otherwise:
        scope.check_expression(flow.where, (*flow.path, "where"))
    _check_steps(flow.transforms, scope, flow.path)
    return scope


def _decoded(columns: Sequence[Column] | None, report: Report) -> Scope:
    if columns is None:
        return Scope(report)
    return Scope(report, {**{column.name: column.type for column in columns}, COORDINATES: COORDINATES_TYPE})


def _check_steps(steps: Sequence[TransformConfig | None], scope: Scope, at: Path, first: int = 0) -> None:
    for index, step in enumerate(steps, first):
        if step is None:
            scope.types, scope.watermark = None, scope.watermark or ""  # It may have been one.
            continue
        path: Path = (*at, "transforms", index, step.kind)
        if isinstance(step, ComputingStep) and step.on_error == "quarantine":
            scope.check_quarantined((*path[:-1], "on_error"))
        step.check(scope, path)
        scope.decoded = scope.decoded and isinstance(step, WhereConfig | DedupeConfig | CastConfig)


def _check_order(flow: Flow, report: Report) -> None:
    """What keeps rows of one batch only cannot come before what remembers them."""
    last = max((at for at, step in enumerate(flow.transforms) if remembers(step)), default=-1)
    for at, step in enumerate(flow.transforms):
        path: Path = (*flow.path, "transforms", at)
        if isinstance(step, DedupeConfig) and not remembers(step) and at < last:
            message = "dedupe in each batch cannot come before a step that remembers rows from batch to batch"
            report((*path, "dedupe"), message, hint="add within: ..., or move it behind", at_key=True)
        if isinstance(step, JoinConfig) and (at > 0 or not flow.sides):
            message = "a join is the first step of a pipeline with sources"
            hint = "write two sources: instead of source:, each with its decode and its watermark"
            if flow.sides:
                hint = "move the steps before it into the transforms of a source, or behind it"
            report((*path, "join"), message, hint=hint, at_key=True)
        if isinstance(step, WatermarkConfig) and last < 0 and None not in flow.transforms:
            message = "no step remembers rows from batch to batch, so nothing here needs a watermark"
            hint = "remove it, or add a window, dedupe within or stateful"
            report((*path, "watermark"), message, hint=hint, at_key=True)
    if flow.sides and not any(isinstance(step, JoinConfig | None) for step in flow.transforms):
        message = f"nothing joins the sources {' and '.join(side.name for side in flow.sides)}"
        hint = "begin with - join: {left: ..., right: ..., on: ..., within: ...}"
        report(("transforms",), message, hint=hint, at_key=True)
    for side in flow.sides:
        for at, step in enumerate(side.transforms):
            if remembers(step) or isinstance(step, DedupeConfig):
                message = f"{step.kind} is not possible in a source that is joined"
                hint = "do it in a pipeline of its own that writes a topic, and join that one"
                report((*side.path, "transforms", at, step.kind), message, hint=hint, at_key=True)
    if flow.path and last >= 0:
        step = flow.transforms[last]
        message = f"{step.kind if step else 'state'} is not possible in a route: the routes of a pipeline are one query"
        report((*flow.path, "transforms", last), message, hint="give it a pipeline of its own", at_key=True)
