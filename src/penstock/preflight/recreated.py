"""Detects topics that were deleted and re-created under the same name, by their topic ids.

Offsets alone are not enough: once the new log has grown past the checkpoint, its first records would be skipped
silently. The id of every topic is pinned when it is first read, kept with the checkpoint and in the targets' positions,
and compared before and after every read. With `on_data_loss: record` the next batch starts at the beginning of the new
log, and the rest of the old one is a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.assembly.targets import Targets
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.findings import Finding, from_error
from penstock.contracts import Sink
from penstock.errors import PenstockError, TerminalError, TransientError, transient_is_fatal
from penstock.kafka import Cluster, KafkaSettings
from penstock.model import BatchToken
from penstock.preflight.loss import ranges_of_batch
from penstock.preflight.standings import standings


def recreated_topics(noted: dict[str, str], now: dict[str, str]) -> frozenset[str]:
    """The topics whose ids are others than those noted."""
    return frozenset(topic for topic, one in now.items() if topic in noted and noted[topic] != one)


@dataclass
class TopicIds:
    """The ids of a checkpoint's topics, in one run."""

    checkpoint: SparkCheckpoint
    cluster: Cluster
    on_data_loss: str
    recreated: frozenset[str] = frozenset()
    """The topics that were re-created, until a batch has started where they start."""
    _now: dict[str, str] = field(default_factory=dict)
    """The ids of the topics that this run reads."""
    _former: dict[str, str] = field(default_factory=dict)
    """The topic ids that the current batch was planned for and that no longer exist."""
    _stateful: bool = False

    def compare(self, topics: set[str], *, stateful: bool) -> None:
        """Check the topics before the first batch; refuse a re-created one, unless gaps are recorded."""
        self._stateful = stateful
        with transient_is_fatal():
            self._now = self.cluster.topic_ids(topics)
        noted = self.checkpoint.topic_ids()
        if self.checkpoint.last_begun() is not None or self.checkpoint.initial() is not None:
            self.recreated = recreated_topics(noted, self._now)
        if self.recreated and (stateful or self.on_data_loss == "fail"):
            raise topic_recreated(self.recreated, noted, self._now, stateful=stateful)
        self._note(noted)

    @property
    def now(self) -> Mapping[str, str]:
        """The ids of the topics that this run reads."""
        return self._now

    def look_again(self) -> None:
        """The same for a topic that was re-created during the run."""
        self.compare(set(self._now), stateful=self._stateful)

    def forget_open_batch(self, targets: Targets) -> None:
        """Drop a batch that was started on the old topics if no sink has any part of it: Spark starts it again.

        Its ends mean nothing in the new logs, which may be shorter.
        """
        if not self.recreated:
            return
        begun = self.checkpoint.last_begun()
        if begun is None or begun == self.checkpoint.last_committed():
            return
        query_id, held = self.checkpoint.query_id(), [one.newest for one in standings(targets)]
        if not any(token is not None and (token.query_id, token.batch_id) == (query_id, begun) for token in held):
            self.checkpoint.remove(f"offsets/{begun}")

    def of_batch(
        self, batch_id: int, token: BatchToken, sinks: Sequence[Sink]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The topics that a batch must read from the beginning, and those that have none of its records left.

        `token` is the common part of all tokens. A batch that a sink has with its own offsets was read before the
        topics were re-created.
        """
        self._former = {}
        if not self.recreated:
            return self.recreated, frozenset()
        batch = ranges_of_batch(self.checkpoint.starts(batch_id), self.checkpoint.ends(batch_id))
        plain = replace(token, batch_id=batch_id, ranges=batch.ranges)
        positions = [sink.position() for sink in sinks]
        if any(position is not None and position.last == plain for position in positions):
            noted = self.checkpoint.topic_ids()
            self._former = {topic: noted[topic] for topic in self.recreated if topic in noted}
            return frozenset(), self.recreated
        return self.recreated, frozenset()

    def of_token(self, token: BatchToken) -> dict[str, str]:
        """The current ids of a batch's topics. Raises if one was re-created since it was first read.

        A topic that appeared during the run, by a pattern, is pinned here, before its first record is read.
        """
        topics = {r.topic for r in token.ranges}
        now = self.cluster.topic_ids(topics)
        new = {topic: one for topic, one in now.items() if topic not in self._now}
        known = self._now
        if new:
            noted = self.checkpoint.topic_ids()
            known = {**known, **{topic: noted.get(topic, one) for topic, one in new.items()}}
        changed = recreated_topics(known, now)
        if changed:
            raise self._changed(changed, known, now)
        if new:
            self._now = known
            self._note(noted)
        return {topic: self._former.get(topic, known[topic]) for topic in topics if topic in known}

    def _changed(self, changed: frozenset[str], known: dict[str, str], now: dict[str, str]) -> PenstockError:
        self._now = known
        error: PenstockError = topic_recreated(changed, known, now, stateful=self._stateful)
        if self.on_data_loss == "record" and not self._stateful:
            error = TransientError(
                error.code, error.summary, context=error.context, hint="the run starts over with the new topic"
            )
        return error

    def settle(self, recreated: frozenset[str]) -> None:
        """A batch from the beginning of these topics is committed: from now on their offsets count."""
        if recreated:
            self.recreated = frozenset()
            self._note({})

    def _note(self, noted: dict[str, str]) -> None:
        known = {**self._now, **{topic: one for topic, one in noted.items() if topic in self.recreated}}
        if {**noted, **known} != noted:
            self.checkpoint.note_topic_ids({**noted, **known})


def topic_recreated(
    topics: frozenset[str], noted: dict[str, str], now: dict[str, str], *, stateful: bool
) -> TerminalError:
    """The error for offsets that are of other topics of the same names."""
    way_out = (
        "set `on_data_loss: record` to read the new topic from the beginning and record the gap\n"
        "then: penstock gaps FILE"
    )
    if stateful:
        way_out = (
            "the state belongs to the old topic: start over with a new checkpoint\n"
            "penstock checkpoint fork FILE --to PATH --offsets earliest"
        )
    return TerminalError(
        "TOPIC_RECREATED",
        f"{', '.join(sorted(topics))}: re-created since it was first read; the offsets of the "
        "checkpoint belong to the old topic",
        context={
            topic: f"id {noted[topic]} in the checkpoint, {now[topic]} on the brokers" for topic in sorted(topics)
        },
        hint=way_out,
    )


@dataclass(frozen=True)
class SameTopics:
    """In a task, before its slot commits: raises if a topic was re-created since the batch was planned."""

    settings: KafkaSettings
    topic_ids: Mapping[str, str]

    def __call__(self) -> None:
        """Ask the brokers."""
        changed = recreated_topics(dict(self.topic_ids), Cluster(self.settings).topic_ids(self.topic_ids))
        if changed:
            raise TransientError(
                "TOPIC_RECREATED",
                f"{', '.join(sorted(changed))}: re-created while the batch was read",
                hint="the batch is planned again",
            )


def topic_findings(noted: dict[str, str], now: dict[str, str], on_data_loss: str, *, stateful: bool) -> list[Finding]:
    """Topics of the same name with other ids: the offsets are of a topic that is gone."""
    recreated = recreated_topics(noted, now)
    if not recreated:
        return []
    error = topic_recreated(recreated, noted, now, stateful=stateful)
    means = "The same offset is a different record now. Continuing would skip the first records of the new topic."
    return [from_error(error, blocks=stateful or on_data_loss == "fail", means=means)]
