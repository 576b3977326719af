"""The expensive panels of one pipeline: views of one snapshot, and the quarantine.

Each returns its part of the page. Nothing is changed, no JVM is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.assembly.reaching import settings_of, storage_of
from penstock.config import PipelineConfig
from penstock.contracts import Reader
from penstock.dashboard.recent import in_utc
from penstock.kafka import KafkaSettings
from penstock.metrics.history import in_lists
from penstock.model import OffsetRange
from penstock.ops.checkpoint.repair import verify_checkpoint
from penstock.ops.checkpoint.show import show_checkpoint
from penstock.ops.diagnosis import diagnose
from penstock.ops.lag import LagReport
from penstock.ops.quarantine.listing import midnight, quarantined_since
from penstock.ops.snapshot import Snapshot, read_position
from penstock.quarantine.records import HeldInTopic, of_pipeline, query_table
from penstock.readers import KafkaReader
from penstock.storage import Storage

Found = dict[str, Any]


def files_panel(seen: Snapshot) -> Found:
    """Whether the checkpoint's own files would prevent a run from starting."""
    blocking = [one for one in seen.file_findings if one.blocks]
    return {"blocking": f"{blocking[0].code} {blocking[0].summary}" if blocking else None}


def positions_panel(seen: Snapshot) -> Found:
    """The end of the logs and the next offsets: the lag, as far as it is queried for a pipeline on no screen."""
    if seen.brokers.error is not None:
        raise seen.brokers.error
    ends = {at: log.end for at, log in (seen.brokers.bounds or {}).items()}
    return {"ends": in_lists(ends), "committed": in_lists(read_position(seen).positions), "behind_seconds": None}


def lag_panel(report: LagReport) -> Found:
    """The report; `ages` are for the heat strip."""
    return {
        "ends": in_lists(report.sample.ends),
        "committed": in_lists(report.sample.positions),
        "behind_seconds": report.behind_seconds,
        "growth": report.growth,
        "catch_up_seconds": report.catch_up_seconds,
        "group_note": report.group_note,
        "ages": {(one.topic, one.partition): one.seconds_behind for one in report.partitions},
    }


def checkpoint_panel(seen: Snapshot) -> Found:
    """The checkpoint against the tables, and what `checkpoint verify` finds."""
    view, verified = show_checkpoint(seen), verify_checkpoint(seen)
    return {
        "committed": view.committed,
        "begun": view.begun,
        "sinks": [
            {"name": one.name, "batch_id": one.batch, "agrees": one.agrees, "note": one.says} for one in view.sinks
        ],
        "findings": [{"code": one.code, "summary": one.summary, "way_out": one.way_out} for one in verified.findings],
    }


def diagnosis_panel(seen: Snapshot) -> Found:
    """The diagnosis in words."""
    found = diagnose(seen.config, seen)
    causes = [
        {"code": one.code, "summary": one.summary, "evidence": list(one.evidence), "change": one.change}
        for one in found.causes
    ]
    return {"at": in_utc(found.at), "causes": causes, "idle": found.idle, "notes": list(found.notes)}


_SAMPLES = 12
_VALUE = 200
_TIMEOUT_SECONDS = 3.0
_COLUMNS = ("quarantined_at", "code", "stage", "message", "topic", "partition", "offset", "value")


class QuarantineQuery:
    """Queries one pipeline's quarantine; a table only if it has changed."""

    def __init__(self) -> None:
        self._seen: tuple[str, int, object] | None = None
        self._found: Found = {}

    def __call__(self, config: PipelineConfig) -> Found:
        """Counts by code if there is a table; the newest records of the table or topic."""
        quarantine = config.quarantine
        if quarantine is None:
            return {}
        today = midnight()
        if quarantine.table is not None:
            storage = storage_of(config)
            version = _version(quarantine.table, storage)
            if (quarantine.table, version, today) == self._seen:
                return self._found
            found = _in_table(quarantine.table, config.name, storage)
            self._seen = (quarantine.table, version, today)
        else:
            assert quarantine.topic is not None
            found = _in_topic(quarantine.topic, settings_of(config.source), config.name)
        counted = quarantined_since(config, today, _TIMEOUT_SECONDS)
        self._found = {**found, "today": counted.records if counted is not None else None}
        return self._found


@dataclass(frozen=True)
class _LastOffsets:
    """Reads the last few records of each range."""

    reader: Reader

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The last records of the ranges."""
        return self.reader.read([replace(one, start=max(one.start, one.end - 2 * _SAMPLES)) for one in ranges])


def _version(table: str, storage: Storage) -> int:
    try:
        return DeltaTable(table, storage_options=storage.for_delta_at(table)).version()
    except TableNotFoundError:
        return -1


def _in_table(path: str, pipeline: str, storage: Storage) -> Found:
    mine, names = of_pipeline(pipeline), ", ".join(f'"{name}"' for name in _COLUMNS)
    # The newest of each code, then the second of each: many of one code must not hide the others.
    place = 'row_number() OVER (PARTITION BY code ORDER BY quarantined_at DESC, "offset" DESC)'
    counts, newest = (
        query_table(path, storage, asked, f"reading {path}")
        for asked in (
            f"SELECT code, count(*) AS count FROM held WHERE {mine} GROUP BY code ORDER BY 2 DESC, 1",
            f"SELECT {names} FROM (SELECT {names}, {place} AS place FROM held WHERE {mine}) "
            f'ORDER BY place, quarantined_at DESC, "offset" DESC LIMIT {_SAMPLES}',
        )
    )
    return {
        "by_code": counts.to_pylist() if counts is not None else [],
        "samples": [_sample(row) for row in newest.to_pylist()] if newest is not None else [],
    }


def _in_topic(topic: str, settings: KafkaSettings, pipeline: str) -> Found:
    held = HeldInTopic(topic, settings, _LastOffsets(KafkaReader(settings, _TIMEOUT_SECONDS)))
    newest = held.rows(_COLUMNS, pipeline).sort("quarantined_at", descending=True).head(_SAMPLES)
    return {"samples": [_sample(row) for row in newest.iter_rows(named=True)]}


def _sample(row: Found) -> Found:
    value, at = row["value"], row["quarantined_at"]
    text = value[: 4 * _VALUE].decode(errors="replace") if value is not None else None
    shown = {name: row[name] for name in ("code", "stage", "message", "topic", "partition", "offset")}
    return {"at": in_utc(at) if at is not None else None, **shown, "value": text[:_VALUE] if text is not None else None}
