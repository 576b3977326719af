"""Several sources of one pipeline, for a join: each with its own decoder and steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from penstock.config.decode import ByTopicDecodeConfig, FormatConfig
from penstock.config.source import KafkaSourceConfig
from penstock.config.transforms import TransformConfig


class NamedSourceConfig(KafkaSourceConfig):
    """One of several sources."""

    decode: FormatConfig = Field(discriminator="format", description="How bytes become columns.")
    transforms: Annotated[tuple[TransformConfig, ...], Field(strict=False)] = Field(
        default=(), description="What happens to the rows before they are joined; the last is the watermark."
    )


Sources = Mapping[str, NamedSourceConfig]


def whole(sources: Mapping[str, NamedSourceConfig | None]) -> Sources | None:
    """The sources, where there are some and none of them was refused."""
    found = {name: source for name, source in sources.items() if source is not None}
    return found if found and len(found) == len(sources) else None


def as_one(sources: Sources) -> tuple[KafkaSourceConfig, ByTopicDecodeConfig]:
    """All the sources as one, which is what the brokers, the checkpoint and the sinks see of them."""
    first = next(iter(sources.values()))
    topics = tuple(topic for source in sources.values() for topic in source.topics or ())
    shared = {name: getattr(first, name) for name in KafkaSourceConfig.model_fields}
    start = first.start
    if any(isinstance(source.start, dict) for source in sources.values()):
        start = {
            topic: at
            for source in sources.values()
            if isinstance(source.start, dict)
            for topic, at in source.start.items()
        }
    merged = KafkaSourceConfig.model_construct(**{**shared, "topics": topics, "start": start})
    by_topic = {topic: source.decode for source in sources.values() for topic in source.topics or ()}
    return merged, ByTopicDecodeConfig.model_construct(by_topic=by_topic)
