"""The dashboard beside a real run: what the page says is what the broker, the tables and the checkpoint hold."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import expect
from tests.orders import order
from tests.services.running import wait_for
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.dashboard import Dashboard, watcher
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
GOOD, BAD, LATER = 300, 4, 50
PATIENCE = 60_000


@contextmanager
def running(file: Path, session: Any, rows: int) -> Any:
    """The pipeline, run beside the test; it has read so many rows when the block begins, and has ended behind it."""
    stop, done = StopRequest(), [0]

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            done[0] += event.metrics.rows_in

    work = threading.Thread(target=run, args=(load(file), RunOptions(), listen, stop, session), daemon=True)
    work.start()
    try:
        wait_for(lambda: done[0] >= rows or not work.is_alive(), "the rows to be read")
        yield
    finally:
        stop.ask()
        work.join(60)


def log_ends(brokers: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test", "log_level": 0})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, p), 10)[1] for p in range(partitions)]
    finally:
        consumer.close()


def partition_rows(page: Any) -> list[list[int]]:
    """Committed, log end and lag of every partition, out of the table behind the heat strip."""
    rows = page.locator("#lag tbody tr").all()
    return [[int(cell.replace(",", "")) for cell in row.locator("td").all_inner_texts()[:3]] for row in rows]


def test_numbers_on_the_page_are_those_of_the_broker_and_the_tables(
    session: Any,
    topics: Any,
    pipeline_file: Callable[..., Path],
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "_PERIODS", dict.fromkeys(watcher._PERIODS, 1.0))
    topic = topics.create(3)
    good = [order(number) for number in range(GOOD)]
    topics.send(topic, [*good, *[b"<b>not json</b>"] * BAD])
    file = pipeline_file(topic, trigger={"every": "500 ms"})
    with Dashboard([file]) as served:
        with running(file, session, GOOD + BAD):
            page = opened(served.url, "#/p/orders")
            expect(page.locator(".badge")).to_have_text("running")
            expect(page.locator(".f-lag .value")).to_have_text("0", timeout=PATIENCE)
            expect(page.locator(".f-behind .value")).to_have_text("caught up")
            landed, aside = (read_table(file.parent / "lake" / name).num_rows for name in ("out", "quarantine"))
            assert (landed, aside) == (GOOD, BAD)
            expect(page.locator(".box.source .box-total")).to_have_text(f"{GOOD + BAD} rows")
            expect(page.locator(".box.sink .box-total")).to_have_text(f"{landed} rows")
            expect(page.locator(".box.quarantine .box-total")).to_have_text(f"{aside} rows")
            expect(page.locator("#quarantine .codes .n")).to_have_text(str(aside), timeout=PATIENCE)
            expect(page.locator("#quarantine .samples .value")).to_have_text(["<b>not json</b>"] * BAD)
            batch = SparkCheckpoint(str(file.parent / "checkpoints/orders")).last_committed()
            expect(page.locator(".f-batch .note")).to_have_text(re.compile(f"^batch {batch}, "))
            expect(page.locator(".checkpoint-words")).to_have_text(f"Batch {batch} is committed.", timeout=PATIENCE)
            sink = page.locator("#checkpoint tbody tr", has_text="out")
            expect(sink.locator("td").first).to_have_text(str(batch))
            expect(sink.locator(".agrees")).to_have_text("agrees")
        expect(page.locator(".badge")).to_have_text("stopped", timeout=PATIENCE)
        topics.send(topic, good[:LATER])
        expect(page.locator(".f-lag .value")).to_have_text(str(LATER), timeout=PATIENCE)
        page.locator("#lag summary").click()
        expect(page.locator("#lag tbody tr")).to_have_count(3)
        ends = log_ends(topics.brokers, topic, 3)
        assert [row[1] for row in partition_rows(page)] == ends
        assert [row[0] for row in partition_rows(page)] == [end - lag for (_, end, lag) in partition_rows(page)]
        assert sum(row[2] for row in partition_rows(page)) == sum(ends) - GOOD - BAD == LATER
