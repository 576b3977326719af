"""Everything that Penstock stores and a later version reads back: written as in the golden files, and read from them.

A key that is renamed would make the tables, topics and checkpoints of every user unreadable. `tests/stored_formats.py`
writes each format through the product's own code; one test here compares all of them with `tests/golden`, and each has
a test of its own that reads it. `NAME_0.7.0` was written by version 0.7.0 and never changes.

| golden file | what it is | where it is stored |
|---|---|---|
| `tokens.jsonl`, `positions.jsonl` | tokens of every rule; positions | inside the next five |
| `delta_entry.json` | metadata of a commit, and its transaction ids | Delta log |
| `iceberg_summaries.json` | summaries of snapshots | Iceberg metadata |
| `jsonl` | the same for JSON lines | JSON lines target |
| `parquet` | manifest of a batch, note of a writer, columns | Parquet target |
| `kafka_marker.json` | marker of a slot | marker topic |
| `postgres_commits.json` | rows of `penstock_commits`; compared in `tests/services/test_postgres.py` | PostgreSQL |
| `names.json` | names that are found again: topics, transactions, tags, sinks, staged files, folders | everywhere |
| `quarantine_tables.json` | quarantine, marks of redrives, gaps, and the coordinates of rows | Delta tables |
| `quarantine_topic.json`, `marks_topic.jsonl` | bad records with their headers, and marks | topics |
| `checkpoint` | notes: start, topics, sinks, batches to run again, run, stop, lease, alerts, ... | checkpoint |
| `state_notes.json` | what the state depends on, for each step with state | checkpoint |
| `spark_checkpoint` | Spark's own files, as a fork or a restore writes them | checkpoint |
| `backup` | a copy: its manifest, and which notes belong to it | `<checkpoint>-backups` |
| `history.jsonl` | an entry of each kind; flow control remembers nothing else | checkpoint |
| `redrive` | plan, records, progress, attempt, end | `<checkpoint>-redrives` |
| `replay` | plan, progress, summary | `<checkpoint>-replays` |
| `staged_manifests` | staged for a replay in place; of 0.7.0: not read, staged again | `<checkpoint>-replays` |
| `dev_stack` | processes and listeners of `penstock dev` | its folder |

Tables and databases that 0.7.0 left are continued in the tests of the sinks: `delta_0.7.0`, `parquet_0.7.0`,
`iceberg_summaries_0.7.0.json`, `postgres_0.7.0.sql`. Caches that are made anew where they do not fit are no formats.

To change a format on purpose: keep its golden file as `NAME_<last release>`, have it read here, and write the new one
by `python -m tests.stored_formats NAME`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.stored_formats import (
    BAD,
    BATCH,
    CLAIM,
    DELTA_BATCH,
    FACTS,
    FORMATS,
    FULL,
    GAPS,
    GOLDEN,
    INTO,
    MANIFESTS,
    MARKER,
    NOW,
    ONE,
    POSITIONS,
    QUARANTINED,
    QUERY,
    RANGES,
    REPLAY,
    REQUEST,
    RUN,
    STATEFUL,
    TOKENS,
    TOPICS,
    TWO,
    WHOLE,
    ZERO,
    contents,
    dev_stack,
    iceberg_sink,
    quarantining,
    stateful,
    targets_of,
    write_quarantine_to,
)
from tests.unit.ops.quarantines import MOMENT
from tests.unit.ops.test_redrive import hold
from tests.unit.sinks.test_iceberg_sink import opened
from tests.unit.supervision.test_bounded import bounded

from penstock.assembly.build import build
from penstock.assembly.state import check_state
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import check_files, list_backups
from penstock.checkpoint.files import NotedSink
from penstock.checkpoint.lock import _claim_in
from penstock.checkpoint.logs import read_files
from penstock.checkpoint.presence import Presence
from penstock.config import PipelineConfig
from penstock.dashboard.recent import Recent
from penstock.devstack import SecureStack
from penstock.devstack.secure import ExtraListener, Tokens
from penstock.devstack.state import load as load_stack
from penstock.errors import MissingError
from penstock.metrics.history import History, RetryNoted
from penstock.model import RAW_SCHEMA, BatchToken, OffsetRange, Position, Rule, TopicPartition, redrives_of
from penstock.model.stored_manifests import manifests_from_json
from penstock.ops.diagnosis.evidence import batches_in, states_in
from penstock.ops.gaps import find_gaps
from penstock.ops.lag import samples_in
from penstock.ops.quarantine.place import quarantine_of
from penstock.ops.redrive.runs import runs_in
from penstock.ops.replay.folder import ReplayRequest, replay_called, unfinished
from penstock.ops.replay.targets import TargetChoice, Way
from penstock.quarantine import QUARANTINE_SCHEMA
from penstock.quarantine.marks import IDENTITIES, Outcome
from penstock.quarantine.records import _quarantined
from penstock.readers.stored import StoredReader
from penstock.sinks.delta.history import Applied, own_commit, position_of
from penstock.sinks.files import staged_batch
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.kafka.markers import Marker
from penstock.sinks.parquet import ParquetSink
from penstock.sinks.parquet.columns import Columns
from penstock.sinks.parquet.sink import FolderSink
from penstock.sinks.postgres.names import StagedName
from penstock.storage import Storage
from penstock.storage.objects import StoredObject
from penstock.supervision.alerting import _FiringNote
from penstock.supervision.bounded import BoundedRun, _attempt
from penstock.supervision.flow_control import observed_in

VERSIONS = pytest.mark.parametrize("version", ["", "_0.7.0"])


def copied(name: str, folder: Path) -> Path:
    """A golden file or folder where a test may write."""
    source, target = GOLDEN / name, folder / "copied"
    target.mkdir()
    found = shutil.copytree(source, target / name) if source.is_dir() else shutil.copy(source, target / name)
    return Path(found)


def told(one: BatchToken) -> tuple[object, ...]:
    """All of a token: what is not part of its identity as well."""
    return one, one.topic_ids, one.quarantine, one.rule, one.reason


@pytest.mark.parametrize("name", FORMATS)
def test_stored_format_is_written_as_in_its_golden_file(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    assert contents(tmp_path / name) == contents(GOLDEN / name)


def test_token_is_read_with_its_rule_and_all_that_it_carries() -> None:
    found = [BatchToken.from_json(line) for line in (GOLDEN / "tokens.jsonl").read_text().splitlines()]
    assert [told(one) for one in found] == [told(one) for one in TOKENS]


def test_position_is_read_as_it_was() -> None:
    found = [Position.from_json(line) for line in (GOLDEN / "positions.jsonl").read_text().splitlines()]
    assert [(one, told(one.last)) for one in found] == [(one, told(one.last)) for one in POSITIONS]


def test_token_that_version_0_7_stored_is_a_position_of_its_ends() -> None:
    position = Position.from_json((GOLDEN / "token_0.7.0.json").read_text())
    assert (position.last.query_id, position.last.batch_id, position.number) == ("5f0c7f3e-0000", 4, 0)
    assert position.next == {ZERO: 20, ONE: 7}


def test_delta_entry_is_read_from_its_metadata_and_from_its_transactions() -> None:
    entries = [json.loads(line) for line in (GOLDEN / "delta_entry.json").read_text().splitlines()]
    info = entries[0]["commitInfo"]
    by_spark = {"userMetadata": json.dumps({key: value for key, value in info.items() if key.startswith("penstock.")})}
    for entry in (info, by_spark):
        found = own_commit(entry, "orders", "out")
        assert found is not None
        assert (told(found[0].last), found[0].number, found[1]) == (told(DELTA_BATCH), 1, 0)
    applied = [entry["txn"] for entry in entries[1:]]
    rebuilt = position_of(
        {one["appId"]: Applied(one["version"], one["lastUpdated"]) for one in applied}, "orders", "out"
    )
    assert rebuilt is not None
    assert (rebuilt.last.query_id, rebuilt.last.batch_id, rebuilt.next, rebuilt.number) == (QUERY, 3, {ZERO: 40}, 1)


def test_iceberg_summaries_are_read_as_the_position_of_the_newest(tmp_path: Path) -> None:
    iceberg_sink(tmp_path)
    for summary in json.loads((GOLDEN / "iceberg_summaries.json").read_text()):
        table = opened(tmp_path)
        table.append(table.schema().as_arrow().empty_table(), snapshot_properties=summary)
    held = iceberg_sink(tmp_path).position()
    assert held is not None
    assert (held.number, held.next, held.last.rule) == (4, {ZERO: 9, ONE: 4}, Rule.MOVES)
    assert (held.last.batch_id, held.last.reason) == (3, "checkpoint fork")


@pytest.mark.parametrize(
    ("golden", "sink", "columns_file"),
    [("parquet", ParquetSink, "_common_metadata"), ("jsonl", JsonLinesSink, "_columns.parquet")],
)
def test_folder_of_batches_is_read_also_where_they_are_gone(
    tmp_path: Path, golden: str, sink: type[FolderSink], columns_file: str
) -> None:
    root = copied(golden, tmp_path)
    held = sink("orders", "out", str(root)).position()
    assert held is not None
    assert (held.last.batch_id, held.next, held.number) == (1, {ZERO: 20, ONE: 5}, 2)
    assert (held.last.topic_ids, held.last.quarantine) == (TOPICS, {"bad": 2})
    assert sink("returns", "out", str(root)).other_writers() == ["orders/out"]
    columns = Columns.from_footer((root / columns_file).read_bytes())
    assert columns is not None
    assert (columns.files.names, columns.partitions.names) == (["id", "_penstock"], ["day"])
    for batch in root.glob("penstock_batch=*"):
        shutil.rmtree(batch)
    lost = sink("orders", "out", str(root)).position()
    assert lost is not None
    assert (lost.last.batch_id, lost.next) == (-1, {ZERO: 0, ONE: 0})


def test_kafka_marker_is_read_as_it_was() -> None:
    found = Marker.from_bytes((GOLDEN / "kafka_marker.json").read_bytes())
    assert (found, told(found.position.last)) == (MARKER, told(MARKER.position.last))
    assert (found.slots, found.number, found.partitions, found.topic, found.whole) == (4, 43, 6, "orders.clean", True)


def test_kafka_marker_of_version_0_7_is_a_position_of_the_last_batch_alone() -> None:
    found = Marker.from_bytes((GOLDEN / "kafka_marker_0.7.0.json").read_bytes())
    assert (found.slots, found.number, found.partitions, found.whole) == (4, 42, 6, False)
    assert (found.position.last.query_id[:8], found.position.last.batch_id) == ("5f0c7f3e", 41)
    assert found.position.next == {ZERO: 2000, ONE: 900, TopicPartition("returns", 0): 12}


def test_names_of_staged_rows_are_read_as_those_of_their_batch() -> None:
    names = json.loads((GOLDEN / "names.json").read_text())
    staged = StagedName.parse(f"{names['staging table of PostgreSQL']}_0000000a_0123abcd")
    assert staged is not None
    assert (staged.sink_mark, staged.batch_id, staged.made) == ("ada814094f", 4, 10)
    assert staged_batch(f"{names['staged files']}0-0-52d56681-0.parquet") == names["staged files"]


def quarantine_stored(folder: Path, version: str) -> PipelineConfig:
    """A pipeline whose tables one version has filled; those of this version are compared with the golden file."""
    if not version:
        return write_quarantine_to(folder)
    shutil.copytree(GOLDEN / "quarantine_tables_0.7.0", folder / "tables")
    return quarantining(folder)


@VERSIONS
def test_quarantine_tables_are_read_with_their_marks_and_gaps(tmp_path: Path, version: str) -> None:
    config = quarantine_stored(tmp_path, version)
    place = quarantine_of(config)
    [found] = place.read([*QUARANTINE_SCHEMA.names, "refused_by"]).to_dicts()
    expected = {**QUARANTINED, "refused_by": "out"}
    assert {name: found[name] for name in expected} == {**expected, "quarantined_at": found["quarantined_at"]}
    marks = place.read_marks()
    outcomes = [one.value for one in Outcome]
    assert marks["outcome"].to_list() == (outcomes if not version else outcomes[:-1])
    assert set(marks["commits"]) == {None if version else '{"out":2}'}
    assert set(marks["wanted_by"]) == set(marks["refused_by"]) == {"out"}
    assert (found["state"], found["failures"]) == ("redriven" if version else "failed", 1)
    gaps = [(gap.topic, gap.partition, gap.start, gap.end, gap.reason, gap.batch_id) for gap in find_gaps(config).gaps]
    assert gaps == [(gap.topic, gap.partition, gap.start, gap.end, gap.reason, 4) for gap in GAPS]
    targets = targets_of(config)
    assert targets.gaps is not None
    for sink in (*targets.quarantines, targets.gaps, targets.sinks[0]):
        held = sink.position()
        assert held is not None
        assert (held.last.batch_id, held.next) == (4, {ZERO: 20})


@VERSIONS
def test_record_of_a_quarantine_topic_is_read_with_the_facts_of_its_headers(version: str) -> None:
    [stored] = json.loads((GOLDEN / f"quarantine_topic{version}.json").read_text())
    body = {name: stored[name].encode("latin-1") for name in ("key", "value")}
    headers = [{"key": one["key"], "value": one["value"].encode("latin-1")} for one in stored["headers"]]
    place = {"topic": "orders.bad", "partition": 0, "offset": 0, "timestamp": MOMENT}
    raw = pa.RecordBatch.from_pylist([{**body, "headers": headers, **place}], schema=RAW_SCHEMA)
    assert _quarantined(raw).to_dicts() == [QUARANTINED]


@VERSIONS
def test_notes_of_a_checkpoint_are_read(tmp_path: Path, version: str) -> None:
    path = copied(f"checkpoint{version}", tmp_path)
    checkpoint, files = SparkCheckpoint(str(path)), read_files(str(path))
    stored = FULL if not version else replace(FULL, topic_ids={}, quarantine={})
    assert (checkpoint.start_used(), checkpoint.maintained_at()) == ("earliest", 1767225600.5)
    assert checkpoint.topic_ids() == files.topic_ids == TOPICS
    assert [told(one) for one in checkpoint.again()] == [told(one) for one in files.again] == [told(stored)]
    assert checkpoint.sinks_noted() == (
        {} if version else {"out": NotedSink("/lake/orders", 0), "other": NotedSink("/lake/other", 0)}
    )
    assert files.restoring == "repair of batch 4"
    presence = Presence(str(path))
    note = presence.read()
    assert note is not None
    assert (note.pid, note.host, note.error) == (7, "here", "DATA_LOSS")
    assert note.started_at == note.at == note.ended_at == MOMENT
    assert note.facts == (FACTS if not version else replace(FACTS, stalled=None))
    assert presence.stop_asked()
    assert _FiringNote(str(path), Storage()).read() == {"lag over 100": MOMENT}
    assert _claim_in(StoredObject((path / ".penstock.lease").read_bytes(), "mark", MOMENT)) == CLAIM


@VERSIONS
@pytest.mark.parametrize("name", STATEFUL)
def test_note_of_the_state_is_that_of_the_same_steps(tmp_path: Path, version: str, name: str) -> None:
    noted = json.loads((GOLDEN / f"state_notes{version}.json").read_text())[name]
    checkpoint = SparkCheckpoint(str(tmp_path / "checkpoint"))
    SparkCheckpoint(checkpoint.path).put_offsets(0, {ZERO: 10})
    made = stateful(name, tmp_path)
    checkpoint.note_state(json.dumps(noted))
    check_state(made, checkpoint)
    checkpoint.note_state(json.dumps([{**noted[0], "columns": {}}]))
    with pytest.raises(MissingError, match="STATE_CHANGED"):
        check_state(made, checkpoint)


def test_spark_checkpoint_is_read_with_its_offsets() -> None:
    path = str(GOLDEN / "spark_checkpoint")
    checkpoint, files = SparkCheckpoint(path), read_files(path)
    assert (checkpoint.query_id(), checkpoint.last_begun(), checkpoint.last_committed()) == (QUERY, 1, 1)
    assert (checkpoint.initial(), checkpoint.starts(1), checkpoint.ends(1)) == (
        {ZERO: 0, ONE: 5},
        {ZERO: 10, ONE: 7},
        {ZERO: 20, ONE: 7},
    )
    assert [file.problem for file in files.all] == [None] * 6


@VERSIONS
def test_backup_is_found_and_whole(tmp_path: Path, version: str) -> None:
    folder = copied(f"backup{version}", tmp_path)
    [found] = list_backups(str(folder.parent))
    assert (found.name, found.kind, found.pipeline, found.checkpoint) == (
        folder.name,
        "backup",
        "orders",
        "checkpoints/orders",
    )
    assert (found.query_id, found.batch, found.created_at) == (QUERY, 1, MOMENT)
    check_files(found)
    assert {file.name for file in found.files} == {
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    } - {"manifest.json"}


@VERSIONS
def test_history_is_read_by_flow_control_diagnosis_lag_and_dashboard(tmp_path: Path, version: str) -> None:
    entries = History(copied(f"history{version}.jsonl", tmp_path)).read()
    [batch] = observed_in(entries)
    assert (batch.batch_id, batch.offsets, batch.rows, batch.seconds, batch.bytes_in) == (4, 12, 10, 0.5, 2_000)
    assert (batch.backlog, batch.cap, batch.pressure, batch.skipped) == (70, 5_000, 0.5, False)
    [figures] = batches_in(entries)
    names = ("rows_in", "rows_out", "quarantined", "bytes_in", "offsets", "cap", "lag", "waited", "seconds")
    names += ("gc_seconds", "slot_rows", "slot_rows_out", "slot_seconds", "codes", "phases", "started_at")
    assert {name: getattr(figures, name) for name in names} == {name: getattr(BATCH, name) for name in names}
    [kept] = states_in(entries)
    assert (kept.batch_id, kept.rows, kept.size_bytes, kept.watermark_at) == (4, 100, 5_000, MOMENT)
    retries = [entry.fact for entry in entries if isinstance(entry.fact, RetryNoted)]
    assert retries == [RetryNoted("BROKER_UNREACHABLE", "no broker answers", 2, 1.5)]
    [sample] = samples_in(entries)
    assert (sample.at, sample.ends, sample.positions) == (MOMENT, {ZERO: 80, TWO: 5}, {ZERO: 10, TWO: 5})
    recent = Recent()
    for entry in entries:
        recent.take(entry)
    assert (recent.lane, recent.cap, len(recent.batches), recent.columns[0].behind_seconds) == ("direct", 6_000, 1, 1.5)
    assert (recent.decisions[0]["reason"], recent.firing[0]["rule"]) == ("room", "lag over 100")
    assert recent.notices[0]["text"].startswith("BROKER_UNREACHABLE no broker answers; retrying")


@VERSIONS
def test_redrive_is_read_with_its_records_and_goes_on(tmp_path: Path, version: str) -> None:
    root = copied(f"redrive{version}", tmp_path)
    [run] = runs_in(str(root))
    assert (run.name, run.records, run.finished, run.accept_duplicates) == (RUN, 3, True, not version)
    (root / RUN / "done.json").unlink()
    [run] = runs_in(str(root))
    assert not run.finished
    assert [(one.query_id, one.sinks, one.records) for one in run.passes] == [(QUERY, None, 2), (QUERY, ("other",), 1)]
    assert run.passes[0].batches == ((OffsetRange("orders", 0, 1, 4),),)
    assert [one.names for one in run.passes] == [() if version else ("out", "other")] * 2
    names = [*RAW_SCHEMA.names, IDENTITIES]
    rows = StoredReader(str(run.passes[1].file)).columns(run.passes[1].batches[0], names).to_pylist()
    assert rows == [{**{name: BAD[name] for name in RAW_SCHEMA.names}, "offset": 2, IDENTITIES: [None, "out"]}]
    bounded_run = BoundedRun(build(quarantining(tmp_path)), QUERY, run.passes[0].batches, run.passes[0].folder)
    assert (bounded_run.noted, bounded_run.finished) == (1, False)


def test_redrive_goes_on_under_the_query_id_of_its_last_attempt(tmp_path: Path) -> None:
    run = bounded(tmp_path, redrives_of("orders"), Rule.RECORDS)
    hold(tmp_path, [], name=redrives_of("orders"), query="earlier")
    shutil.copy(GOLDEN / "redrive" / RUN / "0" / "attempt.json", run.folder)
    assert _attempt(run).run_id == QUERY


def test_replay_is_read_and_goes_on_where_it_is_not_done(tmp_path: Path) -> None:
    folder = copied("replay", tmp_path).rename(tmp_path / "c-replays") / REPLAY
    stored = replay_called(str(tmp_path / "c"), REPLAY)
    assert (stored.finished, stored.query_id, stored.planned_at) == (True, "9f9f5111f7b27a781f1f1ddde5ebc2dd", NOW)
    assert (stored.request, stored.ranges, stored.batch_offsets) == (REQUEST, RANGES, 30)
    assert (stored.targets, stored.topic_ids, stored.pipeline("orders")) == (INTO, TOPICS, WHOLE.pipeline)
    run = BoundedRun(build(quarantining(tmp_path)), QUERY, (RANGES,), folder)
    assert (run.noted, run.finished) == (3, True)
    assert unfinished(str(tmp_path / "c"), REQUEST, INTO) is None
    (folder / "summary.json").unlink()
    assert unfinished(str(tmp_path / "c"), REQUEST, INTO) == stored


def test_replay_that_version_0_7_began_is_found_and_keeps_its_name_and_batches(tmp_path: Path) -> None:
    text = (GOLDEN / "replay_plan_0.7.0.json").read_text()
    folder = tmp_path / "c-replays" / json.loads(text)["id"]
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(text)
    (folder / "progress.json").write_text('{"done": 1, "of": 3, "finished": false}')
    request = ReplayRequest("0=10,1=20", "latest", None, ("out",), ("/lake/again",))
    found = unfinished(str(tmp_path / "c"), request, (TargetChoice("out", Way.INTO, "/lake/again"),))
    assert found is not None
    assert found.pipeline("orders") == "orders.replay-20261005-101500-3f2a"
    assert (found.query_id, found.batch_offsets, found.topic_ids) == ("6c1f2a70-5a51-4a0c-9a54-1f6f8f0f9d11", 30, {})
    assert found.ranges == (OffsetRange("orders", 0, 10, 51), OffsetRange("orders", 1, 20, 50))


def test_manifests_staged_for_a_replay_are_read_as_they_were() -> None:
    assert manifests_from_json((GOLDEN / "staged_manifests" / "0.json").read_text()) == MANIFESTS


@VERSIONS
def test_dev_stack_is_found_with_its_processes_and_listeners(tmp_path: Path, version: str) -> None:
    folder = copied(f"dev_stack{version}", tmp_path)
    assert load_stack(folder) == dev_stack(folder)
    secure = SecureStack.of(folder)
    assert secure is not None
    assert secure.ports == {"MTLS": {"1": 9093}, "OLD": {"1": 9093}}
    assert (secure.extra, secure.tokens) == (
        (ExtraListener("OLD", ("localhost",), True),),
        Tokens("http://issuer", "kafka", "http://keys"),
    )
