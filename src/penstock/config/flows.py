"""The ways of the rows through a pipeline: one, or one for each route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config.decode import ByTopicDecodeConfig, FormatConfig
from penstock.config.parts import Parts
from penstock.config.pipeline import PipelineConfig, RouteConfig
from penstock.config.problems import Path
from penstock.config.source import KafkaSourceConfig
from penstock.config.transforms import TransformConfig


@dataclass(frozen=True, slots=True)
class Side:
    """One of the sources that a flow joins."""

    name: str
    topics: tuple[str, ...]
    decode: FormatConfig
    transforms: tuple[TransformConfig, ...]

    @property
    def path(self) -> Path:
        """Where it stands in the file."""
        return ("sources", self.name)

    @property
    def decode_path(self) -> Path:
        """Where its decoder stands in the file."""
        return (*self.path, "decode")


@dataclass(frozen=True, slots=True)
class Flow:
    """One way: which records, how they are decoded, what happens to the rows, and to which sinks they go."""

    path: Path
    """Where it stands in the file: nowhere, or at its route."""
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
        """How it is told from the others; empty where there are none."""
        return "".join(f"[{part}]" if isinstance(part, int) else part for part in self.path)


def flows(pipeline: PipelineConfig | Parts) -> tuple[Flow, ...]:
    """Every way of the rows."""
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
    """The one topic that a decoder is for, whose name gives the subject; None where there are several."""
    if topics is None and source is not None:
        topics = source.topics or tuple(source.assign or ())
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
