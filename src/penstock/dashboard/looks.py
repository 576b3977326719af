"""What costs more than a look at a file: the lag by the sinks and the brokers, the checkpoint against the tables, the
diagnosis, the quarantine. Each gives its part of the page; nothing is changed, no JVM is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from penstock.assembly.reaching import checkpoint_of, settings_of, storage_of
from penstock.checkpoint.findings import file_findings
from penstock.config import PipelineConfig
from penstock.contracts import Reader
from penstock.dashboard.facts import Panel
from penstock.dashboard.recent import in_utc
from penstock.errors import MissingError, PenstockError
from penstock.kafka import KafkaSettings
from penstock.model import OffsetRange
from penstock.ops.quarantine.listing import quarantined_since
from penstock.quarantine.records import HeldInTopic
from penstock.readers import KafkaReader
from penstock.storage import Storage

Found = dict[str, Any]


def attempt(look: Callable[[], Found]) -> Panel:
    """Collect one part. A failure is reported in one line; of an unexpected exception only the type, since its text
    may contain anything."""
    try:
        found, problem = look(), None
    except PenstockError as error:
        found, problem = None, f"{error.code} {error.line}"
    except Exception as error:
        found, problem = None, f"UNEXPECTED {type(error).__name__}"
    return Panel(in_utc(datetime.now(UTC)), found, problem)


def look_at_files(config: PipelineConfig) -> Found:
    """Whether the checkpoint's own files would keep a run from starting."""
    blocking = [one for one in file_findings(checkpoint_of(config)) if one.blocks]
    return {"blocking": f"{blocking[0].code} {blocking[0].summary}" if blocking else None}


class LagLook:
    """Looks at the lag again and again: how it grows is told by the look before."""

    def __init__(self) -> None:
        self._before: Any = None

    def __call__(self, config: PipelineConfig) -> Found:
        """The report; `places` and `ages` are for the heat strip."""
        from penstock.ops.lag import find_lag

        same = self._before is not None and self._before.pipeline == config.name
        report = self._before = find_lag(config, before=self._before if same else None)
        return {
            "behind_seconds": report.behind_seconds,
            "growth": report.growth,
            "catch_up_seconds": report.catch_up_seconds,
            "group_note": report.group_note,
            "ages": {(one.topic, one.partition): one.seconds_behind for one in report.partitions},
            "places": [(one.topic, one.partition, one.end - one.lag, one.end) for one in report.partitions],
        }


def look_at_checkpoint(config: PipelineConfig) -> Found:
    """The checkpoint against the tables, and what `checkpoint verify` finds."""
    from penstock.ops.checkpoint.show import view_checkpoint
    from penstock.ops.checkpoint.verify import verify
    from penstock.ops.snapshot import look

    seen = look(config)
    view, verified = view_checkpoint(seen), verify(seen)
    return {
        "committed": view.committed,
        "begun": view.begun,
        "sinks": [
            {"name": one.name, "batch_id": one.batch, "agrees": one.agrees, "note": one.says} for one in view.sinks
        ],
        "findings": [{"code": one.code, "summary": one.summary, "way_out": one.way_out} for one in verified.findings],
    }


def look_for_causes(config: PipelineConfig) -> Found:
    """The diagnosis in words."""
    from penstock.ops.diagnosis import diagnose

    found = diagnose(config)
    causes = [
        {"code": one.code, "summary": one.summary, "evidence": list(one.evidence), "change": one.change}
        for one in found.causes
    ]
    return {"at": in_utc(found.at), "causes": causes, "idle": found.idle, "notes": list(found.notes)}


_SAMPLES = 12
_VALUE = 200
_PATIENCE = 3.0
_COLUMNS = ("quarantined_at", "code", "stage", "message", "topic", "partition", "offset", "value")


class QuarantineLook:
    """Looks into one pipeline's quarantine; into a table only when it has changed."""

    def __init__(self) -> None:
        self._seen: tuple[str, int, object] | None = None
        self._found: Found = {}

    def __call__(self, config: PipelineConfig) -> Found:
        """By code where there is a table; the newest records of a table or a topic."""
        quarantine = config.quarantine
        if quarantine is None:
            return {}
        settings = settings_of(config.source)
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if quarantine.table is not None:
            storage = storage_of(config)
            version = _version(quarantine.table, storage)
            if (quarantine.table, version, midnight) == self._seen:
                return self._found
            found: Found = {"by_code": [], "samples": []}
            if version >= 0:
                found = _in_table(quarantine.table, config.name, storage)
            self._seen = (quarantine.table, version, midnight)
        else:
            assert quarantine.topic is not None
            found = _in_topic(quarantine.topic, settings, config.name)
        today = quarantined_since(config, settings, midnight, _PATIENCE)
        self._found = {**found, "today": today.records if today is not None else None}
        return self._found


@dataclass(frozen=True)
class _LastOffsets:
    """Reads the last few records of each range."""

    reader: Reader

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The records behind the others."""
        return self.reader.read([replace(one, start=max(one.start, one.end - 2 * _SAMPLES)) for one in ranges])


def _version(table: str, storage: Storage) -> int:
    try:
        return DeltaTable(table, storage_options=storage.for_delta_at(table)).version()
    except TableNotFoundError:
        return -1


def _in_table(path: str, pipeline: str, storage: Storage) -> Found:
    # A name has no quotes in it.
    mine = f"(pipeline = '{pipeline}' OR starts_with(pipeline, '{pipeline}.replay-'))"
    names = ", ".join(f'"{name}"' for name in _COLUMNS)
    try:
        held = QueryBuilder().register("held", DeltaTable(path, storage_options=storage.for_delta_at(path)))
        counts = _rows(held, f"SELECT code, count(*) AS count FROM held WHERE {mine} GROUP BY code ORDER BY 2 DESC, 1")
        # The newest of each code, then the second of each: a storm of one must not hide the others.
        place = 'row_number() OVER (PARTITION BY code ORDER BY quarantined_at DESC, "offset" DESC)'
        newest = _rows(
            held,
            f"SELECT {names} FROM (SELECT {names}, {place} AS place FROM held WHERE {mine}) "
            f'ORDER BY place, quarantined_at DESC, "offset" DESC LIMIT {_SAMPLES}',
        )
    except Exception as error:
        raise MissingError("TABLE_UNREACHABLE", f"reading {path}: {type(error).__name__}") from error
    return {"by_code": counts, "samples": [_sample(row) for row in newest]}


def _rows(held: QueryBuilder, asked: str) -> list[Found]:
    found: list[Found] = pa.RecordBatchReader.from_stream(held.execute(asked)).read_all().to_pylist()
    return found


def _in_topic(topic: str, settings: KafkaSettings, pipeline: str) -> Found:
    held = HeldInTopic(topic, settings, _LastOffsets(KafkaReader(settings, _PATIENCE)))
    newest = held.rows(_COLUMNS, pipeline).sort("quarantined_at", descending=True).head(_SAMPLES)
    return {"samples": [_sample(row) for row in newest.iter_rows(named=True)]}


def _sample(row: Found) -> Found:
    value, at = row["value"], row["quarantined_at"]
    text = value[: 4 * _VALUE].decode(errors="replace") if value is not None else None
    shown = {name: row[name] for name in ("code", "stage", "message", "topic", "partition", "offset")}
    return {"at": in_utc(at) if at is not None else None, **shown, "value": text[:_VALUE] if text is not None else None}
