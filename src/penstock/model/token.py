"""The batch token: what identifies a batch to a target, and what is stored there with its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.model.offsets import OffsetRange, TopicPartition


class Rule(Enum):
    """How a batch must fit the position of a target."""

    FOLLOWS = "follows"
    """A stream or replay: it starts where the position ends."""
    FORWARD = "forward"
    """A quarantine, which has no commit for a batch without bad records: it starts there or later."""
    RECORDS = "records"
    """A redrive: single records, in no order. Whether the target has one is decided per record."""
    MOVES = "moves"
    """A position moved on purpose: it has no rows, and may start anywhere."""
    HOLDS = "holds"
    """A replay in place is about to replace rows: it has no rows itself; redrives wait until it ends."""


@dataclass(frozen=True, slots=True)
class BatchToken:
    """The pipeline, its query id, the batch id, and the offset range of each topic partition."""

    pipeline: str
    query_id: str
    batch_id: int
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The topic ids assigned by the brokers; a re-created topic has a new one."""
    quarantine: Mapping[str, int] = field(default_factory=dict, compare=False)
    """For each quarantine of the pipeline: its latest commit number when this batch is committed."""
    rule: Rule = field(default=Rule.FOLLOWS, compare=False)
    seen: frozenset[TopicPartition] = field(default=frozenset(), compare=False)
    """The partitions that the query has read before this batch; a target that lacks one was set back. Not stored."""
    reason: str | None = field(default=None, compare=False)
    """Why a position is moved on purpose, for the target's history."""

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

    def to_body(self) -> dict[str, Any]:
        """The token as it is stored: a JSON object, without what is not set."""
        body: dict[str, Any] = {
            "pipeline": self.pipeline,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "ranges": [[r.topic, r.partition, r.start, r.end] for r in self.ranges],
        }
        if self.topic_ids:
            body["topic_ids"] = dict(sorted(self.topic_ids.items()))
        if self.quarantine:
            body["quarantine"] = dict(sorted(self.quarantine.items()))
        if self.rule is not Rule.FOLLOWS:
            body["rule"] = self.rule.value
        if self.reason is not None:
            body["reason"] = self.reason
        return body

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> BatchToken:
        """The token that `to_body` gave, or one that an earlier version wrote."""
        return cls(
            body["pipeline"],
            body["query_id"],
            int(body["batch_id"]),
            tuple(OffsetRange(*parts) for parts in body["ranges"]),
            dict(body.get("topic_ids", {})),
            dict(body.get("quarantine", {})),
            Rule(body.get("rule", Rule.FOLLOWS.value)),
            reason=body.get("reason"),
        )

    def to_json(self) -> str:
        """The token as one line of JSON."""
        return json.dumps(self.to_body(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> BatchToken:
        """The token that `to_json` wrote."""
        return cls.from_body(json.loads(text))
