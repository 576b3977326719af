"""What commands and the dashboard do with a checkpoint and tables on a real S3 server. No JVM is needed for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from tests.committing import commit, last_commit

from penstock.assembly.reaching import checkpoint_of, storage_of
from penstock.assembly.tables import open_table
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.config import PipelineConfig, load
from penstock.dashboard.panels import QuarantineQuery, files_panel
from penstock.model import COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt, TopicPartition
from penstock.ops.checkpoint.backup import apply_backup, backups_there, plan_backup
from penstock.ops.checkpoint.restore import apply_restore, plan_restore
from penstock.ops.compact import apply_compact, plan_compact
from penstock.ops.gaps import find_gaps
from penstock.ops.snapshot import take_snapshot
from penstock.ops.stop import ask, plan_stop
from penstock.sinks.delta import DeltaSink
from penstock.sinks.parquet import ParquetSink

QUERY = "278b7560-3ceb-44fb-a542-fa1b106c23e2"
SCHEMA = pa.schema([pa.field("id", pa.int64()), COORDINATES_FIELD])
AT = TopicPartition("orders", 0)


@dataclass(frozen=True)
class Place:
    server: Any
    bucket: str
    config: PipelineConfig

    def at(self, path: str) -> str:
        return f"s3://{self.bucket}/{path}"


@pytest.fixture
def place(s3: Any, tmp_path: Path) -> Iterator[Place]:
    """A pipeline of which three batches are committed."""
    bucket = s3.bucket()
    at = f"s3://{bucket}"
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "127.0.0.1:1", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "id BIGINT NOT NULL"},
        "quarantine": {"table": f"{at}/lake/quarantine"},
        "sinks": [
            {"name": "out", "type": "delta", "path": f"{at}/lake/out"},
            {"name": "files", "type": "parquet", "path": f"{at}/lake/files"},
        ],
        "tables": {
            "d": {"type": "delta", "path": f"{at}/lake/out"},
            "p": {"type": "parquet", "path": f"{at}/lake/files"},
            "c": {"type": "csv", "path": f"{at}/lake/names.csv", "schema": "id BIGINT, name STRING"},
        },
        "checkpoint": f"{at}/checkpoints/orders",
        "storage": s3.section,
    }
    file = tmp_path / "orders.yaml"
    file.write_text(yaml.safe_dump(body))
    config = load(file)
    made = Place(s3, bucket, config)
    _begin(made)
    yield made
    s3.calm()


def _begin(place: Place) -> None:
    checkpoint = checkpoint_of(place.config)
    checkpoint.put_initial([{AT: 0}])
    for batch in range(3):
        checkpoint.put_offsets(batch, {AT: 10 * batch + 10}, like=batch - 1 if batch else None)
        checkpoint.put_commit(batch)
    checkpoint.put_metadata(QUERY)
    for sink in _sinks(place):
        sink.prepare(SCHEMA)
        for batch in range(3):
            _write(sink, batch)


def _sinks(place: Place) -> list[Any]:
    storage = storage_of(place.config)
    return [
        DeltaSink("orders", "out", place.at("lake/out"), storage=storage),
        ParquetSink("orders", "files", place.at("lake/files"), storage=storage),
    ]


def _token(batch: int, query: str = QUERY) -> BatchToken:
    return BatchToken("orders", query, batch, (OffsetRange("orders", 0, 10 * batch, 10 * batch + 10),))


def _write(sink: Any, batch: int, query: str = QUERY) -> None:
    first, token = 10 * batch, _token(batch, query)
    stage = sink.stage(token, SlotAttempt(0, "a"), SCHEMA)
    places = [{"topic": "orders", "partition": 0, "offset": n, "timestamp": None} for n in range(first, first + 10)]
    ids = pa.array(range(first, first + 10), pa.int64())
    stage.write(pa.RecordBatch.from_arrays([ids, pa.array(places, COORDINATES_FIELD.type)], schema=SCHEMA))
    commit(sink, token, [stage.finish()])


def test_checkpoint_and_sinks_on_s3_agree(place: Place) -> None:
    seen = take_snapshot(place.config, brokers=None)
    assert (seen.files.committed, seen.files.query_id, seen.live) == (2, QUERY, None)
    assert [one.token.batch_id for one in seen.standings if one.token is not None] == [2, 2]
    assert files_panel(seen) == {"blocking": None}
    assert find_gaps(place.config).gaps == ()
    assert QuarantineQuery()(place.config)["today"] == 0


def test_backup_on_s3_restores_a_damaged_checkpoint(place: Place) -> None:
    copy = apply_backup(plan_backup(place.config), storage=storage_of(place.config))
    assert (copy.batch, copy.query_id) == (2, QUERY)
    place.server.remove(f"{place.bucket}/checkpoints/orders/metadata")
    place.server.remove(f"{place.bucket}/checkpoints/orders/offsets/2")
    blocking = files_panel(take_snapshot(place.config, brokers=None))["blocking"]
    assert blocking is not None and blocking.startswith("CHECKPOINT_")
    apply_restore(plan_restore(place.config))
    checkpoint = checkpoint_of(place.config)
    assert (checkpoint.query_id(), checkpoint.last_committed(), checkpoint.ends(2)) == (QUERY, 2, {AT: 30})
    assert [one.kind for one in backups_there(place.config)] == ["before restore", "backup"]


def test_backup_cut_short_on_s3_is_none(place: Place) -> None:
    place.server.fault(
        "error", method="PUT", path=r"-backups/.*/manifest\.json", times=1000, status=403, code="AccessDenied"
    )
    with pytest.raises(Exception, match="STORAGE_REFUSED"):
        apply_backup(plan_backup(place.config), storage=storage_of(place.config))
    place.server.calm()
    assert backups_there(place.config) == []


def test_compaction_on_s3_joins_files_and_keeps_rows(place: Place) -> None:
    plan = plan_compact(place.config, "out", timedelta(minutes=2), timedelta(hours=1))
    [done] = apply_compact(plan)
    assert (done.error, done.compacted.removed, done.compacted.added) == (None, 3, 1)
    assert _read(place, "d") == list(range(30))
    assert last_commit(_sinks(place)[0]).batch_id == 2


def test_lookup_tables_on_s3_are_read_and_seen_to_change(place: Place) -> None:
    storage = storage_of(place.config)
    fs, root = storage.filesystem(place.at("lake"))
    fs.pipe_file(f"{root}/names.csv", b"id,name\n1,a\n")
    assert (_read(place, "d"), _read(place, "p"), _read(place, "c")) == (list(range(30)), list(range(30)), [1])
    tables = {name: open_table(name, place.config.tables[name], storage) for name in ("d", "p", "c")}
    before = {name: table.version() for name, table in tables.items()}
    fs.pipe_file(f"{root}/names.csv", b"id,name\n1,a\n2,b\n")
    for sink in _sinks(place):
        sink.prepare(SCHEMA)
        _write(sink, 3)
    assert [name for name, table in tables.items() if table.version() == before[name]] == []


def _read(place: Place, name: str) -> list[int]:
    table = open_table(name, place.config.tables[name], storage_of(place.config))
    rows = table.read(["id"])
    assert rows is not None
    return sorted(rows.column(0).to_pylist())


def test_writers_of_one_batch_at_once_land_once(place: Place) -> None:
    for sinks in zip(*[_sinks(place) for _ in range(4)], strict=True):
        for sink in sinks:
            sink.prepare(SCHEMA)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda sink: _write(sink, 3), sinks))
    assert (_read(place, "d"), _read(place, "p")) == (list(range(40)), list(range(40)))


def test_stop_on_s3_reaches_the_run(place: Place) -> None:
    storage = storage_of(place.config)
    presence = Presence(place.config.checkpoint, storage)
    from penstock.checkpoint import checkpoint_lock

    assert not plan_stop(place.config).found.running
    with checkpoint_lock(place.config.checkpoint, storage):
        presence.begin(RunFacts(pipeline="orders"))
        planned = plan_stop(place.config)
        assert planned.found.running and planned.found.note is not None
        assert not presence.stop_asked()
        ask(planned)
        assert presence.stop_asked()
        presence.end()
    assert plan_stop(place.config).found.state == "stopped"
