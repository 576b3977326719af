"""What a target holds of one pipeline and sink, and whether a batch may be committed onto it.

*A batch may only be committed onto the position it starts from.* A position is stored in the target, changes only in
the atomic step that makes rows visible, and belongs to the pipeline and the sink, whichever query wrote it. `decide`
is the only place that compares a batch with a position: the commit, the start of a run, `checkpoint verify`, `repair`
and the exhaustive model in `tests/model` all call it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from penstock.model.offsets import OffsetRange, TopicPartition
from penstock.model.token import BatchToken, Rule


class Verdict(Enum):
    """What a batch is to a target. Everything but the first two is a contradiction, named by its error code."""

    NEXT = "next"
    COMMITTED = "committed"
    TARGET_WENT_BACK = "TARGET_WENT_BACK"
    FENCED = "FENCED"
    CHECKPOINT_WENT_BACK = "CHECKPOINT_WENT_BACK"
    TOKEN_MISMATCH = "SINK_TOKEN_MISMATCH"
    HELD = "REPLAY_UNFINISHED"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a target stands."""

    last: BatchToken
    """The batch that wrote the position."""
    next: Mapping[TopicPartition, int]
    """The next offset of every partition ever committed, including those missing from `last`."""
    topic_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Every id that a topic of this name has had, the current one last."""
    number: int = 1
    """The number of commits of this pipeline and sink."""

    @classmethod
    def first(cls, token: BatchToken) -> Position:
        """The position after the first commit to a target."""
        return cls(token, token.ends, {topic: (one,) for topic, one in token.topic_ids.items()})

    @classmethod
    def nothing_left(cls, lost: Position) -> Position:
        """The position of a target that went back to before its first commit, of which `lost` is still known."""
        return cls(BatchToken(lost.last.pipeline, "", -1, ()), dict.fromkeys(lost.next, 0), lost.topic_ids, 0)

    @classmethod
    def after(cls, held: Position | None, token: BatchToken, least: int = 0) -> Position:
        """The position once the batch is committed onto `held`: the union of every end ever committed.

        Its number is at least `least`: a target that went back and was caught up has had that many commits.
        """
        if held is None:
            return replace(cls.first(token), number=max(1, least))
        recreated = {topic for topic, one in token.topic_ids.items() if one not in held.topic_ids.get(topic, (one,))}
        kept = {at: end for at, end in held.next.items() if at.topic not in recreated}
        ends = token.ends
        if token.rule in (Rule.RECORDS, Rule.FORWARD):
            ends = {at: max(end, kept.get(at, 0)) for at, end in ends.items()}
        ids = dict(held.topic_ids)
        for topic, one in token.topic_ids.items():
            if one not in ids.get(topic, ()):
                ids[topic] = (*ids.get(topic, ()), one)
        carried = (*held.last.quarantine.items(), *token.quarantine.items())
        marks = {name: max(number for other, number in carried if other == name) for name, _ in carried}
        return cls(replace(token, quarantine=marks), {**kept, **ends}, ids, max(held.number + 1, least))

    @classmethod
    def claimed(cls, held: Position | None, token: BatchToken, reason: str) -> Position:
        """The same place under the next number: a run that still knows the number before can land nothing any more.

        A target that holds nothing stands at the start of the batch then.
        """
        if held is None:
            nothing = tuple(replace(r, end=r.start) for r in token.ranges)
            start = replace(token, query_id=reason.replace(" ", "-"), ranges=nothing, rule=Rule.MOVES, reason=reason)
            return cls.first(start)
        return replace(held, last=replace(held.last, reason=reason), number=held.number + 1)

    def offset_of(self, at: TopicPartition, topic_id: str | None) -> int | None:
        """The next offset of a partition; none where it was never committed, or only of a topic that is gone."""
        known = self.topic_ids.get(at.topic, ())
        if topic_id is not None and known and topic_id != known[-1]:
            return None
        return self.next.get(at)

    def missing(self, token: BatchToken) -> list[OffsetRange]:
        """The ranges between the position and the start of a batch."""
        found = []
        for r in token.ranges:
            held = self.offset_of(r.topic_partition, token.topic_ids.get(r.topic))
            held = 0 if held is None and r.topic_partition in token.seen else held
            if held is not None and held < r.start:
                found.append(OffsetRange(r.topic, r.partition, held, r.start))
        return found

    def describe(self, limit: int = 8) -> str:
        """The position for an error message."""
        shown = ", ".join(f"{at} {offset}" for at, offset in sorted(self.next.items())[:limit])
        rest = len(self.next) - limit
        where = shown + (f" and {rest} more" if rest > 0 else "") or "no partition"
        if self.last.batch_id < 0:
            return f"nothing; it had up to {where} before"
        return f"up to {where}, by query {self.last.query_id[:8]}, batch {self.last.batch_id}"

    def to_json(self) -> str:
        """The position as one line of JSON: the token of the last batch, and what goes beyond it."""
        ends = self.last.ends
        more = [[at.topic, at.partition, o] for at, o in sorted(self.next.items()) if ends.get(at) != o]
        body = {**self.last.to_body(), "number": self.number}
        if more:
            body["next"] = more
        former = {topic: list(ids) for topic, ids in sorted(self.topic_ids.items())}
        if former != {topic: [one] for topic, one in self.last.topic_ids.items()}:
            body["topics"] = former
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Position:
        """The position that `to_json` wrote. What versions before 0.8 stored is the token alone."""
        return cls.from_body(json.loads(text))

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Position:
        """The same for JSON that is parsed already."""
        last = BatchToken.from_body(body)
        more = {TopicPartition(topic, partition): offset for topic, partition, offset in body.get("next", ())}
        ids = {topic: (one,) for topic, one in last.topic_ids.items()}
        ids |= {topic: tuple(each) for topic, each in body.get("topics", {}).items()}
        return cls(last, {**last.ends, **more}, ids, int(body.get("number", 0)))

    @classmethod
    def united(cls, newest: Position, older: Sequence[Position]) -> Position:
        """A position whose writer stored the last batch alone, with the partitions that only `older` ones name."""
        found = dict(newest.next)
        for one in older:
            found = {**one.next, **found}
        return replace(newest, next=found)


def decide(held: Position | None, token: BatchToken, least: int = 0) -> Verdict:
    """What a batch is to a target that stands at `held`; none where it holds nothing of this pipeline and sink.

    `least` is the number of commits that the target is known to have had: of a quarantine, the number that the sinks'
    positions carry; of a sink, what this run has seen. A target with fewer went back.
    """
    if (held.number if held is not None else 0) < least and token.rule not in (Rule.MOVES, Rule.HOLDS):
        return Verdict.TARGET_WENT_BACK
    if held is None:
        return Verdict.NEXT
    last = held.last
    if (last.query_id, last.batch_id) == (token.query_id, token.batch_id):
        return Verdict.COMMITTED if last.ranges == token.ranges else Verdict.TOKEN_MISMATCH
    if last.rule is Rule.HOLDS and token.rule is Rule.RECORDS:
        return Verdict.HELD
    if token.rule in (Rule.RECORDS, Rule.MOVES, Rule.HOLDS):
        return Verdict.NEXT
    before = after = False
    covered = True
    for r in token.ranges:
        topic_id = token.topic_ids.get(r.topic)
        if topic_id is not None and topic_id in held.topic_ids.get(r.topic, ())[:-1]:
            return Verdict.FENCED
        offset = held.offset_of(r.topic_partition, topic_id)
        if offset is None:
            covered = False
            before |= r.topic_partition in token.seen
            continue
        before |= offset < r.start
        after |= offset > r.start
        covered &= offset >= r.end
    if after:
        if last.query_id != token.query_id:
            return Verdict.FENCED
        # The same query has committed this batch and later ones: Spark runs it again to rebuild its state.
        return Verdict.COMMITTED if covered and last.batch_id > token.batch_id else Verdict.CHECKPOINT_WENT_BACK
    if before and token.rule is not Rule.FORWARD:
        return Verdict.TARGET_WENT_BACK
    return Verdict.NEXT


def redrives_of(pipeline: str) -> str:
    """The name under which the targets keep the position of a pipeline's redrives."""
    return f"{pipeline}.redrive"


def replay_of(pipeline: str, replay: str) -> str:
    """The name under which the targets keep the position of one replay of a pipeline."""
    return f"{pipeline}.replay-{replay}"


def live_name(pipeline: str) -> str:
    """The pipeline that such a name belongs to."""
    return pipeline.partition(".replay-")[0].removesuffix(".redrive")
