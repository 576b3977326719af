"""`penstock plan` against a real broker, real tables and a real checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import command, penstock
from tests.orders import order

import penstock as api
from penstock.errors import MissingError

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def planned(file: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = command("plan", "--json", *words, file.name, folder=file.parent)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_plan_first_run_tells_the_whole_way(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    topics.send(topic, [order(n) for n in range(5)])
    file = pipeline_file(topic, transforms=[{"where": "amount >= 0"}, {"rename": {"amount": "total"}}])
    done = penstock("plan", file.name, folder=file.parent)
    assert (done.returncode, done.stderr) == (0, "")
    lake, columns = file.parent / "lake", "customer_id STRING"
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        "orders  takes the direct lane: every transform has an exact Arrow form",
        f"  source      topic {topic} at {topics.brokers}",
        "              2 partitions, 5 offsets waiting",
        "  start       first run, earliest",
        f"{'    partition':{len(topic) + 7}}  log start  log end  from  waiting",
        f"    {topic}[0]          0        3     0        3",
        f"    {topic}[1]          0        2     0        2",
        f"  decode      order_id BIGINT NOT NULL, {columns}, amount DOUBLE, event_time TIMESTAMP",
        "  transform   where amount >= 0  transforms[0], direct lane",
        f"              -> order_id BIGINT NOT NULL, {columns}, amount DOUBLE, event_time TIMESTAMP",
        "  transform   rename amount to total  transforms[1], direct lane",
        f"              -> order_id BIGINT NOT NULL, {columns}, total DOUBLE, event_time TIMESTAMP",
        f"  sink        quarantine  {lake}/quarantine",
        "              exactly once; bad records; no batch yet",
        f"  sink        out  {lake}/out",
        "              exactly once; all rows; no batch yet",
        f"  checkpoint  {file.parent}/checkpoints/orders (fresh)",
        "  trigger     read all available records, then stop",
        "  flow        batches of about 20 seconds while behind, at most 2 minutes; a small one at first",
        "  group       penstock.orders",
        "no problems; a run would start",
    ]
    assert not lake.exists(), "a plan writes nothing"


def test_plan_as_json_has_lane_offsets_and_guarantees(topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(2)
    topics.send(topic, [order(n) for n in range(5)])
    file = pipeline_file(topic, transforms=[{"sql": "SELECT * FROM input"}], source={"start": {topic: {"0": 1}}})
    code, plan = planned(file)
    assert (code, plan["lane"], plan["problems"]) == (0, "frame", [])
    assert plan["lane_reason"].startswith("transforms[0], sql")
    assert [(p["partition"], p["log_end"], p["start"]) for p in plan["partitions"]] == [(0, 3, 1), (1, 2, 0)]
    assert plan["waiting"] == 4
    assert [(s["name"], s["guarantee"]) for s in plan["sinks"]] == [
        ("quarantine", "exactly once"),
        ("out", "exactly once"),
    ]
    assert plan["flows"][0]["steps"][0]["columns"] is None


def test_plan_topic_missing_names_it(pipeline_file: Write) -> None:
    code, plan = planned(pipeline_file("no-such-topic"))
    assert code == 3
    assert [(p["code"], p["summary"]) for p in plan["problems"]] == [("TOPIC_MISSING", "no such topic: no-such-topic")]


def test_plan_after_a_run_goes_on_from_the_checkpoint_and_tells_an_unused_start(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(4)])
    summary = api.load(pipeline_file(topic)).run(available_now=True, session=session)
    assert (summary.batches, summary.rows_in, summary.rows_out) == (1, 4, 4)
    topics.send(topic, [order(4)])
    file = pipeline_file(topic, source={"start": "latest"})
    code, plan = planned(file)
    assert (code, plan["start"], plan["waiting"]) == (0, "checkpoint, after batch 0", 1)
    assert plan["sinks"][1]["holds"].startswith("batch 0 of query ")
    done = command("plan", file.name, folder=file.parent)
    assert "note: `start: latest` applies to the first run only and is ignored" in done.stdout


def test_plan_fresh_checkpoint_on_an_old_table_shows_three_ways_out(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(4)])
    file = pipeline_file(topic)
    api.load(file).run(session=session)
    shutil.rmtree(file.parent / "checkpoints")
    done = command("plan", file.name, folder=file.parent)
    assert done.returncode == 3
    told = done.stderr.splitlines()
    assert told[0] == "SINK_HOLDS_OTHER_RUN sink out already has batches of pipeline orders from another checkpoint"
    assert told[-5:] == [
        "  four ways out:",
        "    restore a backup of the checkpoint:  penstock checkpoint restore FILE",
        "    continue where the targets end:      penstock run FILE --resume-from-table",
        "    write to other targets:              other paths and tables, the quarantine's too; rename Kafka sinks",
        "    read again, with duplicates:         penstock run FILE --accept-duplicates",
    ]
    code, plan = planned(file, "--resume-from-table")
    assert (code, plan["start"], plan["waiting"]) == (0, "the positions of the targets", 0)
    code, plan = planned(file, "--accept-duplicates")
    assert (code, plan["start"], plan["waiting"]) == (0, "first run, earliest", 4)


def test_plan_table_that_cannot_take_the_rows_is_found_without_a_run(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    api.load(pipeline_file(topic)).run(session=session)
    narrow = {"format": "json", "schema": "order_id BIGINT NOT NULL, amount STRING"}
    code, plan = planned(pipeline_file(topic, decode=narrow))
    assert code == 3
    (problem,) = plan["problems"]
    assert (problem["code"], problem["context"]) == (
        "SINK_SCHEMA_MISMATCH",
        {"amount": "pipeline string, table double"},
    )
    with pytest.raises(MissingError, match="SINK_SCHEMA_MISMATCH"):
        api.load(pipeline_file(topic, decode=narrow)).run(session=session)


def test_plan_broken_checkpoint_is_told_without_a_traceback(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic)
    api.load(file).run(session=session)
    (file.parent / "checkpoints/orders/offsets/0").write_text("")
    done = command("plan", file.name, folder=file.parent)
    assert done.returncode == 3
    assert "CHECKPOINT_BROKEN" in done.stderr
    assert "Traceback" not in done.stderr
