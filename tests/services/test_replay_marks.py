"""A replay in place brings quarantined records in: a redrive does not bring them a second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.orders import drain, ids, order
from tests.tables import read_table

from penstock.config import load
from penstock.errors import MissingError
from penstock.ops.quarantine.listing import apply_drop, plan_drop
from penstock.ops.quarantine.place import Selection, quarantine_of
from penstock.ops.redrive.redrive import apply_redrive, plan_redrive
from penstock.ops.replay.folder import ReplayRequest
from penstock.ops.replay.replay import apply_replay, plan_replay
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def test_replay_in_place_of_a_mended_pipeline_marks_what_it_brought_in(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [*(order(n) for n in range(4)), b"{broken", order(4, customer_id=None)])
    columns = "order_id BIGINT NOT NULL, customer_id STRING NOT NULL, amount DOUBLE, event_time TIMESTAMP"
    file = pipeline_file(topic, decode={"format": "json", "schema": columns})
    drain(file, session)
    waiting = quarantine_of(load(file)).read()
    assert waiting.select("offset", "state").rows() == [(4, "waiting"), (5, "waiting")]
    mended = load(pipeline_file(topic))
    apply_replay(plan_replay(mended, ReplayRequest("earliest", "committed", None, (), (), False)), session=session)
    assert ids(file) == [0, 1, 2, 3, 4]
    after = quarantine_of(mended).read()
    assert after.select("offset", "state").rows() == [(4, "waiting"), (5, "redriven")]
    assert read_table(file.parent / "lake/quarantine", ["pipeline"]).num_rows == 2, "bad again, and there already"

    with pytest.raises(MissingError) as refused:
        plan_replay(mended, ReplayRequest("earliest", "committed"))
    assert (refused.value.code, "--again" in str(refused.value.hint)) == ("REPLAY_FINISHED", True)
    # A stricter file takes the record out of the table again: it waits, and is not lost.
    strict = load(pipeline_file(topic, decode={"format": "json", "schema": columns}))
    apply_replay(plan_replay(strict, ReplayRequest("earliest", "committed")), session=session)
    assert ids(file) == [0, 1, 2, 3]
    assert quarantine_of(strict).read().select("offset", "state").rows() == [(4, "waiting"), (5, "waiting")]
    assert read_table(file.parent / "lake/quarantine", ["pipeline"]).to_pylist() == [{"pipeline": "orders"}] * 2
    once_more = plan_replay(load(pipeline_file(topic)), ReplayRequest("earliest", "committed", again=True))
    assert apply_replay(once_more, session=session) is not None
    assert ids(file) == [0, 1, 2, 3, 4]


def test_replay_in_place_with_a_quarantine_topic_puts_its_rejects_there_and_a_redrive_brings_them_back(
    session: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic, bad = topics.create(1), topics.create(1, prefix="bad")
    topics.send(topic, [{"order_id": n, "customer": "c" if n else None} for n in range(3)])
    name = f"orders-{topic}"
    strict, lenient = (
        load(
            pipeline_file(
                topic,
                name,
                decode={"format": "json", "schema": f"order_id BIGINT, customer STRING {null}"},
                quarantine={"topic": bad},
            )
        )
        for null in ("NOT NULL", "")
    )
    run(lenient, RunOptions(), session=session)
    plan = plan_replay(strict, ReplayRequest("earliest", "committed"))
    assert apply_replay(plan, session=session) is not None
    assert plan.quarantine == str(tmp_path / f"checkpoints/orders-replays/{plan.stored.id}/quarantine")
    held = quarantine_of(strict)
    assert held.read().select("pipeline", "offset", "state").rows() == [(name, 0, "waiting")]
    apply_drop(plan_drop(strict, Selection()))
    apply_drop(plan_drop(strict, Selection(), undo=True))
    assert apply_redrive(plan_redrive(lenient, Selection()), session=session).redriven == 1
    assert sorted(read_table(tmp_path / "lake/out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2]
    assert held.read().select("offset", "state").rows() == [(0, "redriven")]
