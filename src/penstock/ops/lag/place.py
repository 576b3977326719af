"""Where a pipeline stands: the offsets that every sink has, or where a first run would begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock.checkpoint import Offsets
from penstock.checkpoint.findings import findings_in, usable_ends
from penstock.config import PipelineConfig
from penstock.kafka import Cluster, LogBounds
from penstock.model import BatchToken, Guarantee, TopicPartition
from penstock.ops.checkpoint.look import Looked
from penstock.preflight.recreated import recreated_topics
from penstock.preflight.standings import Standing


@dataclass(frozen=True)
class Place:
    """One pipeline's place in the logs."""

    committed: Offsets | None
    """What all sinks have; none where nothing was ever begun."""
    positions: Offsets
    """What is read next, of every partition that the brokers have."""
    notes: tuple[str, ...] = ()


def place_of(seen: Looked, cluster: Callable[[], Cluster]) -> Place:
    """By the least of the sinks' tokens; before the first run by the file's `start`."""
    bounds = seen.brokers.bounds or {}
    if seen.files.begun is None and seen.files.committed is None and not seen.files.sources:
        first = {at: _start(seen.config, at.topic) for at in bounds}
        by_time = {at: when for at, when in first.items() if isinstance(when, datetime)}
        found = _offsets_at(by_time, cluster) if by_time else {}
        positions = {at: found[at] if at in found else _first(first[at], at, log) for at, log in bounds.items()}
        return Place(None, {at: min(positions[at], log.end) for at, log in bounds.items()}, _never_ran(seen))
    committed = committed_in(seen)
    gone = recreated_topics(seen.checkpoint.topic_ids(), dict(seen.brokers.topic_ids))
    # The offsets of a topic that was made again are not its own: all of it waits.
    committed = {at: offset for at, offset in committed.items() if at.topic not in gone}
    notes = [f"topic {topic} was deleted and made again: all of it waits" for topic in sorted(gone)]
    notes += [
        f"sink {one.sink} is at batch {token.batch_id}, behind batch {seen.done_before} of the checkpoint: lag is "
        "counted from what it has"
        for one in seen.standings
        if (token := _own(seen, one)) is not None and not one.sparse and token.batch_id < (seen.done_before or 0)
    ]
    return Place(committed, {at: committed.get(at, log.start) for at, log in bounds.items()}, tuple(notes))


def committed_in(seen: Looked) -> Offsets:
    """The least that any sink has; of one that keeps no token, or cannot be asked, what the checkpoint says."""
    done = seen.files.committed
    noted = usable_ends(seen.files, done) if done is not None else seen.starts(0)
    tokens = [_own(seen, one) for one in seen.standings if not one.sparse]
    held = [token.ends if token is not None else noted for token in tokens] or [noted]
    known = [ends for ends in held if ends is not None]
    if len(known) < len(held):
        blocking = (one for one in findings_in(seen.config.checkpoint, seen.files, seen.state) if one.blocks)
        finding = next(blocking, None)
        if finding is not None:
            raise finding.as_error()
        # It was whole a moment ago, or is again: what reads it now says what is wrong.
        return seen.checkpoint.ends(done) if done is not None else seen.checkpoint.starts(0)
    first, *others = known
    return {at: min(ends[at] for ends in known) for at in first if all(at in other for other in others)}


def _own(seen: Looked, one: Standing) -> BatchToken | None:
    """The token of this checkpoint's query that a sink holds."""
    token = one.token if one.guarantee is Guarantee.EXACTLY_ONCE and one.error is None else None
    return token if token is not None and token.query_id == seen.files.query_id else None


def _never_ran(seen: Looked) -> tuple[str, ...]:
    told = [
        f"sink {one.sink} holds batch {one.token.batch_id} of another checkpoint than {seen.config.checkpoint}, which "
        "is empty; a run would say what can be done"
        for one in seen.standings
        if one.token is not None and not one.sparse
    ]
    return (*told, "lag is counted from where a first run would begin")


def _start(config: PipelineConfig, topic: str) -> object:
    sources = [source for source in config.sources.values() if topic in (source.topics or ())]
    return (sources[0] if sources else config.source).start


def _first(start: object, at: TopicPartition, log: LogBounds) -> int:
    if isinstance(start, dict):
        return int(start.get(at.topic, {}).get(str(at.partition), log.start))
    return log.start if start == "earliest" else log.end


def _offsets_at(wanted: Mapping[TopicPartition, datetime], cluster: Callable[[], Cluster]) -> Offsets:
    """The first offsets at or behind these times; a partition that has none is left out."""
    brokers, found = cluster(), {}
    for when in set(wanted.values()):
        places = [at for at, one in wanted.items() if one == when]
        found.update({at: offset for at, offset in brokers.offsets_at(places, when).items() if offset >= 0})
    return found
