"""Do the checkpoint, the brokers and the sinks agree? Findings that need more than the checkpoint's own files.

Each sink's own token says which batch it holds. They agree where every sink is at the last batch committed, or, while
a batch is open, at that one. A sink beyond the checkpoint would call new rows seen: they would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.findings import AFRESH, REPAIR, RESTORE, Finding, usable_ends
from penstock.checkpoint.logs import CheckpointFiles, read_files
from penstock.contracts import Sink, SlotSink
from penstock.errors import PenstockError
from penstock.kafka import LogBounds
from penstock.kafka.topics import TopicAdmin
from penstock.model import BatchToken, Guarantee, TopicPartition
from penstock.quarantine import RefusingQuarantine
from penstock.runtime.recreated import recreated_topics, topic_recreated
from penstock.runtime.targets import Targets

_SHOWN = 8


@dataclass(frozen=True)
class Standing:
    """What one sink's own token says."""

    sink: str
    guarantee: Guarantee
    token: BatchToken | None
    torn: str | None
    """How the slots of a Kafka sink stand whose last batch is not whole."""
    error: str | None = None
    """Why it could not be asked."""
    begun: BatchToken | None = None
    """Of a torn sink: the newest batch that some slot holds."""
    sparse: bool = False
    """A quarantine, and the like: it keeps no token of a batch that has nothing for it."""
    taken_back: PenstockError | None = None
    """What the sink would say to the next batch of its token's query, where batches of it were taken back."""

    @property
    def holds(self) -> BatchToken | None:
        """The newest batch of which it has anything."""
        return self.begun or self.token


class HasTargets(Protocol):
    """A pipeline, as far as its sinks go."""

    @property
    def targets(self) -> Targets:
        """Every sink."""
        ...


def standings(pipeline: HasTargets) -> list[Standing]:
    """Ask every sink for its own token, all at once; no JVM. The sinks come first, then what may be sparse."""
    targets = pipeline.targets
    refused = [sink for sinks in targets.rejects.values() for sink in sinks]
    gaps = [targets.gaps] if targets.gaps is not None else []
    others = [one for one in (*targets.quarantines, *refused, *gaps) if not isinstance(one, RefusingQuarantine)]
    asked = [*((sink, False) for sink in targets.sinks), *((sink, True) for sink in others)]
    if not asked:
        return []
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda one: _standing(*one), asked))


def sink_findings(
    checkpoint: SparkCheckpoint, standings: Sequence[Standing], *, committed: int | None = None
) -> list[Finding]:
    """Hold the sinks' tokens of this checkpoint's query against its batches.

    Under a running stream `committed` is the last batch that was committed before the sinks were asked; -1 for none.
    """
    files = read_files(checkpoint.path)
    done = files.committed if committed is None else committed if committed >= 0 else None
    return compare_sinks(checkpoint.path, files, standings, done)


def compare_sinks(
    path: str, files: CheckpointFiles, standings: Sequence[Standing], committed: int | None
) -> list[Finding]:
    """The same for files that were looked at already."""
    found: list[Finding] = []
    for one in standings:
        if one.error is not None:
            found.append(_unreachable(one))
        if one.guarantee is not Guarantee.EXACTLY_ONCE or one.error is not None or files.query_id is None:
            continue
        held = one.holds
        if held is None:
            if committed is not None and not one.sparse:
                found.append(_empty(one, committed))
        elif held.query_id == files.query_id:
            mine = [*_compared(path, files, one, held, committed, standings)]
            if not mine and one.taken_back is not None:
                mine = [from_error(one.taken_back, means=_TAKEN_BACK)]
            found += mine
    return found


_TAKEN_BACK = (
    "The checkpoint agrees with the table as it is now, but the table remembers later batches of the same query: it "
    "would not take others under their numbers."
)


def log_findings(
    position: Offsets,
    bounds: Mapping[TopicPartition, LogBounds],
    on_data_loss: str,
    *,
    open_ends: Offsets | None = None,
) -> list[Finding]:
    """Hold where the next batch begins (and where one that is open ends) against the logs that the file reads."""
    lost: dict[str, dict[str, str]] = {}
    for at, offset in sorted(position.items()):
        log, end = bounds.get(at), max(offset, (open_ends or {}).get(at, offset))
        if log is None:
            lost.setdefault("PARTITION_GONE", {})[f"{at} from {offset}"] = "not at the brokers, or not read by the file"
        elif offset < log.start:
            lost.setdefault("OFFSETS_BEFORE_LOG", {})[f"{at} {offset}"] = f"the log holds {log.start}-{log.end}"
        elif end > log.end:
            lost.setdefault("OFFSETS_BEYOND_LOG", {})[f"{at} {end}"] = f"the log holds {log.start}-{log.end}"
    records = on_data_loss == "record"
    return [
        Finding(
            code,
            not records,
            f"{len(where)} partition{'s' if len(where) > 1 else ''}: {_SAID[code][0]}",
            _cut(where),
            f"{_SAID[code][1]} {_RECORDS if records else ''}".strip(),
            "" if records else _SAID[code][2],
        )
        for code, where in lost.items()
    ]


def partition_findings(
    path: str,
    files: CheckpointFiles,
    standings: Sequence[Standing],
    bounds: Mapping[TopicPartition, LogBounds],
    recreated: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Partitions that the file reads, and that a batch left out which had been read before.

    Spark knows of them no more, and takes them for new ones: it would read them from their beginning, once more.
    """
    begun = files.begun
    now = usable_ends(files, begun) if begun is not None else None
    if begun is None or now is None:
        return []
    known: Offsets = {}
    for batch in sorted(files.offsets):
        known |= {at: end for at, end in (usable_ends(files, batch) or {}).items() if at.topic not in recreated}
    left_out = {at: end for at, end in sorted(known.items()) if at in bounds and at not in now}
    if not left_out:
        return []
    where = _cut(
        {f"{at} from {end}": f"the log holds {bounds[at].start}-{bounds[at].end}" for at, end in left_out.items()}
    )
    if files.committed is None or files.committed < begun:
        held = [one.holds for one in standings]
        if any(token is not None and (token.query_id, token.batch_id) == (files.query_id, begun) for token in held):
            return []
        return [
            Finding(
                "PARTITION_LEFT_OUT",
                True,
                f"checkpoint {path}: batch {begun} was begun without {len(left_out)} of its partitions",
                where,
                "They were not in the file then, or not at the brokers, and now they are. Carried out as it is, the "
                "batch would leave them behind, and the next would read them from their beginning.",
                REPAIR,
            )
        ]
    spec = ",".join(f"{at.topic}:{at.partition}={end}" for at, end in sorted({**known, **now}.items()) if at in bounds)
    return [
        Finding(
            "PARTITION_BACK",
            True,
            f"{len(left_out)} partition{'s' if len(left_out) > 1 else ''} that the last batches left out "
            f"{'are' if len(left_out) > 1 else 'is'} read again",
            where,
            "A run would read them from their beginning: what was read of them before would come twice.",
            "to go on where each was left (or with 0, where a partition is another one than then):\n"
            f"penstock checkpoint fork FILE --to PATH --offsets {spec}\n"
            "then point `checkpoint:` at PATH, and run",
        )
    ]


def topic_findings(noted: dict[str, str], now: dict[str, str], on_data_loss: str, *, stateful: bool) -> list[Finding]:
    """Topics of the same name with other ids: the offsets are of a topic that is gone."""
    recreated = recreated_topics(noted, now)
    if not recreated:
        return []
    error = topic_recreated(recreated, noted, now, stateful=stateful)
    means = "The same offset is another record now. Going on from it would skip the first records of the new topic."
    return [from_error(error, blocks=stateful or on_data_loss == "fail", means=means)]


def from_error(error: PenstockError, *, blocks: bool = True, means: str = "A run would stop at it.") -> Finding:
    """What a check of a run raises, as a finding."""
    return Finding(error.code, blocks, error.summary, error.context, means, error.hint or "")


_RECORDS = "With `on_data_loss: record` a run goes on, and writes down what is missing."
_RECORD_IT = (
    "where the records are gone for good: set `on_data_loss: record` in the source and run; every gap is written\n"
    "down: penstock gaps FILE"
)
_SAID = {
    "OFFSETS_BEFORE_LOG": (
        "the checkpoint stands before the beginning of the log",
        "Retention removed records that were not read yet.",
        _RECORD_IT,
    ),
    "OFFSETS_BEYOND_LOG": (
        "the checkpoint stands beyond the end of the log",
        "The topic was re-created or cut, or its brokers lost records; for a moment also after a broker was lost.",
        f"look again in two minutes, where a broker was lost: penstock checkpoint verify FILE\n{_RECORD_IT}",
    ),
    "PARTITION_GONE": (
        "the checkpoint has offsets of partitions that are not read any more",
        "The topic was deleted or re-created with fewer partitions, or taken out of the file.",
        f"where the file was changed: put the topic back into source.topics\n{_RECORD_IT}",
    ),
}


def _standing(sink: Sink, sparse: bool) -> Standing:
    try:
        token = sink.last_commit()
        torn = sink.torn() if isinstance(sink, SlotSink) else None
        begun = _newest_of_any_slot(sink) if torn is not None else None
    except PenstockError as error:
        return Standing(sink.name, sink.guarantee, None, None, f"{error.code} {error.line}", sparse=sparse)
    # A Kafka sink in its first batch tells of the batch before, which there is not.
    token = token if token is not None and token.batch_id >= 0 else None
    taken_back = _refusal(sink, token) if token is not None and not isinstance(sink, SlotSink) else None
    return Standing(sink.name, sink.guarantee, token, torn, begun=begun, sparse=sparse, taken_back=taken_back)


def _refusal(sink: Sink, token: BatchToken) -> PenstockError | None:
    """What the sink has against its own newest token, if anything."""
    try:
        sink.holds(token)
    except PenstockError as error:
        return error
    return None


def _newest_of_any_slot(sink: Sink) -> BatchToken | None:
    from penstock.sinks.kafka import KafkaSink
    from penstock.sinks.kafka.markers import read_markers
    from penstock.sinks.kafka.slots import newest_in_any

    if not isinstance(sink, KafkaSink):
        return None
    facts = TopicAdmin(sink.settings).describe([sink.markers]).get(sink.markers)
    there = range(facts.partitions if facts is not None else 0)
    return newest_in_any(read_markers(sink.name, sink.settings, sink.markers, there))


def _compared(
    path: str,
    files: CheckpointFiles,
    one: Standing,
    held: BatchToken,
    done: int | None,
    standings: Sequence[Standing],
) -> Iterable[Finding]:
    batch, begun = held.batch_id, files.begun
    sides = {"checkpoint": _batches(begun, done), f"sink {one.sink}": f"batch {batch}, {held.describe_ranges()}"}
    newest = files.newest
    if newest is None or batch > newest:
        yield Finding(
            "SINK_AHEAD",
            True,
            f"sink {one.sink} holds batch {batch}, which checkpoint {path} has not begun",
            sides,
            "The checkpoint went back: a file of it was lost, or an older copy put in place. A run would give the "
            "batch other offsets, and the sink would call it seen: its rows would be lost.",
            f"{REPAIR}\n{RESTORE}\n{AFRESH}",
        )
        return
    whole = one.token.batch_id if one.token is not None and one.token.query_id == held.query_id else -1
    if done is not None and whole < done and not one.sparse:
        yield Finding(
            "SINK_BEHIND",
            True,
            f"sink {one.sink} ends at batch {whole}, and batch {done} is committed"
            if whole >= 0
            else f"sink {one.sink} has no whole batch, and batch {done} is committed",
            sides,
            "The table was restored, or the database put back from a copy: what came between is not in it, and a run "
            "would not bring it again.",
            _ways_behind(one, standings),
        )
        return
    planned = next((token.ends for token in files.again if token.batch_id == batch), None)
    ends = planned if planned is not None else files.offsets[batch].ends if batch in files.offsets else None
    if ends is not None and ends != held.ends:
        yield Finding(
            "SINK_TOKEN_MISMATCH",
            True,
            f"sink {one.sink} holds batch {batch} with other offsets than checkpoint {path}",
            {"checkpoint": _places(held.starts, ends), f"sink {one.sink}": held.describe_ranges()},
            "The checkpoint is of another past than the sink: edited by hand, or put together from two copies.",
            f"{RESTORE}\n{AFRESH}",
        )


def _ways_behind(one: Standing, standings: Sequence[Standing]) -> str:
    """All sinks at one place: go on from there. Else the one sink alone has to be filled."""
    undo = "put the table back to what it was, or:\n"
    exact = [s for s in standings if s.guarantee is Guarantee.EXACTLY_ONCE and not s.sparse]
    places = {tuple(sorted(s.token.ends.items())) if s.token is not None else None for s in exact}
    if len(places) == 1 and one.token is not None:
        return f"{undo}point `checkpoint:` at a new folder, then: penstock run FILE --resume-from-table"
    begin = "earliest" if one.token is None else "the offsets where it ends (above)"
    return (
        f"{undo}give the sink another `name:` in the file, so that it begins anew with the next batch; then\n"
        f"penstock run FILE\n"
        f"penstock replay FILE --sink NEW_NAME --from ... --to ...    (from {begin} to the checkpoint's)"
    )


def _unreachable(one: Standing) -> Finding:
    return Finding(
        "SINK_UNREACHABLE",
        True,
        f"sink {one.sink} cannot be asked which batch it holds",
        {"sink": one.error or ""},
        "Whether it agrees with the checkpoint cannot be told. A run would stop at it too.",
        "bring it back, or correct its settings, and look again: penstock checkpoint verify FILE",
    )


def _empty(one: Standing, done: int) -> Finding:
    return Finding(
        "SINK_HOLDS_NOTHING",
        False,
        f"sink {one.sink} holds no batch of this pipeline, and batch {done} is committed",
        {},
        "The sink is new, or its table was dropped. A run goes on, and brings it the rows from now on.",
        f"to bring it what came before: penstock replay FILE --sink {one.sink} --from earliest --to committed",
    )


def _batches(begun: int | None, done: int | None) -> str:
    told = "no batch committed" if done is None else f"batch {done} committed"
    return told if begun == done else f"{told}, batch {begun if begun is not None else 'none'} begun"


def _places(starts: Offsets, ends: Offsets) -> str:
    shown = ", ".join(f"{at} {starts.get(at, 0)}-{end}" for at, end in sorted(ends.items())[:_SHOWN])
    return shown + (f" and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else "")


def _cut(where: Mapping[str, str]) -> dict[str, str]:
    shown = dict(list(where.items())[:_SHOWN])
    return shown | ({"and": f"{len(where) - _SHOWN} more"} if len(where) > _SHOWN else {})
