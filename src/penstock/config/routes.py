"""What has to hold of the routes: every topic takes one, every sink belongs to one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.decode import ByTopicDecodeConfig
from penstock.config.flows import same_topics
from penstock.config.parts import Parts
from penstock.config.pipeline import RouteConfig
from penstock.config.problems import Path, did_you_mean, suggest

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
