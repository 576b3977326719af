"""What a batch asks of the JVM, the brokers and its target on Spark: in each lane, caught up and with a backlog.

`tests/costs` says how the figures are counted anew; `tests/operators/test_batch_costs` counts the other sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.costs import counting, exceeded

from penstock.config import load
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
BATCHES = 3
LANES: dict[str, dict[str, Any]] = {
    "direct": {},
    "frame": {"lane": "frame"},
    "state": {
        "transforms": [
            {"watermark": {"column": "event_time", "delay": "1 hour"}},
            {"dedupe": {"keys": ["order_id"], "within": "1 hour"}},
        ]
    },
}
JVM_CALLS = {"direct": 38, "frame": 85, "state": 59}
"""Two of them ask what the JVM has spent on its garbage, every five seconds."""
LIST_OFFSETS = {"direct": 2, "frame": 2, "state": 4}
"""One of them asks where the logs begin, every five seconds. With state both are asked for after Spark has read."""
FILES = {
    "files: checkpoints/orders/commits": 1,
    "files: checkpoints/orders/commits/.*": 1,
    "files: checkpoints/orders/offsets": 1,
    "files: checkpoints/orders/offsets/.*": 1,
    "files: lake/out": 1,
    "files: lake/out/_delta_log": 1,
}
STATE_FILES = {f"files: checkpoints/orders/state/0/{part}{rest}": 1 for part in (0, 1) for rest in ("", "/.*")}


@pytest.mark.parametrize(
    ("partitions", "each"),
    [
        pytest.param(12, 200, id="many of both"),
        pytest.param(24, 1, id="caught-up", marks=pytest.mark.long),
        pytest.param(2, 6_000, id="backlog", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("lane", LANES)
def test_batch_on_spark_asks_for_no_more_than_it_did(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path], lane: str, partitions: int, each: int
) -> None:
    """As many calls, requests and files for a row in each of many partitions as for thousands in two.

    What was done for each row or for each partition shows where there are many of both.
    """
    topic = topics.create(partitions)
    file = pipeline_file(topic, name=f"orders-{topic}", source={"max_offsets": partitions * each}, **LANES[lane])
    row = {"customer_id": "c", "amount": 1.0, "event_time": "2026-01-01T00:00:00Z"}
    topics.send(topic, [{"order_id": number, **row} for number in range(partitions * each * BATCHES)])
    with counting(file.parent, jvm=True) as costs:
        run(load(file), RunOptions(available_now=True), costs.listen, session=spark)
    # The first batch opens what stays open. With state there is one more at the end, which may have no rows.
    found = costs.most(slice(1, BATCHES))
    allowed = {
        "brokers: describe_topics": 2,
        "brokers: list_offsets": LIST_OFFSETS[lane],
        "jvm: calls": JVM_CALLS[lane],
        **FILES,
        **(STATE_FILES if lane == "state" else {}),
    }
    assert exceeded(found, allowed) == {}
    assert found.keys() >= allowed.keys() - STATE_FILES.keys(), "all of it was counted"
