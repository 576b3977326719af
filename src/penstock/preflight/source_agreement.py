"""Do the checkpoint and the brokers agree? Logs, partitions and topics as they are, against the offsets noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.checkpoint import Offsets
from penstock.checkpoint.findings import REPAIR, Finding, from_error, usable_ends
from penstock.checkpoint.logs import CheckpointFiles
from penstock.kafka import LogBounds
from penstock.model import TopicPartition
from penstock.preflight.recreated import recreated_topics, topic_recreated
from penstock.preflight.standings import Standing

_SHOWN = 8


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
        held = [one.newest for one in standings]
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


def _cut(where: Mapping[str, str]) -> dict[str, str]:
    shown = dict(list(where.items())[:_SHOWN])
    return shown | ({"and": f"{len(where) - _SHOWN} more"} if len(where) > _SHOWN else {})
