"""What a batch of the direct lane asks of brokers, tables and a database, for a caught-up run and for a backlog.

`tests/costs` says how the figures are counted anew; `tests/services/test_batch_costs` counts on Spark. The figures are
those of batches in the middle of a run: the first ones open and import, and every tenth commit to a Delta table writes
a checkpoint of its log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.costs import Costs, counting, counting_python, exceeded
from tests.operators.history import World
from tests.operators.local import run_local
from tests.operators.test_operators import new_world

from penstock.config import load
from penstock.kafka import KafkaSettings
from penstock.model import OffsetRange
from penstock.readers import KafkaReader

__all__ = ["new_world"]
BATCHES = 8
MIDDLE = slice(2, BATCHES)
BROKERS = {"brokers: describe_topics": 2, "brokers: list_offsets": 4, "brokers: list_topics": 1}
"""Of these, `local` itself asks for the topics once and for offsets twice: there Spark does, without Penstock. Where
logs begin is asked for every five seconds."""
CHECKPOINT = {"files: checkpoints/orders/commits": 1, "files: checkpoints/orders/offsets": 1}
DELTA = {"files: lake/out": 1, "files: lake/out/_delta_log": 1}


def counted(file: Path) -> Costs:
    """The counts of a run, batch by batch."""

    def enter(batch: int, phase: str) -> None:
        if phase == "spark-commit":
            costs.end_batch()

    with counting(file.parent) as costs:
        run_local(load(file), enter=enter)
    return costs


@pytest.mark.parametrize(("partitions", "each"), [(40, 1), (2, 4_000)], ids=["caught-up", "backlog"])
def test_batch_into_a_table_asks_for_no_more_than_it_did(
    topics: Any, pipeline_file: Callable[..., Path], partitions: int, each: int
) -> None:
    """As many requests and files for a row in each of forty partitions as for thousands in two."""
    topic = topics.create(partitions)
    file = pipeline_file(topic, name=f"orders-{topic}", source={"max_offsets": each})
    topics.send(topic, [{"order_id": number} for number in range(partitions * each * BATCHES)])
    found = counted(file).most(MIDDLE)
    assert exceeded(found, {**BROKERS, **CHECKPOINT, **DELTA}) == {}
    assert found.keys() >= {*CHECKPOINT, *DELTA}, "something was counted"


def test_batch_into_every_kind_of_sink_asks_for_no_more_than_it_did(new_world: Callable[[], World]) -> None:
    world = new_world()
    for _ in range(BATCHES):
        world.do(("send", "4", "0"))
    allowed = {
        **BROKERS,
        "database: statements": 18,
        "files: checkpoints/0/commits": 1,
        "files: checkpoints/0/offsets": 1,
        "files: lake/delta": 1,
        "files: lake/delta/_delta_log": 1,
        "files: lake/files": 2,
        "files: lake/iceberg/shop/orders/data": 1,
        "files: lake/iceberg/shop/orders/metadata": 3,
    }
    found = counted(world.main.file).most(MIDDLE)
    assert exceeded(found, allowed) == {}
    assert found.keys() >= allowed.keys() - BROKERS.keys(), "something was counted"


def test_reader_takes_no_more_calls_for_each_record_than_it_did(topics: Any, stack: Any) -> None:
    topic, rows = topics.create(1), 20_000
    topics.send(topic, [{"order_id": number} for number in range(rows)])
    reader = KafkaReader(KafkaSettings(stack.bootstrap, {}))
    ranges = [OffsetRange(topic, 0, 0, rows)]
    assert sum(batch.num_rows for batch in reader.read(ranges)) == rows
    with counting_python(lines=False) as count:
        assert sum(batch.num_rows for batch in reader.read(ranges)) == rows
        found = count()
    assert found / rows < 13, "12.3 were counted"
