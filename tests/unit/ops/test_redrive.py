from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.committing import commit
from tests.unit.ops.quarantines import MOMENT, TWO_SINKS, bad, pipeline

from penstock import config as cfg
from penstock.contracts import BaseSink
from penstock.errors import MissingError
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, Rule, SlotAttempt
from penstock.ops.quarantine.listing import list_records, plan_drop
from penstock.ops.quarantine.place import Selection, quarantine_of, write_marks
from penstock.ops.redrive.redrive import _mark_returned, bodies_of, plan_redrive, try_redrive
from penstock.ops.redrive.runs import in_batches, ranges_of_batches, runs_in, write_run
from penstock.ops.redrive.targets import find_ways, held_records, narrowed, reached_by
from penstock.quarantine.marks import MARK_SCHEMA
from penstock.readers.stored import StoredReader
from penstock.sinks import DeltaSink

EXPLODE = [{"explode": {"column": "lines"}}]


def plan(config: Any, **more: Any) -> Any:
    return plan_redrive(config, Selection(), **more)


def mark(config: Any, offset: int, outcome: str, times: int = 1, **more: Any) -> None:
    place = quarantine_of(config)
    sink = place.marking("redrives")
    sink.prepare(MARK_SCHEMA)
    for _ in range(times):
        row = {"pipeline": "orders", "topic": "orders", "partition": offset % 2, "offset": offset, "outcome": outcome}
        frame = pl.DataFrame([{**row, "marked_at": datetime.now(UTC), **more}])
        write_marks(sink, BatchToken("orders.redrive", uuid4().hex, 0, ()), frame)


def test_plan_takes_what_waits_and_says_what_stays(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(n) for n in range(5)])
    mark(config, 0, "redriven")
    mark(config, 1, "dropped")
    mark(config, 2, "failed", times=3)
    mark(config, 3, "failed")
    found = plan(config)
    assert (found.records, found.ways) == (2, {("out",): 2})
    assert sorted(found.left_out.values()) == [1, 1, 1]
    assert plan(config, include_parked=True).records == 3
    assert plan_redrive(config, Selection(limit=1)).records == 1


def test_plan_sends_records_only_to_the_sinks_that_lack_them(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path, [bad(0), bad(1, stage="sink other"), bad(2), bad(3, stage="sink gone")], sinks=TWO_SINKS
    )
    mark(config, 2, "failed", wanted_by="other", stage="sink")
    found = plan(config)
    assert found.ways == {("out", "other"): 1, ("other",): 2}
    assert found.left_out == {"refused by gone, which the file no longer has": 1}


def test_plan_joins_the_rows_of_one_record(tmp_path: Path) -> None:
    rows = [bad(0, stage="sink other", code="SINK_NULL"), bad(0), bad(1, stage="sink other"), bad(1, stage="sink out")]
    config = pipeline(tmp_path, rows, sinks=TWO_SINKS)
    found = plan_redrive(config, Selection(codes=("SINK_NULL",)))
    assert found.ways == {("out", "other"): 1}
    assert sorted(found._records["identities"].to_list()[0], key=str) == [None, "other"]
    assert plan(config).ways == {("out", "other"): 2}


def test_plan_leaves_out_records_whose_rows_may_be_written(tmp_path: Path) -> None:
    rows = [bad(0), bad(1, stage="transform"), bad(2, stage="sink")]
    config = pipeline(tmp_path, rows, transforms=EXPLODE)
    found = plan(config)
    assert (found.records, list(found.left_out.values())) == (1, [2])
    assert "the step explode" in next(iter(found.left_out))
    assert plan(config, accept_duplicates=True).records == 3
    merging = config.model_copy(update={"sinks": pipeline(tmp_path, sinks=TWO_SINKS[1:]).sinks})
    assert plan(merging).records == 3


def test_plan_of_records_of_an_unknown_sink_among_several_leaves_them_to_targets_that_can_tell(tmp_path: Path) -> None:
    rows = [bad(0, stage="sink"), bad(1)]
    assert plan(pipeline(tmp_path, rows, sinks=TWO_SINKS)).ways == {("out", "other"): 2}
    # A topic knows only what redrives brought into it.
    topic = {"name": "topic", "type": "kafka", "topic": "clean"}
    config = pipeline(tmp_path, sinks=[topic, TWO_SINKS[1]])
    found = find_ways(config, quarantine_of(config).read(), accept_duplicates=False)
    assert (found.records.height, list(found.left_out.values())) == (1, [1])


def hold(folder: Path, offsets: list[int], name: str = "orders", query: str = "live", sink: str = "out") -> DeltaSink:
    """Commit a row of each of these records to the table of a sink."""
    made = DeltaSink(name, sink, str(folder / "lake" / sink))
    schema = pa.schema([pa.field("order_id", pa.int64()), COORDINATES_FIELD])
    made.prepare(schema)
    rows = [
        {"order_id": n, COORDINATES: {"topic": "orders", "partition": n % 2, "offset": n, "timestamp": MOMENT}}
        for n in offsets
    ]
    ranges = tuple(OffsetRange("orders", partition, 0, 100) for partition in (0, 1))
    token = BatchToken(name, query, 0, ranges, rule=Rule.RECORDS)
    stage = made.stage(token, SlotAttempt(0, uuid4().hex[:12]), schema)
    stage.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    commit(made, token, [stage.finish()])
    return made


def test_plan_says_which_records_their_targets_hold_already(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(n) for n in range(5)])
    hold(tmp_path, [1, 3, 90])
    found = plan(config)
    assert (found.records, found.held, found.held_by("out")) == (5, {"out": 2}, {("orders", 1, 1), ("orders", 1, 3)})
    assert plan(config, accept_duplicates=True).held == {}


def test_plan_leaves_records_of_a_batch_that_is_still_open_to_the_stream(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(1), bad(100), bad(101)])
    hold(tmp_path, [90])
    found = plan(config)
    assert (found.records, list(found.left_out.values())) == (1, [2])
    assert "still open" in next(iter(found.left_out))
    assert plan(config, accept_duplicates=True).records == 3


def test_plan_into_a_target_that_cannot_tell_its_records_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    blind = [{**TWO_SINKS[0], "coordinates": False}, TWO_SINKS[1]]
    config = pipeline(tmp_path, [bad(0), bad(1, stage="sink other")], sinks=blind)
    with pytest.raises(MissingError) as refused:
        plan(config)
    assert (refused.value.code, refused.value.context["records for it"]) == ("REDRIVE_CANNOT_TELL", "1")
    assert "coordinates: true" in str(refused.value.hint) and "--accept-duplicates" in str(refused.value.hint)
    assert plan(config, accept_duplicates=True).records == 2
    assert plan_redrive(config, Selection(where="offset = 1")).ways == {("other",): 1}


def test_plan_leaves_rejects_of_old_replays_where_they_are_and_says_why(tmp_path: Path) -> None:
    early = MOMENT - timedelta(days=1)
    rows = [bad(0), bad(0, pipeline="orders.replay-1", quarantined_at=early), bad(1, pipeline="orders.replay-1")]
    config = pipeline(tmp_path, rows)
    assert list_records(config).total == 2
    found = plan(config)
    assert (found.records, list(found.left_out.values())) == (1, [1])
    assert "replay of version 0.7" in next(iter(found.left_out))
    assert plan(config, accept_duplicates=True).records == 2


def test_plan_after_the_target_was_restored_to_before_a_redrive_takes_its_records_again(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(n) for n in range(4)])
    hold(tmp_path, [50])
    hold(tmp_path, [0], "orders.redrive", "r1")
    before = DeltaTable(tmp_path / "lake/out").version()
    hold(tmp_path, [1, 2], "orders.redrive", "r2")
    mark(config, 0, "redriven", run="r1", commits='{"out":1}')
    for offset in (1, 2):
        mark(config, offset, "redriven", run="r2", commits='{"out":2}')
    assert (plan(config).records, plan(config).taken_back) == (1, 0)
    DeltaTable(tmp_path / "lake/out").restore(before)
    found = plan(config)
    assert (found.records, found.taken_back, found.held) == (3, 2, {})
    # Noted before new commits make the table look as if it had never been restored.
    _mark_returned(quarantine_of(config), lambda event: None)
    hold(tmp_path, [3], "orders.redrive", "r3")
    assert (plan(config).taken_back, plan(config).records) == (0, 3)
    assert list_records(config).states == {"waiting": 3, "redriven": 1}


def test_plan_after_the_owner_deleted_redriven_rows_leaves_them_deleted(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0)])
    hold(tmp_path, [0], "orders.redrive", "r1")
    mark(config, 0, "redriven", run="r1", commits='{"out":1}')
    DeltaTable(tmp_path / "lake/out").delete()
    assert (plan(config).records, plan(config).taken_back) == (0, 0)


def test_trial_counts_what_a_redrive_would_bring_and_what_would_fail_again(tmp_path: Path) -> None:
    good = [bad(n, value=b'{"order_id": %d}' % n) for n in range(4)]
    config = pipeline(tmp_path, [*good, bad(4), bad(5, value=b'{"order_id": null}')], sinks=TWO_SINKS)
    hold(tmp_path, [1])
    found = try_redrive(plan(config))
    assert (found.redriven, found.failed, found.rows) == (4, 2, {"out": 3, "other": 4})
    assert sum(found.codes.values()) == 2 and "MALFORMED_JSON" in found.codes
    frame = pipeline(tmp_path, transforms=[{"sql": "SELECT * FROM input"}])
    assert "only Spark" in str(try_redrive(plan(frame)).unknown)


def test_held_records_are_asked_for_in_few_ranges(tmp_path: Path) -> None:
    asked: list[OffsetRange] = []

    class Silent(BaseSink):
        pass

    class Target(BaseSink):
        def records_held(self, ranges: list[OffsetRange]) -> set[tuple[str, int, int]]:
            asked.extend(ranges)
            return {("a", 0, 3), ("a", 0, 4)}

    assert held_records(Target(), {("a", 0, 1), ("a", 0, 4), ("a", 0, 500), ("b", 0, 5)}) == {("a", 0, 4)}  # type: ignore[arg-type]
    assert asked == [OffsetRange("a", 0, 1, 5), OffsetRange("a", 0, 500, 501), OffsetRange("b", 0, 5, 6)]
    assert held_records(Silent(), {("a", 0, 1)}) is None  # type: ignore[arg-type]


def test_plan_of_a_pipeline_that_remembers_is_refused(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0)])
    step = cfg.DedupeConfig.model_validate({"dedupe": {"keys": ("order_id",), "within": "1 hour"}})
    with pytest.raises(MissingError, match="REDRIVE_HAS_STATE"):
        plan(config.model_copy(update={"transforms": (step,)}))


ROUTES = [
    {"where": "order_id < 10", "sinks": ["out"]},
    {"where": "order_id > 90", "sinks": ["third"]},
    {"otherwise": True, "sinks": ["other"]},
]
THIRD = {"name": "third", "type": "delta", "path": "lake/third"}


def test_narrowed_pipeline_keeps_the_numbers_and_conditions_of_its_routes(tmp_path: Path) -> None:
    config = pipeline(tmp_path, sinks=[*TWO_SINKS, THIRD], routes=ROUTES)
    small = narrowed(config, ["other"], name="orders.redrive")
    [flow] = cfg.flows(small)
    assert (flow.name, flow.where) == ("routes[2]", cfg.flows(config)[2].where)
    assert ([sink.name for sink in small.sinks], small.name) == (["other"], "orders.redrive")
    assert reached_by(small) == {"other": ("other",), "routes[2]": ("other",)}
    assert reached_by(narrowed(config, None))["routes[1]"] == ("third",)
    with pytest.raises(MissingError, match="REDRIVE_SINK_GONE"):
        narrowed(config, ["gone"])


def test_plan_sends_records_refused_on_a_route_to_its_sinks(tmp_path: Path) -> None:
    rows = [bad(0, stage="transform routes[1]"), bad(1)]
    config = pipeline(tmp_path, rows, sinks=[*TWO_SINKS, THIRD], routes=ROUTES)
    assert plan(config).ways == {("third",): 1, ("out", "other", "third"): 1}


def test_batches_have_a_piece_of_each_partition_and_do_not_overlap() -> None:
    places = [("a", 0, n * 3) for n in range(10)] + [("a", 1, n) for n in range(5)] + [("b", 0, 100)]
    records = pl.DataFrame(places, schema=["topic", "partition", "offset"], orient="row").with_columns(
        value=pl.lit(b"v")
    )
    cut = in_batches(records.sample(fraction=1, shuffle=True, seed=1), most=4)
    batches = ranges_of_batches(cut)
    assert cut["batch"].to_list() == sorted(cut["batch"])
    assert set(cut["batch"]) == set(range(len(batches)))
    held = [(r.topic, r.partition, n) for batch in batches for r in batch for n in range(r.start, r.end)]
    assert len(held) == len(set(held))
    assert set(places) <= set(held)
    for number, ranges in enumerate(batches):
        mine = cut.filter(pl.col("batch") == number)
        assert mine.height <= 4 + 3
        assert {(r.topic, r.partition) for r in ranges} == set(mine.select("topic", "partition").rows())
    assert len(ranges_of_batches(in_batches(records, most=100))) == 1


def test_run_on_disk_has_every_record_and_says_when_it_is_done(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(n, value=f"v{n}".encode()) for n in range(9)])
    place = quarantine_of(config)
    found = plan(config)
    written = write_run(place.folder, bodies_of(place, found), most=4)
    [read] = runs_in(place.folder)
    assert (read, read.finished, read.records) == (written, False, 9)
    assert read.passes[0].sinks is None
    ranges = [one for batch in read.passes[0].batches for one in batch]
    values = [v for b in StoredReader(str(read.passes[0].file)).read(ranges) for v in b.column("value").to_pylist()]
    assert sorted(values) == [f"v{n}".encode() for n in range(9)]

    assert (plan(config).records, plan_drop(config, Selection()).records) == (0, 0)
    assert [run.name for run in plan(config).unfinished] == [written.name]
    read.finish({"redriven": 9})
    assert (runs_in(place.folder)[0].finished, plan(config).unfinished) == (True, ())
    assert not read.passes[0].file.exists()


def test_run_half_written_is_none(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0)])
    place = quarantine_of(config)
    half = Path(place.folder) / ".20260101-000000-abcd"
    half.mkdir(parents=True)
    (half / "plan.json").write_text("{}")
    assert runs_in(place.folder) == []
    write_run(place.folder, bodies_of(place, plan(config)), most=4)
    assert not half.exists()


def test_plan_tells_of_sinks_that_a_late_record_may_harm(tmp_path: Path) -> None:
    config = pipeline(tmp_path, [bad(0)], sinks=[{**TWO_SINKS[1], "coordinates": False}])
    assert "may overwrite" in plan(config).notices[0]
    assert replace(plan(config), notices=()).as_json()["records"] == 1
    assert OffsetRange("orders", 0, 0, 1) in quarantine_ranges(config)


def quarantine_ranges(config: Any) -> list[OffsetRange]:
    place = quarantine_of(config)
    return [
        one for batch in write_run(place.folder, bodies_of(place, plan(config)), 4).passes[0].batches for one in batch
    ]
