"""Where a replay may write: what is safe in place, what is refused and why, and what `--into` changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from tests.committing import commit

from penstock.assembly.build import Pipeline, build
from penstock.config import load
from penstock.errors import MissingError
from penstock.model import COORDINATES_FIELD, BatchToken, OffsetRange
from penstock.ops.replay.folder import ReplayRequest, new_replay, replay_called, replays_of, unfinished
from penstock.ops.replay.replay import _pipeline, plan_replay
from penstock.ops.replay.targets import (
    TargetChoice,
    Way,
    choose_targets,
    parse_into,
    prepared_for,
    refuse_shared,
    retargeted,
)
from penstock.sinks import DeltaSink

RANGES = (OffsetRange("orders", 0, 10, 20),)
DELTA = {"name": "out", "type": "delta", "path": "lake/out"}
MERGE = {**DELTA, "mode": "merge", "keys": ["order_id"]}
POSTGRES = {"name": "out", "type": "postgres", "url": "postgresql://localhost/x", "table": "public.orders"}
ICEBERG = {"name": "out", "type": "iceberg", "table": "shop.orders", "warehouse": "lake/ice"}
NO_TOMBSTONES = {
    "format": "json",
    "schema": "order_id BIGINT, amount DOUBLE, at TIMESTAMP, op STRING",
    "tombstones": "quarantine",
}
KAFKA = {"name": "topic", "type": "kafka", "topic": "clean"}


def pipeline(folder: Path, *sinks: dict[str, Any], **keys: Any) -> Pipeline:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "localhost:1", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "order_id BIGINT, amount DOUBLE, at TIMESTAMP, op STRING"},
        "sinks": list(sinks),
        "quarantine": {"table": "lake/bad"},
        "checkpoint": "checkpoint",
        **keys,
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body))
    return build(load(file))


def way_of(folder: Path, sink: dict[str, Any], **keys: Any) -> Way:
    [choice] = choose_targets(pipeline(folder, sink, **keys), (), ())
    assert choice.into is None
    return choice.way


@pytest.mark.parametrize(
    ("sink", "way"),
    [
        (DELTA, Way.REPLACED),
        (ICEBERG, Way.REPLACED),
        ({**POSTGRES, "coordinates": True}, Way.REPLACED),
        (MERGE, Way.MERGED),
        ({**MERGE, "when_newer": "at"}, Way.MERGED),
        ({**MERGE, "insert_only": True}, Way.INSERTED),
        ({**POSTGRES, "mode": "upsert", "keys": ["order_id"], "when_newer": "at"}, Way.MERGED_BY_TIME),
        ({**POSTGRES, "mode": "upsert", "keys": ["order_id"], "coordinates": True}, Way.MERGED),
    ],
)
def test_same_target_where_it_is_safe_is_chosen_with_its_way(tmp_path: Path, sink: dict[str, Any], way: Way) -> None:
    assert way_of(tmp_path, sink, decode=NO_TOMBSTONES) is way


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        (KAFKA, "would be duplicated"),
        ({"name": "files", "type": "parquet", "path": "lake/files"}, "would be duplicated"),
        ({**DELTA, "coordinates": False}, "`coordinates` is off"),
        (POSTGRES, "`coordinates` is off"),
        ({**POSTGRES, "coordinates": True, "on_reject": "quarantine"}, "`on_reject: quarantine`"),
        ({**MERGE, "delete_when": "op = 'd'"}, "would come back"),
        ({**POSTGRES, "mode": "upsert", "keys": ["order_id"]}, "no `when_newer`"),
    ],
)
def test_same_target_where_it_is_not_safe_is_refused_with_the_way_out(
    tmp_path: Path, sink: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MissingError) as refused:
        way_of(tmp_path, sink, decode=NO_TOMBSTONES)
    assert refused.value.code == "REPLAY_NEEDS_INTO"
    assert reason in refused.value.summary
    assert f"--into {sink['name']}=TARGET" in (refused.value.hint or "")


def test_merge_in_which_tombstones_delete_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="tombstones delete rows there") as refused:
        way_of(tmp_path, MERGE)
    assert "tombstones: quarantine" in (refused.value.hint or "")


def test_into_another_target_is_taken_and_the_same_one_is_not_another(tmp_path: Path) -> None:
    made = pipeline(tmp_path, DELTA, KAFKA)
    table = str(tmp_path / "lake/again")
    chosen = choose_targets(made, (), (f"out={table}", "topic=clean.again"))
    assert chosen == (TargetChoice("out", Way.INTO, table), TargetChoice("topic", Way.INTO, "clean.again"))
    [same] = choose_targets(made, ("out",), (str(tmp_path / "lake" / "out"),))
    assert same == TargetChoice("out", Way.REPLACED)
    with pytest.raises(MissingError, match="would be duplicated"):
        choose_targets(made, ("topic",), ("clean",))


def test_into_without_a_sink_is_for_one_sink_alone() -> None:
    assert parse_into(["a"], ["lake/x=1"]) == {"a": "lake/x=1"}
    assert parse_into(["a", "b"], ["b=lake/x=1"]) == {"b": "lake/x=1"}
    with pytest.raises(MissingError) as refused:
        parse_into(["a", "b"], ["lake/x"])
    assert refused.value.code == "REPLAY_INTO_UNREADABLE"


def test_into_changes_path_table_or_topic_and_has_it_made(tmp_path: Path) -> None:
    sinks = pipeline(tmp_path, {**POSTGRES, "name": "pg"}, KAFKA, {**ICEBERG, "name": "ice"}).config.sinks
    pg, topic, ice = (retargeted(sink, into) for sink, into in zip(sinks, ("public.x", "x", "shop.x"), strict=True))
    assert (pg.table, pg.create) == ("public.x", True)  # type: ignore[union-attr]
    assert (topic.topic, topic.create) == ("x", True)  # type: ignore[union-attr]
    assert ice.table == "shop.x"  # type: ignore[union-attr]


def test_sink_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as refused:
        choose_targets(pipeline(tmp_path, DELTA), ("nope",), ())
    assert refused.value.code == "SINK_UNKNOWN"


def test_some_sinks_in_place_and_some_elsewhere_in_one_replay_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as refused:
        choose_targets(pipeline(tmp_path, DELTA, KAFKA), (), ("topic=x",))
    assert refused.value.code == "REPLAY_SINKS_DIFFER"
    assert refused.value.hint == "two replays: --sink out, then --sink topic --into topic=..."


def written_by(folder: Path, name: str, sink: str = "out") -> None:
    """An empty commit to the table of `DELTA`."""
    made = DeltaSink(name, sink, str(folder / "lake/out"), keep_coordinates=True)
    made.prepare(pa.schema([pa.field("order_id", pa.int64()), COORDINATES_FIELD]))
    commit(made, BatchToken(name, "query", 0, RANGES), [])


def test_replay_in_place_of_a_table_with_other_writers_is_refused_and_names_them(tmp_path: Path) -> None:
    made = pipeline(tmp_path, DELTA)
    for name in ("orders", "orders.redrive", "orders.replay-1"):
        written_by(tmp_path, name)
    refuse_shared(choose_targets(made, (), ()), made.sinks, "orders")
    written_by(tmp_path, "returns")
    written_by(tmp_path, "orders", "second")
    with pytest.raises(MissingError) as refused:
        refuse_shared(choose_targets(made, (), ()), made.sinks, "orders")
    assert refused.value.code == "REPLAY_SHARED_TARGET"
    assert sorted(refused.value.context["other writers"].split(", ")) == ["orders/second", "returns/out"]
    assert "--into out=TARGET" in str(refused.value.hint)
    refuse_shared((TargetChoice("out", Way.INTO, "x"),), made.sinks, "orders")


def test_sinks_of_a_replay_write_as_was_chosen(tmp_path: Path) -> None:
    made = pipeline(tmp_path, DELTA, {**MERGE, "name": "merged", "path": "lake/m", "when_newer": "at"})
    choices = (TargetChoice("out", Way.REPLACED), TargetChoice("merged", Way.MERGED))
    replaced, merged = prepared_for(made, choices, RANGES).sinks
    assert replaced.replaces == RANGES  # type: ignore[attr-defined]
    assert merged.rules.by_position  # type: ignore[attr-defined]
    assert [sink.replaces for sink in made.sinks[:1]] == [()]  # type: ignore[attr-defined]


def test_replay_on_disk_the_same_request_goes_on_until_it_is_finished(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    request, targets = ReplayRequest("earliest", "committed", None, ("out",)), (TargetChoice("out", Way.REPLACED),)
    stored = new_replay(checkpoint, "abc", request, RANGES, 500, targets)
    assert unfinished(checkpoint, request, targets) is None
    stored.write()
    assert stored.folder.parent == replays_of(checkpoint) == tmp_path / "checkpoint-replays"
    assert unfinished(checkpoint, ReplayRequest("earliest", "committed", None, ("out",), (), True), targets) == stored
    assert unfinished(checkpoint, ReplayRequest("earliest", "latest", None, ("out",)), targets) is None
    assert unfinished(checkpoint, request, (TargetChoice("out", Way.INTO, "x"),)) is None
    stored.finish({"rows_in": 3})
    assert unfinished(checkpoint, request, targets) is None
    assert replay_called(checkpoint, stored.id) == stored
    with pytest.raises(MissingError) as refused:
        replay_called(checkpoint, "nope")
    assert refused.value.code == "REPLAY_UNKNOWN"


def test_replay_of_a_pipeline_that_remembers_is_refused_before_a_broker_is_asked(tmp_path: Path) -> None:
    steps = [{"watermark": {"column": "at", "delay": "1 minute"}}, {"dedupe": {"keys": ["order_id"], "within": "1 h"}}]
    live = pipeline(tmp_path, DELTA, transforms=steps)
    with pytest.raises(MissingError) as refused:
        plan_replay(live.config, ReplayRequest("earliest", "committed", None, ()))
    assert refused.value.code == "REPLAY_HAS_STATE"
    assert "penstock checkpoint fork" in str(refused.value.hint)


def test_replay_whose_sink_has_left_the_file_names_it(tmp_path: Path) -> None:
    live = pipeline(tmp_path, DELTA, {**DELTA, "name": "more", "path": "lake/more"})
    choices = (TargetChoice("out", Way.REPLACED), TargetChoice("more", Way.REPLACED))
    request = ReplayRequest("earliest", "committed", None, ("out", "more"))
    stored = new_replay(live.config.checkpoint, "abc", request, RANGES, 500, choices)
    assert [sink.name for sink in _pipeline(live.config, stored).sinks] == ["out", "more"]
    with pytest.raises(MissingError) as refused:
        _pipeline(pipeline(tmp_path, DELTA).config, stored)
    assert refused.value.code == "REPLAY_SINK_GONE"
    assert (refused.value.context["gone"], refused.value.context["in the file"]) == ("more", "out")
