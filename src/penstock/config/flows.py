"""The flows of a pipeline: one, or one for each route; and what has to hold of them.

Every topic takes a route and every sink belongs to one; the columns that reach a flow's sinks follow from its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.config.ddl import Column, read_type
from penstock.config.decode import ByTopicDecodeConfig, FormatConfig
from penstock.config.fields import COORDINATES, ComputingStep
from penstock.config.pipeline import Parts, PipelineConfig, RouteConfig
from penstock.config.problems import Path, did_you_mean, suggest
from penstock.config.scope import Scope
from penstock.config.source import KafkaSourceConfig
from penstock.config.stateful import JoinConfig, WatermarkConfig
from penstock.config.transforms import CastConfig, DedupeConfig, TransformConfig, WhereConfig, remembers
from penstock.config.yaml_source import Document


@dataclass(frozen=True, slots=True)
class Side:
    """One of the sources that a flow joins."""

    name: str
    topics: tuple[str, ...]
    decode: FormatConfig
    transforms: tuple[TransformConfig, ...]

    @property
    def path(self) -> Path:
        """Its path in the file."""
        return ("sources", self.name)

    @property
    def decode_path(self) -> Path:
        """The path of its decoder in the file."""
        return (*self.path, "decode")


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow: which records it reads, how they are decoded, the steps, and the sinks."""

    path: Path
    """Its path in the file: that of its route, or empty."""
    topics: tuple[str, ...] | None
    """The topics whose records take it; None for all."""
    decode: FormatConfig | None
    decode_path: Path
    where: str | None
    """The condition of its route, or what `otherwise` comes to."""
    otherwise: bool
    transforms: tuple[TransformConfig | None, ...]
    sinks: tuple[int, ...]
    """Their places in the file."""
    sides: tuple[Side, ...] = ()
    """The sources that it joins, where there are several; `decode` is then the first one's."""

    @property
    def decoders(self) -> tuple[tuple[FormatConfig | None, Path, tuple[str, ...] | None], ...]:
        """Each decoder with its place in the file and its topics."""
        if not self.sides:
            return ((self.decode, self.decode_path, self.topics),)
        return tuple((side.decode, side.decode_path, side.topics) for side in self.sides)

    @property
    def name(self) -> str:
        """Its name in messages; empty where there is only one."""
        return "".join(f"[{part}]" if isinstance(part, int) else part for part in self.path)


def flows(pipeline: PipelineConfig | Parts) -> tuple[Flow, ...]:
    """All flows of the pipeline."""
    if pipeline.sources:
        sides = tuple(
            Side(name, source.topics or (), source.decode, source.transforms)
            for name, source in pipeline.sources.items()
            if source is not None
        )
        if not sides:
            return ()
        first, everywhere = sides[0], tuple(range(len(pipeline.sinks)))
        transforms = tuple(pipeline.transforms)
        return (Flow((), None, first.decode, first.decode_path, None, False, transforms, everywhere, sides),)
    if not pipeline.routes:
        decode, path = _decoder(pipeline, None)
        everywhere = tuple(range(len(pipeline.sinks)))
        return (Flow((), None, decode, path, None, False, tuple(pipeline.transforms), everywhere),)
    found = []
    for index, route in enumerate(pipeline.routes):
        if route is None:
            continue
        topics = tuple(sorted(set(route.topics))) if route.topics is not None else None
        decode, path = _decoder(pipeline, topics)
        sinks = tuple(i for i, sink in enumerate(pipeline.sinks) if sink is not None and sink.name in route.sinks)
        where = _otherwise(pipeline.routes, route) if route.otherwise else route.where
        found.append(Flow(("routes", index), topics, decode, path, where, route.otherwise, route.transforms, sinks))
    return tuple(found)


def only_topic(topics: Sequence[str] | None, source: KafkaSourceConfig | None) -> str | None:
    """The only topic of a decoder, whose name gives the subject; None if there are several."""
    if topics is None and source is not None:
        topics = source.named_topics
    return topics[0] if topics is not None and len(topics) == 1 else None


def same_topics(one: RouteConfig, other: RouteConfig) -> bool:
    """Whether two routes take their rows from the same records."""
    return set(one.topics or ()) == set(other.topics or ())


def _decoder(pipeline: PipelineConfig | Parts, topics: tuple[str, ...] | None) -> tuple[FormatConfig | None, Path]:
    decode = pipeline.decode
    if not isinstance(decode, ByTopicDecodeConfig):
        return decode, ("decode",)
    first, *others = topics or decode.by_topic
    path = ("decode", "by_topic", first)
    same = all(decode.by_topic.get(other) == decode.by_topic.get(first) for other in others)
    return (decode.by_topic.get(first), path) if same else (None, path[:2])


def _otherwise(routes: Sequence[RouteConfig | None], route: RouteConfig) -> str | None:
    """What no other route of the same topics takes."""
    taken = [
        f"coalesce(({other.where}), false)"
        for other in routes
        if other is not None and other is not route and other.where is not None and same_topics(other, route)
    ]
    return f"NOT ({' OR '.join(taken)})" if taken else None


COORDINATES_TYPE = read_type("STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>")
Decoded = Mapping[Path, Sequence[Column] | None]
"""The output of each decoder, by its path; None if only a registry knows."""


def follow(decoded: Decoded, flow: Flow, file: Document) -> Scope:
    """Check the steps of a flow, report problems, and return its output columns.

    A transform that is None was already refused: after it nothing is known.
    """
    _check_order(flow, file)
    if flow.sides:
        sides = {}
        for side in flow.sides:
            sides[side.name] = _decoded(decoded.get(side.decode_path), file)
            _check_steps(side.transforms, sides[side.name], side.path)
        scope = Scope(file, needs_quarantine=[path for side in sides.values() for path in side.needs_quarantine])
        first, *others = flow.transforms or (None,)
        if isinstance(first, JoinConfig):
            first.check_sides(sides, scope, ("transforms", 0, "join"))
        _check_steps(others, scope, flow.path, first=1)
        return scope
    scope = _decoded(decoded.get(flow.decode_path), file)
    if flow.where is not None and not flow.otherwise:
        scope.check_expression(flow.where, (*flow.path, "where"))
    _check_steps(flow.transforms, scope, flow.path)
    return scope


def _decoded(columns: Sequence[Column] | None, file: Document) -> Scope:
    if columns is None:
        return Scope(file)
    return Scope(file, {**{column.name: column.type for column in columns}, COORDINATES: COORDINATES_TYPE})


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


def _check_order(flow: Flow, file: Document) -> None:
    """What keeps rows of one batch only cannot come before what remembers them."""
    last = max((at for at, step in enumerate(flow.transforms) if remembers(step)), default=-1)
    for at, step in enumerate(flow.transforms):
        path: Path = (*flow.path, "transforms", at)
        if isinstance(step, DedupeConfig) and not remembers(step) and at < last:
            message = "dedupe within a batch cannot come before a stateful step"
            file.report((*path, "dedupe"), message, hint="add within: ..., or move it after that step", at_key=True)
        if isinstance(step, JoinConfig) and (at > 0 or not flow.sides):
            message = "a join is the first step of a pipeline with sources"
            hint = "write two sources: instead of source:, each with its own decode and watermark"
            if flow.sides:
                hint = "move the steps before it into the transforms of a source, or after the join"
            file.report((*path, "join"), message, hint=hint, at_key=True)
        if isinstance(step, WatermarkConfig) and last < 0 and None not in flow.transforms:
            message = "the watermark is unused: no step is stateful"
            hint = "remove it, or add a window, dedupe within or stateful step"
            file.report((*path, "watermark"), message, hint=hint, at_key=True)
    if flow.sides and not any(isinstance(step, JoinConfig | None) for step in flow.transforms):
        message = f"nothing joins the sources {' and '.join(side.name for side in flow.sides)}"
        hint = "start with - join: {left: ..., right: ..., on: ..., within: ...}"
        file.report(("transforms",), message, hint=hint, at_key=True)
    for side in flow.sides:
        for at, step in enumerate(side.transforms):
            if remembers(step) or isinstance(step, DedupeConfig):
                message = f"{step.kind} is not possible in a joined source"
                hint = "use a separate pipeline that writes a topic, and join that topic"
                file.report((*side.path, "transforms", at, step.kind), message, hint=hint, at_key=True)
    if flow.path and last >= 0:
        step = flow.transforms[last]
        message = (
            f"{step.kind if step else 'state'} is not possible in a route: all routes of a pipeline share one query"
        )
        file.report((*flow.path, "transforms", last), message, hint="use a separate pipeline", at_key=True)


Routes = Sequence[tuple[int, RouteConfig]]
"""The routes with their places in the file."""


def check_routes(parts: Parts) -> None:
    """Report everything that is wrong with the routes."""
    if parts.file.written("sources"):
        return
    if not parts.file.written("routes"):
        if isinstance(parts.decode, ByTopicDecodeConfig) and len(parts.decode.by_topic) > 1:
            message = "topics have their own decoders, but no routes assign them to sinks"
            parts.file.report(
                ("decode", "by_topic"), message, hint="add routes: [{topics: [...], sinks: [...]}]", at_key=True
            )
        return
    if parts.file.written("transforms"):
        message = "with routes, each route has its own transforms"
        parts.file.report(("transforms",), message, hint="move them into the routes", at_key=True)
    for index, route in enumerate(parts.routes):
        if route is not None:
            _check_route(parts, route, ("routes", index))
    routes = [(index, route) for index, route in enumerate(parts.routes) if route is not None]
    if routes and len(routes) == len(parts.routes):
        _check_sinks(parts, routes)
        _check_topics(parts, routes)
        _check_otherwise(parts, routes)


def _check_route(parts: Parts, route: RouteConfig, path: Path) -> None:
    topics = parts.source.named_topics if parts.source is not None else None
    for index, topic in enumerate(route.topics or ()):
        here = (*path, "topics", index)
        if topics is not None and topic not in topics:
            message, context = f'topic "{topic}" is not read by this pipeline', [f"topics: {', '.join(topics)}"]
            parts.file.report(here, message, context=context, hint=did_you_mean(topic, topics))
        elif topic in (route.topics or ())[:index]:
            parts.file.report(here, f'duplicate topic "{topic}"')
    names = [sink.name for sink in parts.sinks if sink is not None]
    for index, name in enumerate(route.sinks):
        if name not in names and None not in parts.sinks:
            message, context = f'there is no sink "{name}"', [f"sinks: {', '.join(names)}"]
            parts.file.report((*path, "sinks", index), message, context=context, hint=did_you_mean(name, names))
        elif name in route.sinks[:index]:
            parts.file.report((*path, "sinks", index), f'the sink "{name}" is here twice')
    if isinstance(parts.decode, ByTopicDecodeConfig):
        by_topic = parts.decode.by_topic
        decoders = {by_topic[topic] for topic in route.topics or by_topic if topic in by_topic}
        if len(decoders) > 1:
            message = "a route has one set of columns, but these topics have different decoders"
            parts.file.report(path, message, hint="give each of the topics its own route", at_key=True)


def _check_sinks(parts: Parts, routes: Routes) -> None:
    names = [sink.name if sink is not None else "" for sink in parts.sinks]
    meant = {suggest(name, names) for _, route in routes for name in route.sinks if name not in names}
    for index, sink in enumerate(parts.sinks):
        taking = [place for place, route in routes if sink is not None and sink.name in route.sinks]
        if sink is not None and not taking and sink.name not in meant:
            message = f'no route ends in the sink "{sink.name}"'
            parts.file.report(("sinks", index, "name"), message, hint="name it in a route's sinks, or remove it")
        elif len(taking) > 1:
            message = f'the sink "{names[index]}" belongs to routes[{taking[0]}], but a sink has one set of columns'
            parts.file.report(("routes", taking[1], "sinks"), message, hint="give each route its own sink")


def _check_topics(parts: Parts, routes: Routes) -> None:
    for place, route in routes:
        shared = next((i for i, other in routes if i < place and _overlap(route, other)), None)
        if shared is not None:
            message = f"routes[{shared}] reads some of these topics, but not all"
            parts.file.report(
                ("routes", place), message, hint="two routes must share all of their topics or none", at_key=True
            )
    if any(route.topics is None for _, route in routes):
        return
    topics = (parts.source.named_topics if parts.source is not None else None) or ()
    taken = {topic for _, route in routes for topic in route.topics or ()}
    meant = {suggest(topic, topics) for topic in taken if topic not in topics}
    for topic in topics:
        if topic not in taken | meant:
            parts.file.report(
                ("routes",), f'no route takes topic "{topic}"', hint="add one, or stop reading the topic", at_key=True
            )


def _check_otherwise(parts: Parts, routes: Routes) -> None:
    for place, route in routes:
        if not route.otherwise:
            continue
        if route.where is not None:
            message = "otherwise takes the rows that match no where, so it has no where itself"
            parts.file.report(("routes", place, "where"), message, hint="remove where or otherwise", at_key=True)
            continue
        others = [other for _, other in routes if other is not route and same_topics(other, route)]
        if all(other.where is None for other in others):
            message = "otherwise takes the rows that match no where, but no other route of these topics has one"
            parts.file.report(("routes", place, "otherwise"), message, hint="remove otherwise", at_key=True)


def _overlap(one: RouteConfig, other: RouteConfig) -> bool:
    if one.topics is None or other.topics is None:
        return one.topics is not other.topics
    return bool(set(one.topics) & set(other.topics)) and not same_topics(one, other)
