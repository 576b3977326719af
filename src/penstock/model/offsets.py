"""Where records are: topic partitions and half-open offset ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `[start, end)` of one topic partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start > self.end:
            raise ValueError(f"offset range runs backwards: {self}")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}-{self.end}"

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that this range lies in."""
        return TopicPartition(self.topic, self.partition)


def lag_of(end: int, position: int) -> int:
    """The offsets of a partition that wait. Never below zero: end and position are seen at different moments."""
    return max(0, end - position)


def lags_of(ends: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets that wait in each partition whose position is known."""
    return {at: lag_of(end, positions[at]) for at, end in ends.items() if at in positions}
