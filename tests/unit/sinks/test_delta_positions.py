"""The position of a pipeline and sink in a Delta table: past clean-ups of the log, restores, and other writers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.committing import commit, holds, last_commit
from tests.contract.rows import SCHEMA, land, prepared, records, stage, token
from tests.tables import read_table

from penstock.errors import TerminalError
from penstock.model import COORDINATES, BatchToken, MergeRules, OffsetRange, Position, Rule, TopicPartition
from penstock.sinks.commit import commit as commit_known
from penstock.sinks.delta import DeltaMergeSink, DeltaSink
from penstock.sinks.delta.history import entries, own_commits, transactions_at
from penstock.sinks.delta.table import SinkTable
from penstock.sinks.files import TableFolder

GOLDEN = Path(__file__).parents[2] / "golden"
HERE = TopicPartition("orders", 0)


def made(path: Path, pipeline: str = "orders", name: str = "out", **settings: Any) -> DeltaSink:
    sink = DeltaSink(pipeline, name, str(path), **settings)
    sink.prepare(SCHEMA)
    return sink


def seen(path: Path, pipeline: str = "orders", name: str = "out") -> Position | None:
    """The position as a process that starts now reads it."""
    return DeltaSink(pipeline, name, str(path)).position()


def other(batch_id: int) -> BatchToken:
    return token(batch_id, batch_id * 10, batch_id * 10 + 10, pipeline="busy", query="busy-query")


def forget(path: Path, below: int) -> None:
    """What Delta's clean-up of the log leaves: a checkpoint, and no entry below it."""
    DeltaTable(path).create_checkpoint()
    forget_entries(path, below)


def forget_entries(path: Path, below: int) -> None:
    for entry in (path / "_delta_log").glob("*.json"):
        if int(entry.name[:20]) < below and "checkpoint" not in entry.name:
            entry.unlink()


def in_parts(path: Path, version: int) -> None:
    """The checkpoint of a version as one of several parts."""
    whole = path / "_delta_log" / f"{version:020}.checkpoint.parquet"
    rows = pq.read_table(whole)
    half = rows.num_rows // 2
    for number, part in enumerate((rows.slice(0, half), rows.slice(half)), 1):
        pq.write_table(part, whole.with_name(f"{version:020}.checkpoint.{number:010}.{2:010}.parquet"))
    whole.unlink()


def as_v2(path: Path, version: int) -> None:
    whole = path / "_delta_log" / f"{version:020}.checkpoint.parquet"
    whole.rename(whole.with_name(f"{version:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"))


def as_v2_json(path: Path, version: int) -> None:
    whole = path / "_delta_log" / f"{version:020}.checkpoint.parquet"
    rows = [{"txn": row} for row in pq.read_table(whole, columns=["txn"])["txn"].to_pylist() if row is not None]
    named = whole.with_name(f"{version:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json")
    named.write_text("\n".join(map(json.dumps, rows)))
    whole.unlink()


def test_sibling_that_idles_past_the_clean_up_of_the_log_keeps_its_position(tmp_path: Path) -> None:
    idle = made(tmp_path, "idle")
    land(idle, token(0, 0, 3, pipeline="idle", query="idle-query"))
    two = (OffsetRange("orders", 0, 3, 4), OffsetRange("a/b", 7, 5, 9))
    commit(idle, BatchToken("idle", "idle-query", 1, two), [])
    before = idle.position()
    assert before is not None
    busy = made(tmp_path, "busy")
    for batch_id in range(15):
        land(busy, other(batch_id))
    forget(tmp_path, below=16)
    held = seen(tmp_path, "idle")
    assert held is not None
    assert (held.next, held.number) == (before.next, before.number)
    assert (held.last.query_id, held.last.batch_id) == ("idle-query", 1)

    fresh = made(tmp_path, "idle")
    with pytest.raises(TerminalError) as refused:
        land(fresh, token(0, 0, 3, pipeline="idle", query="fresh"))
    assert refused.value.code == "FENCED"
    land(fresh, token(2, 4, 6, pipeline="idle", query="idle-query"))
    held = seen(tmp_path, "idle")
    assert held is not None
    assert (held.next[HERE], held.next[TopicPartition("a/b", 7)], held.number) == (6, 9, 3)


def test_running_sibling_goes_on_after_the_clean_up_removed_all_it_followed(tmp_path: Path) -> None:
    idle = made(tmp_path, "idle")
    known = commit_known(idle, token(0, 0, 3, pipeline="idle"), [])
    busy = made(tmp_path, "busy")
    for batch_id in range(12):
        land(busy, other(batch_id))
    forget(tmp_path, below=12)
    known = commit_known(idle, token(1, 3, 5, pipeline="idle"), [], known)
    assert known is not None
    assert known.next == {HERE: 5}
    assert last_commit(idle) == token(1, 3, 5, pipeline="idle")


@pytest.mark.parametrize("kind", [in_parts, as_v2, as_v2_json])
def test_transactions_are_read_from_a_checkpoint_of_every_kind(tmp_path: Path, kind: Any) -> None:
    sink = made(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id, batch_id, batch_id + 1))
    DeltaTable(tmp_path).create_checkpoint()
    land(sink, token(3, 3, 4))
    kind(tmp_path, 3)
    forget_entries(tmp_path, below=4)
    found = transactions_at(TableFolder(str(tmp_path)), 4)
    assert found is not None
    assert {name: applied.version for name, applied in found.items()} == {
        **{"orders/out": 4, "orders/out//number": 4, "orders/out/5f0c7f3e-0000": 3},
        "orders/out/orders/0": 4,
    }
    before = transactions_at(TableFolder(str(tmp_path)), 3)
    assert before is not None and before["orders/out/orders/0"].version == 3
    assert transactions_at(TableFolder(str(tmp_path)), 2) is None


def test_checkpoint_that_lacks_a_part_is_not_read(tmp_path: Path) -> None:
    sink = made(tmp_path)
    land(sink, token(0, 0, 1))
    DeltaTable(tmp_path).create_checkpoint()
    in_parts(tmp_path, 1)
    next((tmp_path / "_delta_log").glob("*.checkpoint.0000000001*")).unlink()
    forget_entries(tmp_path, below=1)
    assert transactions_at(TableFolder(str(tmp_path)), 1) is None


def test_restore_after_a_clean_up_the_position_is_that_of_the_version_restored(tmp_path: Path) -> None:
    """The transaction ids of the newest version are not taken back: those of the version that is shown count."""
    sink = made(tmp_path)
    land(sink, token(0, 0, 3))
    busy = made(tmp_path, "busy")
    for batch_id in range(3):
        land(busy, other(batch_id))
    DeltaTable(tmp_path).create_checkpoint()
    land(busy, other(3))
    land(sink, token(1, 3, 5))
    DeltaTable(tmp_path).restore(5)
    DeltaTable(tmp_path).create_checkpoint()
    forget_entries(tmp_path, below=5)
    held = seen(tmp_path)
    assert held is not None
    assert (held.next, held.last.batch_id) == ({HERE: 3}, 0)
    land(made(tmp_path), token(1, 3, 5))
    assert seen(tmp_path) == Position.after(held, token(1, 3, 5))


def test_restore_to_a_version_that_the_log_does_not_know_any_more_is_refused_with_the_way_out(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id, batch_id, batch_id + 1))
    DeltaTable(tmp_path).restore(1)
    forget(tmp_path, below=3)
    with pytest.raises(TerminalError) as refused:
        seen(tmp_path)
    assert refused.value.code == "TARGET_WENT_BACK"
    assert "TO VERSION AS OF 3" in str(refused.value.hint)


def test_restore_to_a_time_leaves_the_commits_up_to_it(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id, batch_id, batch_id + 1))
    moment = DeltaTable(tmp_path).history()[-2]["timestamp"]
    restore = {"timestamp": 1, "operation": "RESTORE", "operationParameters": {"datetime": moment}}
    for version in (2, 3):  # so that the three commits are apart, whatever the clock
        move_in_time(tmp_path, version, moment + version)
    (tmp_path / "_delta_log" / f"{4:020}.json").write_text(json.dumps({"commitInfo": restore}))
    assert last_commit(sink) == token(0, 0, 1)


def move_in_time(path: Path, version: int, moment: int) -> None:
    log = path / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = moment
    log.write_text("\n".join(map(json.dumps, actions)))


def test_topic_that_was_created_again_with_fewer_partitions_is_forgotten_past_a_clean_up(tmp_path: Path) -> None:
    sink = made(tmp_path)
    first = (OffsetRange("orders", 0, 0, 5), OffsetRange("orders", 1, 0, 5))
    commit(sink, BatchToken("orders", "q", 0, first, {"orders": "one"}), [])
    commit(sink, BatchToken("orders", "q", 1, (OffsetRange("orders", 0, 0, 2),), {"orders": "two"}), [])
    busy = made(tmp_path, "busy")
    land(busy, other(0))
    forget(tmp_path, below=3)
    held = seen(tmp_path)
    assert held is not None and held.next == {HERE: 2}


def test_table_of_the_version_before_is_continued_with_every_partition(tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(GOLDEN / "delta_0.7.0", path)
    query, schema = "5f0c7f3e-8d0f-4f0e-9e57-0b4d1c5f2a11", SCHEMA.remove(2).remove(1)
    sink = DeltaSink("orders", "out", str(path), evolve="fail")
    nullable = schema.set(0, pa.field("id", pa.int64()))
    sink.prepare(nullable)
    held = sink.position()
    assert held is not None
    assert held.next == {HERE: 3, TopicPartition("orders", 1): 1}
    assert (held.last.batch_id, held.number) == (1, 0)
    assert holds(sink, BatchToken("orders", query, 1, (OffsetRange("orders", 0, 2, 3),)))
    with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
        holds(sink, BatchToken("orders", query, 2, (OffsetRange("orders", 1, 2, 3),)))
    land(sink, BatchToken("orders", query, 2, (OffsetRange("orders", 1, 1, 2),)), nullable)
    assert sorted(read_table(path)["id"].to_pylist()) == [0, 1, 1, 2, 10]
    found = transactions_at(TableFolder(str(path)), 3)
    assert found is not None
    assert {name: found[f"orders/out/orders/{name}"].version for name in (0, 1)} == {0: 3, 1: 2}


def test_other_writers_are_named_with_the_sinks_own_replays_and_redrives(tmp_path: Path) -> None:
    sink = made(tmp_path)
    assert sink.other_writers() == []
    for pipeline, name in [
        *(("orders", "out"), ("orders.replay-7", "out"), ("orders.redrive", "out")),
        *(("orders", "by_key"), ("returns", "out"), ("orders.replay-7", "elsewhere")),
    ]:
        commit(made(tmp_path, pipeline, name), token(0, 0, 3, pipeline=pipeline), [])
    expected = [
        *("orders.redrive/out", "orders.replay-7/elsewhere", "orders.replay-7/out"),
        *("orders/by_key", "returns/out"),
    ]
    assert sink.other_writers() == expected
    write_deltalake(tmp_path, read_table(tmp_path), mode="append")
    forget(tmp_path, below=7)
    assert made(tmp_path).other_writers() == expected
    assert made(tmp_path, "orders.replay-9").other_writers() == sorted([*expected, "orders/out"])


def places(*offsets: int) -> set[tuple[str, int, int]]:
    return {("orders", 0, offset) for offset in offsets}


def test_records_held_are_those_of_the_rows_in_the_ranges(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    nothing_yet = DeltaSink("orders", "out", str(tmp_path / "none"))
    assert nothing_yet.records_held([OffsetRange("orders", 0, 0, 9)]) == set()
    for batch, offsets in [(token(0, 0, 4), [0, 2, 2, 3]), (token(1, 4, 8), [4, 7])]:
        commit(sink, batch, [stage(sink, batch, [records(offsets)])])
    asked = [OffsetRange("orders", 0, 2, 5), OffsetRange("orders", 0, 7, 9), OffsetRange("orders", 1, 0, 9)]
    assert sink.records_held(asked) == places(2, 3, 4, 7)
    assert sink.records_held([]) == set()


def test_records_held_opens_no_file_that_has_none_of_them(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id, batch_id * 4, batch_id * 4 + 4))
    for file in tmp_path.glob(f"part-{token(0, 0, 0).label}*"):
        file.unlink()
    assert sink.records_held([OffsetRange("orders", 0, 5, 9)]) == places(5, 6, 7, 8)


def test_records_held_of_rows_without_coordinates_cannot_be_told(tmp_path: Path) -> None:
    sink = made(tmp_path, keep_coordinates=False)
    land(sink, token(0, 0, 3))
    assert sink.records_held([OffsetRange("orders", 0, 0, 9)]) is None
    assert DeltaSink("orders", "out", str(tmp_path)).records_held([OffsetRange("orders", 0, 0, 9)]) is None


def test_records_held_by_a_merge_are_those_that_gave_its_rows(tmp_path: Path) -> None:
    sink = DeltaMergeSink("orders", "out", str(tmp_path), MergeRules(("id",)))
    prepared(sink)
    land(sink, token(0, 0, 3), id=lambda n: n % 2)
    assert sink.records_held([OffsetRange("orders", 0, 0, 9)]) == places(1, 2)


def test_rows_in_files_that_a_compaction_wrote_are_found_and_replaced(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id, batch_id * 2, batch_id * 2 + 2))
    DeltaTable(tmp_path).optimize.compact()
    batch = BatchToken("orders.replay-1", "replay", 0, (OffsetRange("orders", 0, 1, 4),))
    replay = DeltaSink("orders.replay-1", "out", str(tmp_path)).replacing(batch.ranges)
    assert replay.records_held(batch.ranges) == places(1, 2, 3)
    prepared(replay)
    commit(replay, batch, [stage(replay, batch, [records([2], note="again")])])
    assert sorted((row["id"], row["note"]) for row in read_table(tmp_path).to_pylist()) == [
        *((0, "note 0"), (2, "again"), (4, "note 4"), (5, "note 5"))
    ]


def test_merge_in_the_driver_during_a_commit_without_files_of_another_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the shared transaction id can tell delta-rs that the two exclude each other."""
    merge_in_driver, overtaken = merge_module().merge_in_driver, iter([True])

    def late(*given: Any) -> bool:
        if next(overtaken, False):
            winner = made(tmp_path)
            commit(winner, token(0, 3, 9, query="other"), [])
        return bool(merge_in_driver(*given))

    sink = DeltaMergeSink("orders", "out", str(tmp_path), MergeRules(("id",)))
    prepared(sink)
    land(sink, token(0, 0, 3))
    monkeypatch.setattr(merge_module(), "merge_in_driver", late)
    with pytest.raises(TerminalError) as refused:
        land(sink, token(1, 3, 5))
    assert refused.value.code == "FENCED"
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [0, 1, 2]


def merge_module() -> Any:
    from penstock.sinks.delta import merge

    return merge


def test_discard_after_a_second_commit_of_a_batch_keeps_the_files_of_both(tmp_path: Path) -> None:
    sink = made(tmp_path)
    batch = token(0, 0, 5)
    first = stage(sink, batch, [records(range(3))])
    commit(sink, batch, [first])
    held = sink.position()
    more = stage(sink, batch, [records(range(3, 5))], attempt="more")
    stray = stage(sink, batch, [records([9])], attempt="stray")
    sink.land(Position.after(held, batch), [more], held)
    sink.discard(batch, [more])
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert not (tmp_path / stray.items[0].path).exists()  # type: ignore[attr-defined]


def test_append_to_a_table_that_was_removed_since_the_last_commit_makes_no_entry(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    known = commit_known(sink, token(0, 0, 3), [])
    log = tmp_path / "t" / "_delta_log"
    for entry in log.iterdir():
        entry.unlink()
    with pytest.raises(TerminalError):
        commit_known(sink, token(1, 3, 5), [], known)
    assert list(log.iterdir()) == []


def test_rows_into_a_required_column_are_taken_where_they_always_have_a_value(tmp_path: Path) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), SCHEMA.field(COORDINATES)])
    DeltaTable.create(str(tmp_path), schema=required)
    for sink in (
        DeltaSink("orders", "out", str(tmp_path)),
        DeltaMergeSink("orders", "by_key", str(tmp_path), MergeRules(("id",))),
    ):
        sink.prepare(required)
        land(sink, token(0, 0, 2), required)
    assert sorted(set(read_table(tmp_path)["id"].to_pylist())) == [0, 1]


def test_redrive_into_a_table_that_a_replay_is_replacing_is_refused_until_that_has_ended(tmp_path: Path) -> None:
    sink = made(tmp_path, "orders.redrive")
    replay = BatchToken("orders.redrive", "replay-7", 0, (), rule=Rule.HOLDS)
    redrive = BatchToken("orders.redrive", "redrive-1", 0, (OffsetRange("orders", 0, 3, 4),), rule=Rule.RECORDS)
    commit(sink, replay, [])
    with pytest.raises(TerminalError) as refused:
        commit(made(tmp_path, "orders.redrive"), redrive, [])
    assert (refused.value.code, refused.value.context) == ("REPLAY_UNFINISHED", {"replay": "replay-7"})
    commit(made(tmp_path, "orders.redrive"), BatchToken("orders.redrive", "moved", 0, (), rule=Rule.MOVES), [])
    commit(made(tmp_path, "orders.redrive"), redrive, [])


def test_rows_beside_replaced_ones_stay_where_another_writer_commits_while_leftovers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(made(tmp_path), token(0, 0, 10))
    batch = BatchToken("orders.replay-1", "replay-1", 0, (OffsetRange("orders", 0, 3, 6),))
    sink = made(tmp_path, batch.pipeline).replacing(batch.ranges)
    sink.prepare(SCHEMA)
    manifest = stage(sink, batch, [records(range(3, 6), note="again")])
    commit(sink, batch, [manifest])
    look, committing = SinkTable._refreshed, [other(1), other(2), other(3)]

    def look_and_be_overtaken(self: SinkTable) -> DeltaTable | None:
        table = look(self)
        if committing:
            live = committing.pop(0)
            with monkeypatch.context() as undone:
                undone.setattr(SinkTable, "_refreshed", look)
                land(made(tmp_path, live.pipeline), live)
        return table

    monkeypatch.setattr(SinkTable, "_refreshed", look_and_be_overtaken)
    sink.discard(batch, [manifest])
    assert not committing or len(committing) < 3
    monkeypatch.undo()
    rows = {row[COORDINATES]["offset"]: row["note"] for row in read_table(tmp_path).to_pylist()}
    assert [rows[n] for n in range(10)] == ["again" if 3 <= n < 6 else f"note {n}" for n in range(10)]


def test_entries_have_the_versions_that_they_are_of_whatever_others_commit_since(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for number in range(12):
        land(sink, token(number, number, number + 1))
    table, folder = DeltaTable(tmp_path), TableFolder(str(tmp_path))
    land(sink, token(12, 12, 13))
    assert [entry["version"] for entry in entries(table, folder)] == list(range(12, -1, -1))
    commits = list(own_commits(table, folder, "orders", "out"))
    assert [(one.version, one.position.last.batch_id) for one in commits] == [(n + 1, n) for n in range(11, -1, -1)]
    forget(tmp_path, below=5)
    assert [entry["version"] for entry in entries(DeltaTable(tmp_path), folder)] == list(range(13, 4, -1))
