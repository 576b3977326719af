from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from tests.committing import commit, holds, last_commit

from penstock.model import BAD_SCHEMA, RAW_SCHEMA, BatchToken, OffsetRange, SlotAttempt, bad_records
from penstock.quarantine.marks import IDENTITIES, MARK_SCHEMA, RedriveMarks, as_marks, read_marks, with_states
from penstock.quarantine.records import HeldInTable
from penstock.sinks import DeltaSink

TOKEN = BatchToken("orders.redrive", "run", 0, (OffsetRange("orders", 0, 0, 9),))
REACHES = {"out": ("out",), "pg": ("pg",), "routes[1]": ("pg",)}


def records_of(ranges: Sequence[OffsetRange], identities: dict[int, list[str | None]]) -> pa.Table:
    rows = [{"topic": "orders", "partition": 0, "offset": at, IDENTITIES: who} for at, who in identities.items()]
    kinds = [RAW_SCHEMA.field(name) for name in ("topic", "partition", "offset")]
    return pa.Table.from_pylist(rows, pa.schema([*kinds, pa.field(IDENTITIES, pa.list_(pa.string()))]))


def marks_in(folder: Path, identities: dict[int, list[str | None]], everywhere: bool = True) -> RedriveMarks:
    sink = DeltaSink("orders.redrive", "redrives", str(folder / "m"), keep_coordinates=False)
    records = partial(records_of, identities=identities)
    made = RedriveMarks(sink, "orders", "r1", records, REACHES, [TOKEN.ranges], everywhere)
    made.prepare(BAD_SCHEMA)
    return made


def bad(refused: dict[int, list[str | None]]) -> pa.RecordBatch:
    places = [(offset, by) for offset, every in refused.items() for by in every]
    raw = [{"topic": "orders", "partition": 0, "offset": offset, "value": b"secret"} for offset, _ in places]
    codes, messages = pa.array(["AGAIN"] * len(raw)), pa.array(["still bad"] * len(raw))
    by = pa.array([by for _, by in places], pa.string())
    return bad_records(pa.RecordBatch.from_pylist(raw, schema=RAW_SCHEMA), "sink", codes, messages, by)


def redrive(marks: RedriveMarks, refused: dict[int, list[str | None]], token: BatchToken = TOKEN) -> None:
    manifests = []
    for slot, one in enumerate(({}, refused)):
        stage = pickle.loads(pickle.dumps(marks)).stage(token, SlotAttempt(slot, "0"), BAD_SCHEMA)
        stage.write(bad(one))
        manifests.append(stage.finish())
    assert not any(b"secret" in item for manifest in manifests for item in manifest.items)
    commit(marks, token, manifests)
    marks.discard(token, manifests)


def told(folder: Path) -> list[tuple[Any, ...]]:
    held = HeldInTable(str(folder / "m"), MARK_SCHEMA)
    marks = read_marks(held, "orders").select("offset", "refused_by", "outcome", "code", "wanted_by")
    return sorted(marks.rows(), key=str)


def test_marks_of_a_batch_say_of_each_record_how_it_went(tmp_path: Path) -> None:
    marks = marks_in(tmp_path, {1: [None], 2: [None], 3: ["pg"]})
    redrive(marks, {2: [None]})
    assert told(tmp_path) == [
        (1, None, "redriven", None, None),
        (2, None, "failed", "AGAIN", None),
        (3, "pg", "redriven", None, None),
    ]


def test_marks_committed_again_are_there_once(tmp_path: Path) -> None:
    marks = marks_in(tmp_path, {1: [None], 2: [None]})
    redrive(marks, {2: [None]})
    redrive(marks, {1: [None]})
    assert (len(told(tmp_path)), holds(marks, TOKEN), last_commit(marks)) == (2, True, TOKEN)


def test_mark_of_a_redriven_record_names_the_commits_that_brought_it(tmp_path: Path) -> None:
    marks = replace(marks_in(tmp_path, {1: [None], 2: [None]}), numbers=partial(dict, pg=3, out=7))
    redrive(marks, {2: [None]})
    found = read_marks(HeldInTable(str(tmp_path / "m"), MARK_SCHEMA), "orders").sort("offset")
    assert found["commits"].to_list() == ['{"out":7,"pg":3}', None]


def test_mark_of_a_record_that_some_sinks_took_names_the_others(tmp_path: Path) -> None:
    redrive(marks_in(tmp_path, {1: [None], 2: [None], 3: [None]}), {1: ["pg"], 2: ["routes[1]"], 3: ["out,pg"]})
    assert [one[-1] for one in told(tmp_path)] == ["pg", "pg", None]


def test_mark_of_a_pass_to_one_sink_keeps_to_it_whoever_refuses(tmp_path: Path) -> None:
    marks = marks_in(tmp_path, {1: ["pg"]}, everywhere=False)
    narrow = replace(marks, reaches={"pg": ("pg",)})
    redrive(narrow, {1: [None]})
    assert told(tmp_path) == [(1, "pg", "failed", "AGAIN", "pg")]


def test_record_refused_twice_in_a_batch_is_one_mark_for_each_of_its_identities(tmp_path: Path) -> None:
    redrive(marks_in(tmp_path, {1: [None, "pg"]}), {1: ["out", "pg"]})
    assert told(tmp_path) == [(1, "pg", "failed", "AGAIN", None), (1, None, "failed", "AGAIN", None)]


def states(*outcomes: str, most: int = 2, identity: str | None = None, **more: Any) -> dict[str, Any]:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    place = {"topic": "orders", "partition": 0, "offset": 1}
    records = pl.DataFrame(
        [{**place, "refused_by": identity, "stage": "sink", "code": "FIRST"}],
        schema_overrides={"refused_by": pl.String},
    )
    rows = [
        {**place, "refused_by": identity, "outcome": one, "run": f"r{n}", "marked_at": begin + timedelta(n), **more}
        for n, one in enumerate(outcomes)
    ]
    marks = pl.DataFrame(pl.from_arrow(as_marks(pl.DataFrame(rows) if rows else pl.DataFrame())))
    [found] = with_states(records, marks.reverse(), most).iter_rows(named=True)
    return found


def test_record_without_marks_waits_and_is_wanted_by_whoever_refused_it() -> None:
    found = states(identity="pg")
    assert (found["state"], found["failures"], found["wanted_by"], found["last_code"]) == ("waiting", 0, "pg", "FIRST")


def test_record_that_fails_keeps_its_count_until_it_is_parked() -> None:
    once, twice = states("failed", code="AGAIN", wanted_by="out"), states("failed", "failed")
    assert (once["state"], once["failures"], once["wanted_by"], once["last_code"]) == ("failed", 1, "out", "AGAIN")
    assert (twice["state"], twice["failures"], twice["wanted_by"]) == ("parked", 2, None)


def test_record_that_was_redriven_stays_so_and_says_by_which_run() -> None:
    found = states("failed", "failed", "redriven", "dropped", identity="pg")
    assert (found["state"], found["run"]) == ("redriven", "r2")


def test_record_whose_redrive_was_taken_back_waits_for_the_sinks_that_lost_it() -> None:
    found = states("redriven", "returned", wanted_by="out")
    assert (found["state"], found["wanted_by"], found["failures"]) == ("waiting", "out", 0)
    assert states("redriven", "returned", "redriven")["state"] == "redriven"
    assert states("redriven", "returned", "redriven")["run"] == "r2"
    assert states("redriven", "returned", "failed")["state"] == "failed"


def test_record_dropped_and_taken_back_stands_as_before() -> None:
    assert states("failed", "dropped")["state"] == "dropped"
    assert states("failed", "dropped", "undropped")["state"] == "failed"
    assert states("dropped", "undropped", "dropped")["state"] == "dropped"


def test_marks_of_another_identity_do_not_count() -> None:
    place = {"topic": "orders", "partition": 0, "offset": 1, "stage": "sink", "code": "X"}
    records = pl.DataFrame([{**place, "refused_by": None}, {**place, "refused_by": "pg"}])
    row = {**place, "refused_by": "pg", "outcome": "redriven", "run": "r", "marked_at": datetime.now(UTC)}
    marks = pl.DataFrame(pl.from_arrow(as_marks(pl.DataFrame([row]))))
    assert with_states(records, marks, 3)["state"].to_list() == ["waiting", "redriven"]
