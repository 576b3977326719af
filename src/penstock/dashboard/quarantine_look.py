"""What is in quarantine: how much of each code, the newest records, and how many came today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from penstock.assembly.reaching import settings_of, storage_of
from penstock.config import PipelineConfig
from penstock.contracts import Reader
from penstock.dashboard.recent import in_utc
from penstock.errors import MissingError
from penstock.kafka import KafkaSettings
from penstock.model import OffsetRange
from penstock.ops.quarantine.counted import quarantined_since
from penstock.quarantine.records import HeldInTopic
from penstock.readers import KafkaReader
from penstock.storage import Storage

_SAMPLES = 12
_VALUE = 200
_PATIENCE = 3.0
_COLUMNS = ("quarantined_at", "code", "stage", "message", "topic", "partition", "offset", "value")
Found = dict[str, Any]


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
