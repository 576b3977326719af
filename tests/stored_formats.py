"""Every format that Penstock stores: fixed values, written through the product's own code.

`FORMATS` has a function for each golden file or folder in `tests/golden`, which writes it to a path;
`tests/unit/test_stored_formats.py` compares the two and says what each of them is.
`python -m tests.stored_formats NAME...` writes golden files anew.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.committing import commit
from tests.tables import read_table
from tests.unit.ops.quarantines import MOMENT, pipeline
from tests.unit.ops.test_redrive import hold
from tests.unit.supervision.test_bounded import bounded

from penstock.assembly.build import Pipeline, build
from penstock.assembly.reaching import settings_of
from penstock.assembly.state import note_state
from penstock.assembly.targets import Targets, build_targets
from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.checkpoint.backup import backups_of, make_backup
from penstock.checkpoint.lock import LEASE_NOTE, Claim
from penstock.checkpoint.logs import RESTORING
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.config import PipelineConfig, load
from penstock.devstack import Node, Registry, Secured, SecureStack, SparkCluster, SparkMaster, StackState
from penstock.devstack.secure import ExtraListener, Tokens
from penstock.devstack.state import SparkWorker, save
from penstock.engine.listener import AlertChanged, BatchDone, Notice, Retrying, Started
from penstock.errors import TransientError
from penstock.kafka import KafkaSettings
from penstock.metrics import BatchMetrics
from penstock.metrics.history import FlowChanged, StateKept, folder_beside, history_of
from penstock.model import (
    BAD_SCHEMA,
    COORDINATES,
    COORDINATES_FIELD,
    RAW_SCHEMA,
    BatchToken,
    Manifest,
    OffsetRange,
    Position,
    Rule,
    SlotAttempt,
    TopicPartition,
    redrives_of,
    replay_of,
)
from penstock.ops.gaps import find_gaps
from penstock.ops.quarantine.place import quarantine_of, write_marks
from penstock.ops.redrive.runs import runs_in, write_run
from penstock.ops.replay.folder import ReplayRequest, new_replay, replays_of
from penstock.ops.replay.ranges import replay_id
from penstock.ops.replay.targets import TargetChoice, Way
from penstock.quarantine import GAPS_SCHEMA, QUARANTINE_SCHEMA, Gap, gap_rows
from penstock.quarantine.marks import IDENTITIES, MARK_SCHEMA, Outcome, as_commits, as_marks
from penstock.sinks import DeltaSink
from penstock.sinks.commit import move
from penstock.sinks.delta.beside_stage import StagedDeltaRows
from penstock.sinks.delta.history import writers
from penstock.sinks.delta.stage import StagedDeltaFile
from penstock.sinks.delta.touched import Touched
from penstock.sinks.files import TableFolder, staged_prefix
from penstock.sinks.files.stage import STAGED, StagedFile
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.iceberg.bounds import Bounds
from penstock.sinks.iceberg.history import mark_of
from penstock.sinks.iceberg.stage import StagedIcebergFile
from penstock.sinks.iceberg.staged_rows import StagedIcebergRows
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.markers import KEY, Marker, marker_topic, record_key
from penstock.sinks.kafka.quarantine_topic import BadRecords
from penstock.sinks.parquet import ParquetSink
from penstock.sinks.parquet.columns import COMMON_METADATA
from penstock.sinks.parquet.local import private_folder
from penstock.sinks.parquet.objects import staging_of
from penstock.sinks.parquet.sink import FolderSink
from penstock.sinks.postgres.names import TableName, sink_mark, staged_name
from penstock.sinks.postgres.stage import COORDINATE_COLUMNS, StagedColumn, StagedTable
from penstock.sinks.row_json import json_rows
from penstock.storage import Storage
from penstock.supervision.alerting import _FiringNote
from penstock.supervision.bounded import _attempt, _note, cut
from penstock.supervision.gathered import GatheredSink
from penstock.supervision.lag_monitor import LagSample
from penstock.supervision.observer import RunObserver, observe_run
from penstock.supervision.upkeep import TableLock

GOLDEN = Path(__file__).parent / "golden"
DEFINITIONS = Path(__file__).parent / "definitions" / "valid"
NOW = MOMENT.isoformat()
QUERY = "5f0c7f3e-1a2b-4c3d-8e9f-001122334455"
TOPICS = {"orders": "u3Yp0sYVQ2uJ4m0kZ1x9Qg"}
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.string()), COORDINATES_FIELD])
ZERO, ONE, TWO = (TopicPartition("orders", number) for number in range(3))

SOURCE = {"type": "kafka", "brokers": "localhost:1", "topics": ["orders"]}

FORMATS: dict[str, Callable[[Path], None]] = {}


def golden(name: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """The function writes the golden file or folder of this name."""

    def register(writer: Callable[[Path], None]) -> Callable[[Path], None]:
        FORMATS[name] = writer
        return writer

    return register


def settle(path: Path, /, **values: object) -> None:
    """Give keys whose values differ from run to run fixed ones. A key that is not there is left to the comparison."""
    text = path.read_text()
    for key, value in values.items():
        text = re.sub(rf'("{key}": ?)("[^"]*"|-?[0-9.]+)', lambda found, v=value: found[1] + json.dumps(v), text)  # type: ignore[misc]
    path.write_text(text)


def contents(path: Path) -> dict[str, object]:
    """A file, or every file of a folder by its name: of Parquet the columns and rows."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {file.relative_to(path).as_posix(): _comparable(file) for file in sorted(files)}


def _comparable(file: Path) -> object:
    if file.name == COMMON_METADATA:
        schema = pq.read_schema(file)
        decoded = {key: base64.b64decode(value) for key, value in (schema.metadata or {}).items()}
        partitions = {key: str(pa.ipc.read_schema(pa.py_buffer(value))) for key, value in decoded.items()}
        return str(schema.remove_metadata()), partitions
    if file.suffix == ".parquet":
        table = pq.read_table(file, use_threads=False)
        return str(table.schema), table.to_pylist()
    return file.read_bytes().decode()


def lines(bodies: Iterable[object]) -> str:
    """One line of JSON for each; texts are JSON already."""
    return "".join(f"{body if isinstance(body, str) else json.dumps(body)}\n" for body in bodies)


def scratch(path: Path) -> Path:
    """A folder for what is written on the way to a path."""
    return Path(tempfile.mkdtemp(prefix="scratch-", dir=path.parent))


def token(batch_id: int, *ranges: tuple[int, int, int], query: str = QUERY, **more: Any) -> BatchToken:
    return BatchToken("orders", query, batch_id, tuple(OffsetRange("orders", *each) for each in ranges), **more)


def after(*tokens: BatchToken) -> Position:
    position: Position | None = None
    for one in tokens:
        position = Position.after(position, one)
    assert position is not None
    return position


# Tokens and positions.

FULL = token(4, (0, 10, 20), (1, 7, 7), topic_ids=TOPICS, quarantine={"quarantine": 3})
TOKENS = [replace(FULL, rule=rule, reason="checkpoint fork" if rule is Rule.MOVES else None) for rule in Rule]
POSITIONS = [
    after(token(0, (0, 0, 5), query="q1"), token(1, (0, 5, 10), query="q1")),
    after(token(0, (0, 0, 5), (1, 0, 5), query="q1"), token(1, (0, 5, 10), query="q1", quarantine={"quarantine": 2})),
    after(
        token(0, (0, 0, 5), query="q1", topic_ids={"orders": "one"}),
        token(1, (0, 0, 3), query="q1", topic_ids={"orders": "two"}),
    ),
    after(
        token(0, (0, 0, 5), query="q1"),
        token(9, (0, 3, 3), query="moved", rule=Rule.MOVES, reason="--accept-duplicates"),
    ),
]


@golden("tokens.jsonl")
def write_tokens(path: Path) -> None:
    path.write_text(lines(one.to_json() for one in TOKENS))


@golden("positions.jsonl")
def write_positions(path: Path) -> None:
    path.write_text(lines(one.to_json() for one in POSITIONS))


# Targets.


DELTA_BATCH = token(3, (0, 30, 40), topic_ids=TOPICS, quarantine={"bad": 2}, rule=Rule.FORWARD)


@golden("delta_entry.json")
def write_delta_entry(path: Path) -> None:
    table = scratch(path)
    sink = DeltaSink("orders", "out", str(table))
    sink.prepare(SCHEMA)
    commit(sink, DELTA_BATCH, [])
    actions = [json.loads(line) for line in (table / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    path.write_text(lines(actions))
    settle(path, timestamp=0, txnId=0, lastUpdated=0, **{"penstock.attempt": 0})


def iceberg_sink(folder: Path) -> IcebergSink:
    sink = IcebergSink("orders", "out", "shop.orders", str(folder), catalog=IcebergCatalog())
    sink.prepare(SCHEMA)
    return sink


@golden("iceberg_summaries.json")
def write_iceberg_summaries(path: Path) -> None:
    from tests.unit.sinks.test_iceberg_sink import opened

    folder = scratch(path)
    sink = iceberg_sink(folder)
    for batch in (
        token(0, (0, 0, 3), (1, 0, 2), query="5f0c7f3e"),
        token(1, (0, 3, 5), (1, 2, 4), query="5f0c7f3e"),
        token(2, (0, 5, 9), query="5f0c7f3e"),
    ):
        commit(sink, batch, [])
    move(sink, token(3, (0, 9, 9), query="5f0c7f3e"), "checkpoint fork")
    summaries = [
        {name: value for name, value in each.summary.additional_properties.items() if name.startswith("penstock.")}
        for each in opened(folder).snapshots()
        if each.summary is not None
    ]
    path.write_text(json.dumps(summaries, indent=2) + "\n")


@golden("parquet")
def write_parquet(path: Path) -> None:
    root = scratch(path) / "out"
    _write_folder(path, root, ParquetSink("orders", "out", str(root), partition_by=["day"]))
    [manifest] = path.rglob("_manifest.json")
    settle(manifest, path="day=d0/part-0-0-e46acc48-0.parquet", size_bytes=1113)


@golden("jsonl")
def write_jsonl(path: Path) -> None:
    root = scratch(path) / "out"
    _write_folder(path, root, JsonLinesSink("orders", "out", str(root), partition_by=["day"]))
    [manifest] = path.rglob("_manifest.json")
    settle(manifest, path="day=d0/part-0-0-e46acc48-0.jsonl", size_bytes=113)


def _write_folder(path: Path, root: Path, sink: FolderSink) -> None:
    sink.prepare(SCHEMA)
    first = token(0, (1, 0, 5), query="query", topic_ids=TOPICS)
    commit(sink, first, [])
    last = replace(first, batch_id=1, ranges=(OffsetRange("orders", 0, 10, 20),), quarantine={"bad": 2})
    stage = sink.stage(last, SlotAttempt(0, "0"), SCHEMA)
    place = {"topic": "orders", "partition": 0, "offset": 10, "timestamp": MOMENT}
    stage.write(pa.RecordBatch.from_pylist([{"id": 1, "day": "d0", COORDINATES: place}], schema=SCHEMA))
    commit(sink, last, [stage.finish()])
    for file in (*root.glob("_*"), *root.glob("*-000000000002/_manifest.json"), *root.glob("_writers/*.json")):
        if file.is_file():
            copy = path / file.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


MARKER = Marker(
    Position.after(
        replace(Position.first(token(41, (0, 1000, 2000), (1, 900, 900))), number=42),
        token(42, (0, 2000, 2400), topic_ids=TOPICS, quarantine={"quarantine": 3}),
    ),
    slots=4,
    partitions=6,
    topic="orders.clean",
)


@golden("kafka_marker.json")
def write_kafka_marker(path: Path) -> None:
    path.write_bytes(MARKER.to_bytes() + b"\n")


# The quarantine, the marks of redrives, and gaps.

BAD = {
    "stage": "sink",
    "code": "SINK_ROW_REFUSED",
    "message": "value too long",
    "key": b"k",
    "value": b"\0\0\0\0\7{oops",
    "headers": [{"key": "trace", "value": b"1"}],
    "topic": "orders",
    "partition": 0,
    "offset": 12,
    "timestamp": MOMENT,
    "refused_by": "out",
}
QUARANTINED = {
    "pipeline": "orders",
    "batch_id": 4,
    **{name: value for name, value in BAD.items() if name != "refused_by"},
    "stage": "sink out",
    "quarantined_at": MOMENT,
}
MARKS = [
    {
        "pipeline": "orders",
        "run": "20260101-000000-3f2a",
        "batch_id": 0,
        "topic": "orders",
        "partition": 0,
        "offset": 12,
        "refused_by": "out",
        "outcome": outcome.value,
        "stage": "sink",
        "code": "SINK_ROW_REFUSED",
        "message": "value too long",
        "wanted_by": "out",
        "marked_at": MOMENT,
        "commits": as_commits({"out": 2}),
    }
    for outcome in Outcome
]
GAPS = [Gap("orders", 0, 5, 10, "the log starts behind it"), Gap("orders", 1, 3, None, "the partition is gone")]
_OF_NOW = ("quarantined_at", "marked_at", "recorded_at")


def quarantining(folder: Path, table: str = "tables/quarantine") -> PipelineConfig:
    source = {**SOURCE, "on_data_loss": "record"}
    sinks = [{"name": name, "type": "delta", "path": f"tables/{name}"} for name in ("out", "other")]
    return pipeline(folder, source=source, sinks=sinks, quarantine={"table": table})


def targets_of(config: PipelineConfig) -> Targets:
    return build_targets(config, settings_of(config.source))


def write_rows(sink: Any, schema: pa.Schema, rows: list[dict[str, Any]], batch: BatchToken) -> None:
    sink.prepare(schema)
    stage = sink.stage(batch, SlotAttempt(0, "0"), schema)
    stage.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    commit(sink, batch, [stage.finish()])


def write_quarantine_to(folder: Path) -> PipelineConfig:
    """The tables of a pipeline with a quarantine, as a run, a redrive and a drop fill them."""
    config = quarantining(folder)
    targets = targets_of(config)
    [quarantine] = targets.quarantines
    write_rows(quarantine, BAD_SCHEMA, [BAD], token(4, (0, 10, 20), rule=Rule.FORWARD))
    assert targets.gaps is not None
    batch = token(4, (0, 10, 20), rule=Rule.FORWARD)
    write_rows(targets.gaps, GAPS_SCHEMA, gap_rows(batch, GAPS).to_pylist(), batch)
    marking = quarantine_of(config).marking("redrives")
    marking.prepare(MARK_SCHEMA)
    write_marks(marking, BatchToken(redrives_of("orders"), QUERY, 0, ()), pl.DataFrame(MARKS))
    place = {"topic": "orders", "partition": 0, "offset": 10, "timestamp": MOMENT}
    write_rows(targets.sinks[0], SCHEMA, [{"id": 1, "day": "d0", COORDINATES: place}], token(4, (0, 10, 20)))
    return config


def described(table: Path) -> dict[str, Any]:
    """A table's columns, its rows, and the pipelines and sinks that its log names."""
    rows = read_table(table).to_pylist()
    for row in rows:
        row |= {name: MOMENT for name in _OF_NOW if name in row}
    return {
        "columns": [str(field) for field in DeltaTable(table).schema().fields],
        "rows": rows,
        "writers": sorted(writers(DeltaTable(table), TableFolder(str(table)))),
    }


def as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else bytes(value).decode("latin-1")  # type: ignore[call-overload]


@golden("quarantine_tables.json")
def write_quarantine_tables(path: Path) -> None:
    folder = scratch(path)
    write_quarantine_to(folder)
    found = {table.name: described(table) for table in sorted((folder / "tables").iterdir())}
    path.write_text(json.dumps(found, indent=1, default=as_text) + "\n")


@golden("quarantine_topic.json")
def write_quarantine_topic(path: Path) -> None:
    rows = pa.RecordBatch.from_pylist([QUARANTINED], schema=QUARANTINE_SCHEMA)
    made = BadRecords("quarantine.topic", "orders.bad").make(rows).to_pylist()
    path.write_text(json.dumps(made, indent=1, default=as_text) + "\n")


@golden("marks_topic.jsonl")
def write_marks_topic(path: Path) -> None:
    [rows] = as_marks(pl.DataFrame(MARKS)).to_batches()
    path.write_text(lines(json_rows(rows).to_pylist()))


# Beside the checkpoint.

FACTS = RunFacts(
    pipeline="orders",
    lane="direct",
    doing="running",
    phase="commit:out",
    stalled="no progress for 60 s",
    batches=3,
    batch_id=4,
    batch_at=NOW,
    batch_seconds=0.25,
    rows_in=10,
    rows_out=9,
    quarantined=1,
    lag=70,
)
CLAIM = Claim("process 7 on here", "0123456789abcdef", "boot pid:[1]", 7, 1767225600.5, beat=3, released=True)


@golden("checkpoint")
def write_checkpoint(path: Path) -> None:
    path.mkdir(parents=True)
    checkpoint = SparkCheckpoint(str(path))
    checkpoint.note_start("earliest")
    checkpoint.note_topic_ids(TOPICS)
    checkpoint.note_sinks({"out": "/lake/orders", "other": "/lake/other"}, held=["out"])
    checkpoint.note_again([FULL])
    checkpoint.note_maintained(1767225600.5)
    presence = Presence(str(path))
    presence.begin(FACTS)
    presence.end("DATA_LOSS")
    times = {"started_at": NOW, "at": NOW, "ended_at": NOW}
    settle(path / ".penstock.run", pid=7, host="here", version="0.8.0", **times)
    presence.ask_stop("process 7 on here")
    settle(path / ".penstock.stop", at=NOW)
    _FiringNote(str(path), Storage()).write("lag over 100", NOW)
    (path / LEASE_NOTE).write_bytes(CLAIM.to_bytes())
    with SparkCheckpoint(str(path)).restoring("repair of batch 4"):
        kept = (path / RESTORING).read_bytes()
    (path / RESTORING).write_bytes(kept)
    with checkpoint_lock(str(path)):
        holder = (path / ".penstock.lock").read_text()
    (path / ".penstock.lock").write_text(re.sub(r"process \d+ on \S+", "process 7 on here", holder))
    with TableLock(str(path), "out").stream():
        pass


STATEFUL = ("windows_into_a_merged_table", "dedupe_across_batches", "join_of_two_sources", "stateful_class")


def stateful(name: str, folder: Path) -> Pipeline:
    """A pipeline of the definitions that keeps state."""
    shutil.copy(DEFINITIONS / f"{name}.yaml", folder)
    (folder / "steps.py").write_text("class Totals: ...\n")
    return build(load(folder / f"{name}.yaml"))


@golden("state_notes.json")
def write_state_notes(path: Path) -> None:
    notes = {}
    for name in STATEFUL:
        folder = scratch(path)
        checkpoint = SparkCheckpoint(str(folder / "checkpoint"))
        note_state(stateful(name, folder), checkpoint)
        notes[name] = json.loads(checkpoint.state_noted() or "")
    path.write_text(json.dumps(notes, indent=1) + "\n")


@golden("spark_checkpoint")
def write_spark_checkpoint(path: Path) -> None:
    root = str(path)
    SparkCheckpoint(root).put_initial([{ZERO: 0, ONE: 5}])
    SparkCheckpoint(root).put_metadata(QUERY)
    for batch in (0, 1):
        like = batch - 1 if batch else None
        SparkCheckpoint(root).put_offsets(batch, {ZERO: 10 * (batch + 1), ONE: 7}, like)
        SparkCheckpoint(root).put_commit(batch, like)


@golden("backup")
def write_backup(path: Path) -> None:
    checkpoint = scratch(path) / "checkpoint"
    write_checkpoint(checkpoint)
    write_spark_checkpoint(checkpoint)
    SparkCheckpoint(str(checkpoint)).note_state("[]")
    made = make_backup(SparkCheckpoint(str(checkpoint)), backups_of(str(checkpoint)), "orders")
    shutil.copytree(made.path, path)
    settle(path / "manifest.json", checkpoint="checkpoints/orders", created_at=NOW)


BATCH = BatchMetrics(
    pipeline="orders",
    batch_id=4,
    finished_at=MOMENT,
    seconds=0.5,
    rows_in=10,
    rows_out=9,
    quarantined=1,
    bytes_in=2_000,
    slots=2,
    lag=70,
    skipped=False,
    gaps=1,
    codes={"MALFORMED_JSON": 1},
    counts={"late rows": 2},
    phases={"stage": 0.25, "commit:out": 0.125},
    started_at=MOMENT,
    waited=0.25,
    offsets=12,
    cap=5_000,
    gc_seconds=0.125,
    pressure=0.5,
    slot_rows=(6, 4),
    slot_rows_out=(5, 4),
    slot_seconds=(0.25, 0.125),
)


@golden("history.jsonl")
def write_history(path: Path) -> None:
    """One entry of each kind. The run is told of its start last: from then on it looks for its brokers."""
    folder = scratch(path)
    config = pipeline(folder, source={**SOURCE, "group": False})
    history = history_of(str(folder / "checkpoint"))
    made = build(config)
    observer = RunObserver(made, history, Presence(config.checkpoint), lambda event: None)
    for event in (
        BatchDone(BATCH),
        StateKept(4, 100, 5_000, NOW),
        FlowChanged(4, 6_000, 5_000, "room", "the batches are shorter than the trigger"),
        AlertChanged("lag over 100", True, "70 offsets wait"),
        Retrying(TransientError("BROKER_UNREACHABLE", "no broker answers"), 2, 1.5),
        Notice("a notice"),
    ):
        observer.hear(event)
    observer._see(LagSample(MOMENT, {ZERO: 10, TWO: 5}, {ZERO: 80, TWO: 5}, {ZERO: 1.5}))
    observer._hear_group("GROUP_AUTHORIZATION_FAILED")
    observer.hear(Started("orders", "direct", "every step has an Arrow form", 2, QUERY, 2))
    observer.close()
    with observe_run(made, history, lambda event: None, lambda: None):
        pass
    path.write_text(history.path.read_text())
    settle(path, at=NOW, pid=7)


# Redrives and replays.

RUN = "20260101-000000-3f2a"
REPLAY = "0123456789abcdef"
RANGES = (OffsetRange("orders", 0, 10, 51), OffsetRange("orders", 1, 20, 50))
INTO = (TargetChoice("out", Way.INTO, "/lake/again"),)
REQUEST = ReplayRequest("0=10,1=20", "latest", None, ("out",), ("/lake/again",))
WHOLE = BatchToken(replay_of("orders", REPLAY), QUERY, 0, RANGES)


def redriven(*offsets: int) -> pl.DataFrame:
    rows = [{**{name: BAD[name] for name in RAW_SCHEMA.names}, "offset": offset} for offset in offsets]
    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_pylist(rows, schema=RAW_SCHEMA)))
    return frame.with_columns(pl.Series(IDENTITIES, [[None, "out"]] * len(rows), pl.List(pl.String)))


@golden("redrive")
def write_redrive(path: Path) -> None:
    made = write_run(
        str(path),
        [(None, redriven(1, 3)), (("other",), redriven(2))],
        10,
        names=("out", "other"),
        accept_duplicates=True,
    )
    folder = made.folder.rename(path / RUN)
    settle(folder / "plan.json", run=RUN, query_id=QUERY)
    beside = scratch(path)
    run = bounded(beside, redrives_of("orders"), Rule.RECORDS)
    hold(beside, [], name=redrives_of("orders"), query="earlier")
    _attempt(run)
    _note(run, 1)
    for name in ("attempt.json", "progress.json"):
        shutil.copy(run.folder / name, folder / "0" / name)
    settle(folder / "0" / "attempt.json", query_id=QUERY)
    [stored] = runs_in(str(path))
    records = {one.file: one.file.read_bytes() for one in stored.passes}
    stored.finish({"redriven": 2, "failed": 1})
    for file, body in records.items():
        file.write_bytes(body)
    settle(folder / "done.json", finished_at=NOW)


@golden("replay")
def write_replay(path: Path) -> None:
    folder = scratch(path)
    stored = new_replay(str(folder / "c"), REPLAY, REQUEST, RANGES, 30, INTO, TOPICS)
    stored.write()
    run = bounded(folder, WHOLE.pipeline)
    _note(run, 3, finished=True)
    stored.finish({"batches": 3, "offsets": 71, "rows_in": 71, "rows_out": 70, "quarantined": 1})
    shutil.copytree(stored.folder, path / REPLAY)
    shutil.copy(run.folder / "progress.json", path / REPLAY)
    settle(path / REPLAY / "plan.json", planned_at=NOW)
    settle(path / REPLAY / "summary.json", finished_at=NOW)


_PLACE: dict[str, Any] = {"path": "day=d0/part-0.parquet", "size_bytes": 1_113, "rows": 3}
_TOUCHED = Touched(column="id", low=1, high=3, values=frozenset({1}))
_STATISTICS = {"record_count": 3, "lower_bounds": {1: b"\1"}}
_COLUMNS = (StagedColumn(name="id", type="bigint"), *COORDINATE_COLUMNS)
MANIFESTS = [
    Manifest(sink="out", writer=SlotAttempt(slot=0, attempt="e46acc48"), rows=3, size_bytes=1_113, items=(item,))
    for item in (
        StagedDeltaFile(**_PLACE, partition_values=("d0", None), statistics='{"numRecords":3}'),
        StagedDeltaRows(paths=("part-0.parquet",), touched=(_TOUCHED,)),
        StagedIcebergFile(**_PLACE, values=("d0",), statistics=_STATISTICS),
        StagedIcebergRows(**_PLACE, bounds={"id": Bounds(kind="int", low=1, high=3, values=None)}),
        StagedFile(**_PLACE),
        StagedTable(name="staged_0123456789", rows=3, columns=_COLUMNS),
        "records-5f0c7f3e-0.parquet",
    )
]


@golden("staged_manifests")
def write_staged_manifests(path: Path) -> None:
    sink = DeltaSink(WHOLE.pipeline, "out", str(scratch(path)))
    gathered = GatheredSink(sink, WHOLE, cut(RANGES, 30), path)
    gathered.land(Position.first(WHOLE), MANIFESTS, None)


# What is found again by its name.


@golden("names.json")
def write_names(path: Path) -> None:
    folder = scratch(path)
    config, settings = quarantining(folder), KafkaSettings("localhost:1")
    targets, place = targets_of(config), quarantine_of(config)
    topics = pipeline(folder, quarantine={"topic": "orders.bad"})
    [topic] = targets_of(topics).quarantines
    kafka = KafkaSink("orders", "out", settings, topic="orders.clean")
    parquet = ParquetSink("orders", "out", str(folder / "out"))
    assert parquet._place is not None
    assert targets.gaps is not None
    table, checkpoint = TableName("public", "orders"), str(folder / "checkpoint")
    staged = staged_name(sink_mark("orders", "out", table), FULL)  # ends with a time and chance
    names: dict[str, object] = {
        "pipeline of redrives": redrives_of("orders"),
        "pipeline of a replay": WHOLE.pipeline,
        "id of a replay": replay_id(build(config), RANGES, TOPICS, INTO),
        "sinks of a quarantine": [targets.quarantines[0].name, targets.gaps.name, topic.name],
        "sinks of marks": [place.marking(name).name for name in ("redrives", "drops", "returns", "replays")],
        "table of gaps": find_gaps(config).table,
        "table of marks": place.marks.target,
        "topic of marks": quarantine_of(topics).marks.target.partition(" ")[0],  # type: ignore[attr-defined]
        "topic of markers": [marker_topic(*each) for each in (("orders", "out"), ("a.b", "c"), ("ü", "o/k"))],
        "key of a marker": KEY.decode(),
        "key of a redriven record": record_key(("orders", 0, 12)).decode(),
        "transactional ids": [kafka._slot_id(3).transactional_id, topic.sink._slot_id(0).transactional_id],  # type: ignore[attr-defined]
        "consumer group": config.group,
        "Iceberg tag": mark_of("orders", "out"),
        "Iceberg catalog": [IcebergCatalog().name, IcebergCatalog().file("/warehouse").name],
        "staging table of PostgreSQL": staged.rpartition("_")[0].rpartition("_")[0],
        "staged files": staged_prefix("part", "orders", "out", FULL),
        "folder of staged files": STAGED,
        "staged by Parquet": [
            *(private_folder(folder / "out"), staging_of("s3://lake/out"), staging_of("s3://lake")),
            parquet._place._staged_label(FULL),
        ],
        "folders beside a checkpoint": [
            *(folder_beside(checkpoint, what) for what in ("x",)),
            replays_of(checkpoint),
            place.folder,
            backups_of(checkpoint),
            history_of(checkpoint).path,
            history_of(checkpoint).older,
        ],
    }  # fmt: skip
    path.write_text(json.dumps(names, indent=1, default=str, ensure_ascii=False).replace(str(folder), "") + "\n")


# The local stack.

_RUNS: dict[str, Any] = {"pid": 7, "started": 1767225600.5}


def dev_stack(folder: Path) -> StackState:
    node = Node(folder=folder / "node-1", id=1, port=9092, controller_port=19092, **_RUNS)
    registry = Registry(folder=folder / "registry", port=8081, **_RUNS)
    spark: dict[str, Any] = {"host": "127.0.0.1", "page_port": 8080, **_RUNS}
    worker = SparkWorker(folder=folder / "spark-worker-1", id=1, cores=1, memory="1g", port=7078, **spark)
    cluster = SparkCluster(SparkMaster(folder=folder / "spark-master", port=7077, **spark), (worker,))
    return StackState("cluster", (node,), registry, cluster)


@golden("dev_stack")
def write_dev_stack(path: Path) -> None:
    folder = scratch(path)
    wanted = Secured((ExtraListener("OLD", ("localhost",), True),), Tokens("http://issuer", "kafka", "http://keys"))
    made = SecureStack.make(folder, [1], [9092], wanted)
    path.mkdir(parents=True)
    save(path, dev_stack(path))
    layout = path / made.folder.name / "layout.json"
    layout.parent.mkdir()
    shutil.copy(made.folder / "layout.json", layout)
    settle(layout, **{"1": 9093})


def main(names: list[str]) -> None:
    for name in names or FORMATS:
        path = GOLDEN / name
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, name)
            FORMATS[name](made)
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            shutil.move(made, path)


if __name__ == "__main__":
    main(sys.argv[1:])
