"""The batch token: what identifies a batch to a sink. A token seen again is a no-op."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.model.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class BatchToken:
    """The pipeline, its query id, the batch id, and the offset range of each topic partition."""

    pipeline: str
    query_id: str
    batch_id: int
    ranges: tuple[OffsetRange, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", tuple(sorted(self.ranges)))

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """Where each partition of the batch begins."""
        return {r.topic_partition: r.start for r in self.ranges}

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Where the next batch begins, for each partition."""
        return {r.topic_partition: r.end for r in self.ranges}

    @property
    def label(self) -> str:
        """A short name for file and staging-table names: safe characters, distinct for each batch."""
        return f"{self.query_id[:8]}-{self.batch_id}"

    def describe_ranges(self, limit: int = 8) -> str:
        """The ranges for an error message, cut after `limit`."""
        shown = ", ".join(str(r) for r in self.ranges[:limit])
        rest = len(self.ranges) - limit
        return shown + (f" and {rest} more" if rest > 0 else "") or "none"

    def to_json(self) -> str:
        """The token as one line of JSON, the form that sinks store."""
        return json.dumps(
            {
                "pipeline": self.pipeline,
                "query_id": self.query_id,
                "batch_id": self.batch_id,
                "ranges": [[r.topic, r.partition, r.start, r.end] for r in self.ranges],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> BatchToken:
        """The token that `to_json` wrote."""
        body = json.loads(text)
        ranges = tuple(OffsetRange(*parts) for parts in body["ranges"])
        return cls(body["pipeline"], body["query_id"], int(body["batch_id"]), ranges)
