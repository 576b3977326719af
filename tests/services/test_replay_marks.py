"""A replay in place brings quarantined records in: a redrive does not bring them a second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tables import read_table

from penstock.config import load
from penstock.errors import MissingError
from penstock.ops.quarantine_place import quarantine_of
from penstock.ops.replay import apply_replay, plan_replay
from penstock.ops.replay_folder import ReplayRequest
from penstock.runtime.options import RunOptions
from penstock.runtime.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def test_replay_in_place_of_a_mended_pipeline_marks_what_it_brought_in(
    spark: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    orders = [
        {"order_id": n, "customer_id": "c", "amount": n / 2, "event_time": "2026-01-01T00:00:00Z"} for n in range(4)
    ]
    nobody = {"order_id": 4, "amount": 2.0, "event_time": "2026-01-01T00:00:00Z"}
    topics.send(topic, [*orders, b"{broken", nobody])
    columns = "order_id BIGINT NOT NULL, customer_id STRING NOT NULL, amount DOUBLE, event_time TIMESTAMP"
    file = pipeline_file(topic, decode={"format": "json", "schema": columns})
    run(load(file), RunOptions(), session=spark)
    waiting = quarantine_of(load(file)).read()
    assert waiting.select("offset", "state").rows() == [(4, "waiting"), (5, "waiting")]
    mended = load(pipeline_file(topic))
    apply_replay(plan_replay(mended, ReplayRequest("earliest", "committed", None, (), (), False)), session=spark)
    assert sorted(read_table(file.parent / "lake/out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2, 3, 4]
    after = quarantine_of(mended).read()
    assert after.select("offset", "state").rows() == [(4, "waiting"), (5, "redriven")]
    assert read_table(file.parent / "lake/quarantine", ["pipeline"]).num_rows == 2, "bad again, and there already"

    with pytest.raises(MissingError) as refused:
        plan_replay(mended, ReplayRequest("earliest", "committed"))
    assert (refused.value.code, "--again" in str(refused.value.hint)) == ("REPLAY_FINISHED", True)
    # A stricter file takes the record out of the table again: it waits, and is not lost.
    strict = load(pipeline_file(topic, decode={"format": "json", "schema": columns}))
    apply_replay(plan_replay(strict, ReplayRequest("earliest", "committed")), session=spark)
    assert sorted(read_table(file.parent / "lake/out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2, 3]
    assert quarantine_of(strict).read().select("offset", "state").rows() == [(4, "waiting"), (5, "waiting")]
    assert read_table(file.parent / "lake/quarantine", ["pipeline"]).to_pylist() == [{"pipeline": "orders"}] * 2
    once_more = plan_replay(load(pipeline_file(topic)), ReplayRequest("earliest", "committed", again=True))
    assert apply_replay(once_more, session=spark) is not None
    assert sorted(read_table(file.parent / "lake/out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2, 3, 4]
