"""Detects data loss before a row is read, by comparing a batch or checkpoint with what the brokers still have.

Holes inside a log (compaction, aborted transactions) are not data loss. A log start after the batch's start, a log end
that moved back, or a missing partition is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.checkpoint import Offsets, ranges_between
from penstock.checkpoint.findings import REPAIR, Finding
from penstock.checkpoint.logs import CheckpointFiles
from penstock.errors import TerminalError
from penstock.kafka import LogBounds
from penstock.model import OffsetRange, TopicPartition
from penstock.preflight.standings import Standing
from penstock.quarantine import Gap


@dataclass(frozen=True)
class BatchRanges:
    """What a batch covers by the checkpoint, and the gaps that the checkpoint itself shows."""

    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...]
    seen: frozenset[TopicPartition] = frozenset()
    """The partitions that earlier batches have read."""


def ranges_of_batch(starts: Offsets, ends: Offsets, recreated: frozenset[str] = frozenset()) -> BatchRanges:
    """The batch's ranges. A log that moved back, a re-created topic, or a missing partition is a gap."""
    anew = [at for at in sorted(starts.keys() & ends.keys()) if at.topic in recreated and starts[at]]
    ranges, backwards = ranges_between({at: 0 if at in anew else start for at, start in starts.items()}, ends)
    again = [Gap(at.topic, at.partition, starts[at], None, "the topic was re-created") for at in anew]
    gaps = again + [
        Gap(at.topic, at.partition, start, None, f"the log end moved back to {end}: was the topic re-created?")
        for at, start, end in backwards
    ]
    ranges += [OffsetRange(at.topic, at.partition, 0, end) for at, _, end in backwards]
    gaps += [
        Gap(at.topic, at.partition, starts[at], None, "the partition is gone")
        for at in sorted(starts.keys() - ends.keys())
    ]
    # What has other records under the same offsets by now is read as if for the first time.
    anew_or_back = {*anew, *(at for at, _, _ in backwards)}
    return BatchRanges(tuple(sorted(ranges)), tuple(gaps), frozenset(starts.keys() - anew_or_back))


def clip_to_log(batch: BatchRanges, bounds: Mapping[TopicPartition, LogBounds]) -> tuple[list[OffsetRange], list[Gap]]:
    """What can still be read of the batch, and every gap."""
    readable, gaps = [], list(batch.gaps)
    moved_back = {(g.topic, g.partition) for g in batch.gaps}
    for wanted in batch.ranges:
        if not len(wanted):
            continue
        log = bounds.get(wanted.topic_partition)
        if log is None:
            gaps.append(_gap(wanted, wanted.start, wanted.end, "the partition is gone"))
            continue
        start = min(max(wanted.start, log.start), wanted.end)
        end = max(start, min(wanted.end, log.end))
        if start > wanted.start and (wanted.topic, wanted.partition) not in moved_back:
            gaps.append(
                _gap(
                    wanted, wanted.start, start, f"the log now starts at {log.start}: records expired (topic retention)"
                )
            )
        if end < wanted.end:
            gaps.append(_gap(wanted, end, wanted.end, f"the log now ends at {log.end}"))
        if start < end:
            readable.append(OffsetRange(wanted.topic, wanted.partition, start, end))
    return readable, gaps


def data_loss(gaps: Sequence[Gap], batch_id: int) -> TerminalError:
    """The error for `on_data_loss: fail`: every missing range, exactly."""
    return TerminalError(
        "DATA_LOSS",
        f"batch {batch_id}: {len(gaps)} range{'s' if len(gaps) > 1 else ''} can no longer be read",
        context={f"{g.topic}[{g.partition}] {_span(g)}": g.reason for g in gaps},
        hint="restore the data, or set `on_data_loss: record` to continue and record each gap",
    )


def _span(gap: Gap) -> str:
    return f"{gap.start}-{gap.end}" if gap.end is not None else f"from {gap.start}"


def _gap(wanted: OffsetRange, start: int, end: int, reason: str) -> Gap:
    return Gap(wanted.topic, wanted.partition, start, end, reason)


# Compares a checkpoint with the current logs, partitions and topics.

_SHOWN = 8


def log_findings(
    position: Offsets,
    bounds: Mapping[TopicPartition, LogBounds],
    on_data_loss: str,
    *,
    open_ends: Offsets | None = None,
) -> list[Finding]:
    """Check the start of the next batch (and the end of an open one) against the logs of the source."""
    lost: dict[str, dict[str, str]] = {}
    for at, offset in sorted(position.items()):
        log, end = bounds.get(at), max(offset, (open_ends or {}).get(at, offset))
        if log is None:
            lost.setdefault("PARTITION_GONE", {})[f"{at} from {offset}"] = "not on the brokers, or not in the file"
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
    """Partitions of the source that were read before but are missing from the open batch.

    Spark would treat them as new and read them again from the beginning.
    """
    begun = files.begun
    now = files.ends(begun) if begun is not None else None
    if begun is None or now is None:
        return []
    known: Offsets = {}
    for batch in sorted(files.offsets):
        known |= {at: end for at, end in (files.ends(batch) or {}).items() if at.topic not in recreated}
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
                f"checkpoint {path}: batch {begun} was started without {len(left_out)} of its partitions",
                where,
                "They were missing from the file or the brokers then, but are there now. The batch would skip them, "
                "and the next batch would read them from the beginning.",
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
            "A run would read them from the beginning: records that were already read would be duplicated.",
            "to continue where each one ended (or at 0, if the partition was re-created):\n"
            f"penstock checkpoint fork FILE --to PATH --offsets {spec}\n"
            "then point `checkpoint:` at PATH, and run",
        )
    ]


_RECORDS = "With `on_data_loss: record` a run continues, and records what is missing."
_RECORD_IT = (
    "if the records are permanently lost: set `on_data_loss: record` in the source and run; to list the gaps:\n"
    "penstock gaps FILE"
)
_SAID = {
    "OFFSETS_BEFORE_LOG": (
        "the checkpoint is before the start of the log",
        "Records expired (topic retention) before they were read.",
        _RECORD_IT,
    ),
    "OFFSETS_BEYOND_LOG": (
        "the checkpoint is beyond the end of the log",
        "The topic was re-created or truncated, or its brokers lost records. This can also appear briefly after a "
        "broker failure.",
        f"after a broker failure, check again in two minutes: penstock checkpoint verify FILE\n{_RECORD_IT}",
    ),
    "PARTITION_GONE": (
        "the checkpoint has offsets of partitions that are no longer read",
        "The topic was deleted, re-created with fewer partitions, or removed from the file.",
        f"if the file was changed: add the topic to source.topics again\n{_RECORD_IT}",
    ),
}


def _cut(where: Mapping[str, str]) -> dict[str, str]:
    shown = dict(list(where.items())[:_SHOWN])
    return shown | ({"and": f"{len(where) - _SHOWN} more"} if len(where) > _SHOWN else {})
