"""What has to hold of the ways of the rows: of routes, and of the steps of a flow, one after the other.

Every topic takes a route and every sink belongs to one; the columns that reach a flow's sinks are known by its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config.ddl import Column, read_type
from penstock.config.decode import ByTopicDecodeConfig
from penstock.config.fields import COORDINATES, ComputingStep
from penstock.config.flows import Flow, same_topics
from penstock.config.parts import Parts
from penstock.config.pipeline import RouteConfig
from penstock.config.problems import Path, did_you_mean, suggest
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


Routes = Sequence[tuple[int, RouteConfig]]
"""The routes with their places in the file."""


def check_routes(parts: Parts) -> None:
    """Report everything that is wrong with the routes."""
    if parts.written("sources"):
        return
    if not parts.written("routes"):
        if isinstance(parts.decode, ByTopicDecodeConfig) and len(parts.decode.by_topic) > 1:
            message = "the topics have decoders of their own, and no route says which sinks each goes to"
            parts.report(
                ("decode", "by_topic"), message, hint="add routes: [{topics: [...], sinks: [...]}]", at_key=True
            )
        return
    if parts.written("transforms"):
        message = "with routes every route has its own transforms"
        parts.report(("transforms",), message, hint="move them into the routes", at_key=True)
    for index, route in enumerate(parts.routes):
        if route is not None:
            _check_route(parts, route, ("routes", index))
    routes = [(index, route) for index, route in enumerate(parts.routes) if route is not None]
    if routes and len(routes) == len(parts.routes):
        _check_sinks(parts, routes)
        _check_topics(parts, routes)
        _check_otherwise(parts, routes)


def _check_route(parts: Parts, route: RouteConfig, path: Path) -> None:
    topics = _topics(parts)
    for index, topic in enumerate(route.topics or ()):
        here = (*path, "topics", index)
        if topics is not None and topic not in topics:
            message, context = f'topic "{topic}" is not read by this pipeline', [f"topics: {', '.join(topics)}"]
            parts.report(here, message, context=context, hint=did_you_mean(topic, topics))
        elif topic in (route.topics or ())[:index]:
            parts.report(here, f'topic "{topic}" is here twice')
    names = [sink.name for sink in parts.sinks if sink is not None]
    for index, name in enumerate(route.sinks):
        if name not in names and None not in parts.sinks:
            message, context = f'there is no sink "{name}"', [f"sinks: {', '.join(names)}"]
            parts.report((*path, "sinks", index), message, context=context, hint=did_you_mean(name, names))
        elif name in route.sinks[:index]:
            parts.report((*path, "sinks", index), f'the sink "{name}" is here twice')
    if isinstance(parts.decode, ByTopicDecodeConfig):
        by_topic = parts.decode.by_topic
        decoders = {by_topic[topic] for topic in route.topics or by_topic if topic in by_topic}
        if len(decoders) > 1:
            message = "a route has one set of columns, and these topics are decoded each in their own way"
            parts.report(path, message, hint="give each of the topics a route of its own", at_key=True)


def _check_sinks(parts: Parts, routes: Routes) -> None:
    names = [sink.name if sink is not None else "" for sink in parts.sinks]
    meant = {suggest(name, names) for _, route in routes for name in route.sinks if name not in names}
    for index, sink in enumerate(parts.sinks):
        taking = [place for place, route in routes if sink is not None and sink.name in route.sinks]
        if sink is not None and not taking and sink.name not in meant:
            message = f'no route ends in the sink "{sink.name}"'
            parts.report(("sinks", index, "name"), message, hint="name it in a route's sinks, or remove it")
        elif len(taking) > 1:
            message = f'the sink "{names[index]}" belongs to routes[{taking[0]}], and a sink has one set of columns'
            parts.report(("routes", taking[1], "sinks"), message, hint="give each route its own sink")


def _check_topics(parts: Parts, routes: Routes) -> None:
    for place, route in routes:
        shared = next((i for i, other in routes if i < place and _overlap(route, other)), None)
        if shared is not None:
            message = f"routes[{shared}] reads some of these topics, and not the same ones"
            parts.report(("routes", place), message, hint="two routes share all their topics or none", at_key=True)
    if any(route.topics is None for _, route in routes):
        return
    topics = _topics(parts) or ()
    taken = {topic for _, route in routes for topic in route.topics or ()}
    meant = {suggest(topic, topics) for topic in taken if topic not in topics}
    for topic in topics:
        if topic not in taken | meant:
            parts.report(("routes",), f'no route takes topic "{topic}"', hint="add one, or do not read it", at_key=True)


def _check_otherwise(parts: Parts, routes: Routes) -> None:
    for place, route in routes:
        if not route.otherwise:
            continue
        if route.where is not None:
            message = "otherwise takes what no where takes, so it has none of its own"
            parts.report(("routes", place, "where"), message, hint="remove where or otherwise", at_key=True)
            continue
        others = [other for _, other in routes if other is not route and same_topics(other, route)]
        if all(other.where is None for other in others):
            message = "otherwise takes what no where takes, and no other route of these topics has one"
            parts.report(("routes", place, "otherwise"), message, hint="remove otherwise", at_key=True)


def _overlap(one: RouteConfig, other: RouteConfig) -> bool:
    if one.topics is None or other.topics is None:
        return one.topics is not other.topics
    return bool(set(one.topics) & set(other.topics)) and not same_topics(one, other)


def _topics(parts: Parts) -> tuple[str, ...] | None:
    """The topics that the source reads; None where only the brokers know."""
    if parts.source is None or parts.source.pattern is not None:
        return None
    return parts.source.topics or tuple(parts.source.assign or ())
