"""Retention removes records while frames of Spark carry them; `tests/operators/test_log_moves` has the direct lane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.operators.test_log_moves import gaps, ids, order, trim

from penstock.config import load
from penstock.engine.listener import BatchPhase, Event
from penstock.errors import PenstockError
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
COLUMNS = "order_id BIGINT, amount DOUBLE, event_time TIMESTAMP"
LANES: dict[str, dict[str, Any]] = {
    "frame": {"lane": "frame"},
    # Spark's own source reads, which passes over what is gone without a word.
    "state": {
        "transforms": [
            {"watermark": {"column": "event_time", "delay": "1 hour"}},
            {"dedupe": {"keys": ["order_id"], "within": "1 hour"}},
        ]
    },
}


@pytest.mark.parametrize(
    ("lane", "loss"), [("frame", "record"), pytest.param("state", "record", marks=pytest.mark.long), ("state", "fail")]
)
def test_log_start_that_moves_before_spark_reads_is_a_gap_or_stops_the_run_with_the_exact_range(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path], lane: str, loss: str
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        name=f"orders-{topic}",
        decode={"format": "json", "schema": COLUMNS},
        source={"on_data_loss": loss},
        **LANES[lane],
    )
    topics.send(topic, [{**order(n), "event_time": "2026-01-01T00:00:00Z"} for n in range(20)])

    def remove(event: Event) -> None:
        if isinstance(event, BatchPhase) and event.phase == "stage":
            trim(topics, topic, 7)

    options = RunOptions(available_now=True, give_up_after=20)
    if loss == "record":
        run(load(file), options, remove, session=spark)
        assert (ids(file), gaps(file)) == (list(range(7, 20)), [(0, 0, 7)])
        return
    with pytest.raises(PenstockError) as raised:
        run(load(file), options, remove, session=spark)
    assert (raised.value.code, list(raised.value.context)) == ("DATA_LOSS", [f"{topic}[0] 0-7"])
    assert ids(file) == []
