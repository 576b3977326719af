"""Pipelines as files: what the overview and the details make of them, whatever is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.unit.dashboard.pipelines import (
    SECRET,
    ago,
    batch,
    checkpoint_of,
    committed,
    definition,
    lag,
    ran,
    runs,
    write_history,
)

from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.presence import RUN_NOTE
from penstock.config import PipelineConfig, load
from penstock.dashboard import watcher as watching
from penstock.dashboard.watcher import Clusters, Watcher
from penstock.errors import TransientError
from penstock.ops.snapshot import Brokers, ask_brokers
from penstock.ops.status import find_status
from penstock.quarantine import QUARANTINE_SCHEMA

ROW = {
    "id", "file", "name", "state", "doing", "since", "lane", "batch_id", "batch_at", "batch_seconds", "rows_in_rate",
    "rows_out_rate", "quarantined_rate", "lag", "behind_seconds", "cap", "health", "problem", "lag_series",
}  # fmt: skip
DETAIL = ROW | {
    "flow", "batches", "phases", "heat", "quarantine", "decisions", "checkpoint", "diagnosis", "lag_report", "alerts",
    "notices", "target", "unseen",
}  # fmt: skip


def _rows(watcher: Watcher) -> list[dict[str, Any]]:
    watcher.poll()
    found: list[dict[str, Any]] = json.loads(watcher.overview.rows)
    return found


def row(watcher: Watcher, name: str = "orders") -> dict[str, Any]:
    return next(one for one in _rows(watcher) if one["id"] == name)


def detail(watcher: Watcher, name: str = "orders") -> dict[str, Any]:
    sent = watcher.watches[name].send()
    assert sent is not None
    body: dict[str, Any] = json.loads(sent.text)
    return body


def look(watcher: Watcher, name: str = "orders") -> None:
    """Make every look that is due at a pipeline that is watched; a poll of the watcher would give them to threads."""
    watcher.watches[name].poll()
    watcher.watches[name].watch()
    made: list[Callable[[], None]] = watcher.due()
    for one in made:
        one()


def test_a_running_pipeline_is_told_by_its_own_history(tmp_path: Path) -> None:
    file = definition(tmp_path)
    committed(file, {0: 5, 1: 5})
    flow = {"at": ago(1), "event": "flow", "batch_id": 8, "cap": 7000, "before": 5000, "reason": "behind", "text": "t"}
    started = {"at": ago(600), "event": "started", "lane": "direct", "partitions": 2, "pid": 1}
    write_history(file, [started, *(batch(n, ago(31 - 10 * n)) for n in range(4)), flow])
    write_history(file, [lag(ago(5), "orders", [100, 40], [50, 40]), lag(ago(0), "orders", [100, 40], [90, 40])])
    with checkpoint_lock(str(checkpoint_of(file))):
        runs(file, doing="running")
        watcher = Watcher([file])
        found = row(watcher)
        assert set(found) == ROW
        assert (found["state"], found["doing"], found["health"], found["lane"]) == (
            "running",
            "running",
            "ok",
            "direct",
        )
        assert (found["batch_id"], found["batch_seconds"], found["cap"]) == (3, 2.0, 7000)
        assert (found["lag"], found["behind_seconds"], found["lag_series"]) == (10, 1.5, [50, 10])
        assert 60 <= found["rows_in_rate"] <= 67 and 0.5 < found["quarantined_rate"] < 0.8
        shown = detail(watcher)
    assert set(shown) == DETAIL
    assert [one["id"] for one in shown["batches"]] == [0, 1, 2, 3]
    assert set(shown["batches"][0]["phases"]) == set(shown["phases"])
    assert shown["decisions"][0]["reason"] == "behind"
    assert shown["target"] == {"seconds": 20.0, "fixed": False}
    assert set(shown["unseen"].values()) == {"Loading…"}
    assert shown["heat"]["columns"] == [[50, 0], [10, 0]] and shown["heat"]["append"] is False
    assert shown["heat"]["partitions"][0] == {
        "topic": "orders", "partition": 0, "committed": 90, "end": 100, "lag": 10, "seconds_behind": None, "hot": False,
    }  # fmt: skip
    assert shown["flow"]["nodes"][0]["total"] == 4000
    assert shown["lag_report"]["group"] == "penstock.orders"
    assert shown["quarantine"]["by_code"] == [{"code": "MALFORMED_JSON", "count": 40}]


def test_a_running_pipeline_far_behind_warns_and_says_so(tmp_path: Path) -> None:
    file = definition(tmp_path)
    write_history(file, [lag(ago(60 - 5 * n), "orders", [1000 + n * 100], [0], behind_seconds=2700) for n in range(13)])
    with checkpoint_lock(str(checkpoint_of(file))):
        runs(file)
        watcher = Watcher([file])
        assert row(watcher)["problem"] == "45 minutes behind, and the lag grows"
        firing = {"at": ago(0), "event": "alert", "rule": "lag_over 100", "state": "firing", "text": "lag is 2,200"}
        write_history(file, [firing])
        found = row(watcher)
        assert (found["health"], found["problem"]) == ("warn", "lag_over 100: lag is 2,200")
        runs(file, doing="waiting to retry: SINK_BUSY")
        assert row(watcher)["problem"] == "the run is waiting to retry: SINK_BUSY"


def test_a_run_that_ended_is_told_by_how_it_ended(tmp_path: Path) -> None:
    names = ("done", "failed", "killed", "never")
    files = {name: definition(tmp_path, name) for name in names}
    ran(files["done"], lag=3)
    ran(files["failed"], error="SINK_TOKEN_MISMATCH")
    runs(files["killed"])
    watcher = Watcher(list(files.values()))
    told = {name: (row(watcher, name)["state"], row(watcher, name)["health"]) for name in names}
    assert told == {
        "done": ("stopped", "ok"), "failed": ("failed", "bad"),
        "killed": ("killed", "bad"), "never": ("not running", "ok"),
    }  # fmt: skip
    assert "SINK_TOKEN_MISMATCH" in row(watcher, "failed")["problem"]
    files["wrong"] = tmp_path / "wrong.yaml"
    files["wrong"].write_text("name: wrong\n")
    told = {one["id"]: one["state"] for one in _rows(Watcher(list(files.values())))}
    assert told == {Path(one.file).stem: one.state for one in find_status(list(files.values()))}, "as status says it"
    assert (row(watcher, "done")["lag"], row(watcher, "done")["doing"]) == (3, None)


def test_a_run_that_begins_and_ends_shows_at_the_next_poll(tmp_path: Path) -> None:
    file = definition(tmp_path)
    watcher = Watcher([file])
    assert row(watcher)["state"] == "not running"
    with checkpoint_lock(str(checkpoint_of(file))):
        run = runs(file)
        assert row(watcher)["state"] == "running"
        run.end()
    assert row(watcher)["state"] == "stopped"


def test_a_wrong_file_is_shown_as_such_and_comes_back_when_it_is_mended(tmp_path: Path) -> None:
    good, bad = definition(tmp_path), tmp_path / "bad.yaml"
    bad.write_text("name: bad\nsauce: {}\n")
    watcher = Watcher([good, bad, tmp_path / "gone.yaml"])
    found = row(watcher, "bad")
    assert (found["state"], found["health"]) == ("wrong file", "bad")
    assert "sauce" in found["problem"] and "bad.yaml" in found["problem"]
    assert row(watcher, "gone")["state"] == "wrong file"
    assert detail(watcher, "bad")["flow"] == {"nodes": [], "edges": []}
    bad.write_text(good.read_text().replace("orders", "bad"))
    assert row(watcher, "bad")["state"] == "not running"


def test_a_checkpoint_that_is_named_by_an_address_of_this_machine_is_watched_too(tmp_path: Path) -> None:
    file = definition(tmp_path, checkpoint=f"file://{tmp_path}/checkpoints/orders")
    committed(file, {0: 5})
    write_history(file, [batch(1, ago(3)), lag(ago(0), "orders", [9], [5])])
    with checkpoint_lock(str(checkpoint_of(file))):
        runs(file)
        found = row(Watcher([file]))
    assert (found["state"], found["batch_id"], found["lag"]) == ("running", 1, 4)


def test_a_broken_checkpoint_is_shown_as_such(tmp_path: Path) -> None:
    file = definition(tmp_path)
    (committed(file, {0: 5}, {0: 9}) / "metadata").unlink()
    watcher = Watcher([file])
    look(watcher)
    found = row(watcher)
    assert (found["health"], found["problem"].split()[0]) == ("bad", "CHECKPOINT_METADATA_LOST")
    assert set(detail(watcher)["unseen"].values()) == {None}
    findings = detail(watcher)["checkpoint"]["findings"]
    assert findings[0]["code"] == "CHECKPOINT_METADATA_LOST" and findings[0]["way_out"]


def test_notes_and_histories_that_make_no_sense_break_no_page(tmp_path: Path) -> None:
    file = definition(tmp_path)
    ran(file, lag=3)
    note = checkpoint_of(file) / RUN_NOTE
    body = json.loads(note.read_text())
    note.write_text(json.dumps({**body, "facts": {**body["facts"], "batch_at": 7, "doing": None}}))
    write_history(file, [batch(1, ago(3), phases=[1, 2], codes=7), {"at": ago(1), "event": "alert"}, {}])
    watcher = Watcher([file])
    found = row(watcher)
    assert found["name"] == "orders" and set(detail(watcher)) == DETAIL


def test_brokers_that_are_away_are_asked_once_for_all_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [definition(tmp_path, name) for name in ("a", "b", "c")]
    for file in files:
        committed(file, {0: 5})
    watcher = Watcher(files)
    for watch in watcher.watches.values():
        watch.poll()
    looks = watcher.due()
    assert len(looks) == 3, "one at each"
    asked: list[str] = []

    def ask(config: PipelineConfig, **more: Any) -> Brokers:
        asked.append(config.name)
        return ask_brokers(config, **more)

    monkeypatch.setattr(watching, "ask_brokers", ask)
    for one in looks:
        one()
    assert asked == ["a"]
    found = row(watcher, "b")
    assert (found["health"], found["problem"].split()[0]) == ("warn", "BROKER_UNREACHABLE")
    assert SECRET not in json.dumps(detail(watcher, "b"))


def test_brokers_that_were_away_are_asked_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, clusters = load(definition(tmp_path)), Clusters()
    away = Brokers(error=TransientError("BROKER_UNREACHABLE", "asking: nobody answers"))
    answers = iter([away, Brokers({})])
    monkeypatch.setattr(watching, "ask_brokers", lambda config, **more: next(answers))
    monkeypatch.setattr(watching, "_UNREACHABLE_SECONDS", 0.0)
    assert clusters.ask(config) is away
    assert clusters.ask(config) == Brokers({})


def test_details_of_a_watched_pipeline_have_what_only_a_look_can_tell(tmp_path: Path) -> None:
    file = definition(tmp_path)
    committed(file, {0: 5}, {0: 9})
    now = datetime.now(UTC)
    empty = {**dict.fromkeys(QUARANTINE_SCHEMA.names), "pipeline": "orders", "batch_id": 1, "stage": "decode"}
    rows = [
        {**empty, "code": code, "message": "m", "value": value, "topic": "orders", "partition": 0, "offset": offset,
         "timestamp": now, "quarantined_at": now - timedelta(days=days)}
        for offset, (code, value, days) in enumerate(
            [("B", b"old", 2), ("A", b"x" * 500, 0), ("A", b"\xff\xfe", 0), ("A", None, 0)]
        )
    ]  # fmt: skip
    table = pa.Table.from_pylist([*rows, {**rows[0], "pipeline": "others"}], schema=QUARANTINE_SCHEMA)
    write_deltalake(tmp_path / "lake/orders_bad", table)
    watcher = Watcher([file])
    watcher.watches["orders"].poll()
    before = detail(watcher)
    assert (before["checkpoint"]["sinks"], before["quarantine"]["today"], before["diagnosis"]["at"]) == ([], None, None)
    assert not any(name in watcher.watches["orders"].facts.panels for name in ("quarantine", "checkpoint"))
    look(watcher)
    watcher.watches["orders"]._views._made_at = 0.0
    shown = detail(watcher)
    assert shown["quarantine"]["by_code"] == [{"code": "A", "count": 3}, {"code": "B", "count": 1}]
    assert shown["quarantine"]["today"] == 3
    samples = shown["quarantine"]["samples"]
    assert [sample["offset"] for sample in samples] == [3, 0, 2, 1], "the newest of each code, then the others"
    assert [sample["value"] for sample in samples] == [None, "old", "\ufffd\ufffd", "x" * 200]
    assert (shown["checkpoint"]["committed"], shown["checkpoint"]["begun"]) == (1, 1)
    assert next(sink["name"] for sink in shown["checkpoint"]["sinks"]) == "out"
    assert shown["diagnosis"]["at"] is not None
    assert any("BROKER_UNREACHABLE" in notice["text"] for notice in shown["notices"])
    assert SECRET not in json.dumps(shown)


def test_details_are_sent_again_only_when_they_changed_and_then_with_the_new_columns(tmp_path: Path) -> None:
    file = definition(tmp_path)
    write_history(file, [lag(ago(9), "orders", [10, 20], [0, 0]), lag(ago(4), "orders", [11, 20], [0, 0])])
    watcher = Watcher([file])
    watch = watcher.watches["orders"]
    watcher.poll()
    first = watch.send()
    assert first is not None and watch.send(first) is None
    write_history(file, [lag(ago(0), "orders", [12, 20], [0, 0])])
    watcher.poll()
    assert watch.send(first) is None, "at most once a second"
    watch._views._made_at = 0.0
    second = watch.send(first)
    assert second is not None
    heat = json.loads(second.text)["heat"]
    assert (heat["append"], heat["columns"], len(heat["times"])) == (True, [[12, 20]], 1)
    write_history(file, [lag(ago(0), "orders", [12, 20, 5], [0, 0, 0])])
    watcher.poll()
    watch._views._made_at = 0.0
    third = watch.send(second)
    assert third is not None
    heat = json.loads(third.text)["heat"]
    assert (heat["append"], heat["columns"][0], heat["columns"][-1]) == (False, [10, 20, None], [12, 20, 5])


def test_files_of_one_name_have_ids_of_their_own(tmp_path: Path) -> None:
    files = [definition(tmp_path / folder) for folder in ("a", "b")]
    watcher = Watcher([*files, files[0]])
    assert list(watcher.watches) == ["orders", "orders-2"]
    assert row(watcher, "orders-2")["file"] == str(files[1])


def test_watcher_that_follows_other_files_keeps_what_it_knows_of_those_that_stay(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml")]
    watcher = Watcher(files[:2])
    kept = watcher.watches["b"]
    watcher.follow(files[1:])
    assert list(watcher.watches) == ["b", "c"] and watcher.watches["b"] is kept
    watcher.poll()
    assert [row["id"] for row in json.loads(watcher.overview.rows)] == ["b", "c"]
