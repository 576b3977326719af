"""What makes two replays the same, and what the targets say about one that was begun or done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ops.test_replay_targets import DELTA, KAFKA, MERGE, RANGES, pipeline

from penstock.model import BatchToken, OffsetRange, Position
from penstock.ops.replay.folder import ReplayRequest, new_replay, replay_called
from penstock.ops.replay.ranges import replay_id
from penstock.ops.replay.replay import _batch_offsets, _holds_all
from penstock.ops.replay.targets import TargetChoice, Way
from penstock.supervision.bounded import cut

INTO = (TargetChoice("out", Way.INTO, "/lake/again"),)
TOPICS = {"orders": "id-1"}


def name_of(folder: Path, sink: dict[str, Any] = DELTA, targets: Any = INTO, ranges: Any = RANGES, **keys: Any) -> str:
    return replay_id(pipeline(folder, sink, KAFKA, **keys), ranges, keys.pop("topics", TOPICS), targets)


def test_replay_of_the_same_ranges_targets_and_definition_has_the_same_id(tmp_path: Path) -> None:
    first = name_of(tmp_path)
    assert first == name_of(tmp_path, source={"type": "kafka", "brokers": "elsewhere:1", "topics": ["orders"]})
    assert first == name_of(tmp_path, {**DELTA, "target_file_bytes": "1 MiB"}, checkpoint="another")
    assert len(first) == 16


def test_replay_of_anything_that_changes_rows_has_another_id(tmp_path: Path) -> None:
    decode = {"format": "json", "schema": "order_id BIGINT"}
    others = [
        name_of(tmp_path),
        name_of(tmp_path, ranges=(OffsetRange("orders", 0, 10, 21),)),
        name_of(tmp_path, targets=(TargetChoice("out", Way.INTO, "/lake/other"),)),
        name_of(tmp_path, targets=(TargetChoice("out", Way.REPLACED),)),
        name_of(tmp_path, decode=decode),
        name_of(tmp_path, transforms=[{"derive": {"x": "1"}}]),
        name_of(tmp_path, {**DELTA, "where": "order_id > 1"}),
        name_of(tmp_path, name="returns"),
        name_of(tmp_path, MERGE),
        replay_id(pipeline(tmp_path, DELTA, KAFKA), RANGES, {"orders": "id-2"}, INTO),
    ]
    assert len(set(others)) == len(others)


def test_replay_with_a_schema_file_is_another_when_the_file_changes(tmp_path: Path) -> None:
    (tmp_path / "columns.ddl").write_text("order_id BIGINT")
    decode = {"format": "json", "schema_file": "columns.ddl"}
    first = name_of(tmp_path, decode=decode)
    (tmp_path / "columns.ddl").write_text("order_id STRING")
    assert name_of(tmp_path, decode=decode) != first


def position(stored: Any, batch: int, size: int) -> Position:
    held = None
    for number, ranges in enumerate(cut(stored.ranges, size)[: batch + 1]):
        held = Position.after(held, BatchToken("orders.replay-x", stored.query_id, number, ranges))
    assert held is not None
    return held


@pytest.mark.parametrize(("batch", "size"), [(0, 3), (1, 3), (3, 3), (0, 100)])
def test_replay_interrupted_goes_on_in_batches_of_the_size_that_its_targets_show(
    tmp_path: Path, batch: int, size: int
) -> None:
    stored = new_replay(str(tmp_path / "c"), "x", ReplayRequest("earliest", "latest"), RANGES, 7, INTO)
    found = _batch_offsets(stored, [None, position(stored, batch, size)])
    assert cut(RANGES, found) == cut(RANGES, size)
    assert _batch_offsets(stored, [None]) == 7


def test_replay_is_done_where_a_target_holds_every_range_by_this_very_replay(tmp_path: Path) -> None:
    stored = new_replay(str(tmp_path / "c"), "x", ReplayRequest("earliest", "latest"), RANGES, 3, INTO)
    done = position(stored, 3, 3)
    assert _holds_all(done, stored)
    assert not _holds_all(position(stored, 2, 3), stored)
    assert not _holds_all(None, stored)
    assert not _holds_all(Position.nothing_left(done), stored)
    assert not _holds_all(done, replace(stored, query_id="another"))


def test_replay_done_and_run_again_forgets_that_it_was_done(tmp_path: Path) -> None:
    stored = new_replay(str(tmp_path / "c"), "x", ReplayRequest("earliest", "latest"), RANGES, 3, INTO, TOPICS)
    stored.write()
    (stored.folder / "progress.json").write_text("{}")
    stored.finish({})
    assert new_replay(str(tmp_path / "c"), "x", ReplayRequest("0=1", "latest"), RANGES, 9, INTO) == stored
    stored.write()
    assert [path.name for path in stored.folder.iterdir()] == ["plan.json"]
    assert replay_called(str(tmp_path / "c"), "x").topic_ids == TOPICS
