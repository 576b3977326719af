"""The rejects of a replay: where they are kept, and what those of a replay in place do to the live quarantine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.tables import read_table
from tests.unit.ops.quarantines import MOMENT, TWO_SINKS, bad, pipeline
from tests.unit.ops.test_redrive import mark

from penstock.model import OffsetRange
from penstock.ops.quarantine.place import quarantine_of
from penstock.ops.replay.folder import ReplayRequest, StoredReplay, new_replay
from penstock.ops.replay.rejects import mark_replayed, quarantine_rejects, rejects_table
from penstock.ops.replay.targets import TargetChoice, Way
from penstock.quarantine import QUARANTINE_SCHEMA

RANGES = (OffsetRange("orders", 0, 0, 10), OffsetRange("orders", 1, 0, 10))


def replay(folder: Path, *sinks: str) -> StoredReplay:
    targets = tuple(TargetChoice(name, Way.REPLACED) for name in sinks or ("out",))
    return new_replay(str(folder / "checkpoint"), "abc", ReplayRequest("earliest", "committed"), RANGES, 5, targets)


def rejects(folder: Path, *rows: dict[str, Any]) -> None:
    """A replay's own quarantine."""
    path = str(folder / "lake/quarantine_replays/abc")
    late = MOMENT + timedelta(days=9)
    found = [{**row, "pipeline": "orders.replay-abc", "quarantined_at": late} for row in rows]
    write_deltalake(path, pa.Table.from_pylist(found, schema=QUARANTINE_SCHEMA))


def live(folder: Path) -> list[tuple[Any, ...]]:
    rows = read_table(folder / "lake/quarantine").to_pylist()
    return sorted((row["pipeline"], row["offset"], row["stage"]) for row in rows)


def states(config: Any) -> list[tuple[Any, ...]]:
    return sorted(quarantine_of(config).read().select("offset", "state", "wanted_by").rows(), key=str)


@pytest.mark.parametrize(
    ("quarantine", "into", "expected"),
    [
        ({"table": "lake/q"}, "/lake/again/", "/lake/again_quarantine"),
        ({"topic": "bad"}, "s3://lake/again", "s3://lake/again_quarantine"),
        ({"table": "lake/q"}, None, "FOLDER/lake/q_replays/abc"),
        ({"topic": "bad"}, None, "FOLDER/checkpoint-replays/abc/quarantine"),
    ],
)
def test_rejects_of_a_replay_are_beside_its_target(
    tmp_path: Path, quarantine: dict[str, str], into: str | None, expected: str
) -> None:
    config = pipeline(tmp_path, quarantine=quarantine)
    way = Way.REPLACED if into is None else Way.INTO
    stored = replace(replay(tmp_path), targets=(TargetChoice("out", way, into),))
    assert rejects_table(config, stored) == expected.replace("FOLDER", str(tmp_path))


def test_rejects_of_a_replay_in_place_enter_the_live_quarantine_once_under_the_pipelines_name(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(1)])
    rejects(tmp_path, bad(1), bad(2))
    assert quarantine_rejects(config, replay(tmp_path)) == {"quarantine": 1}
    assert quarantine_rejects(config, replay(tmp_path)) == {"quarantine": 1}
    assert live(tmp_path) == [("orders", 1, "decode"), ("orders", 2, "decode")]


def test_rejects_of_a_replay_of_one_sink_are_wanted_by_that_sink_alone(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(1)], sinks=TWO_SINKS)
    rejects(tmp_path, bad(1), bad(2), bad(3, stage="sink"))
    quarantine_rejects(config, replay(tmp_path, "out"))
    assert live(tmp_path) == [("orders", 1, "decode"), ("orders", 2, "decode out"), ("orders", 3, "sink out")]


def test_replay_in_place_marks_what_it_brought_in_and_takes_back_what_it_rejects(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(n) for n in range(4)])
    mark(config, 2, "redriven", run="r1", commits='{"out":1}')
    mark(config, 3, "redriven", run="r1", commits='{"out":1}')
    rejects(tmp_path, bad(1), bad(2))
    assert mark_replayed(config, replay(tmp_path), {"out": 1}) == 1
    assert states(config) == [(0, "redriven", None), (1, "waiting", None), (2, "waiting", "out"), (3, "redriven", None)]
    marks = quarantine_of(config).read_marks().filter(offset=0)
    assert marks.select("run", "commits").rows() == [("replay-abc", '{"out":1}')]


def test_replay_of_some_sinks_marks_only_records_that_no_other_sink_wants(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0), bad(1, stage="sink out"), bad(2, stage="sink other")], sinks=TWO_SINKS)
    assert mark_replayed(config, replay(tmp_path, "out"), {}) == 1
    assert states(config) == [(0, "waiting", None), (1, "redriven", "out"), (2, "waiting", "other")]
