"""The complete demo on this machine: a broker, faulty events, the pipeline, the tables, and a summary that adds up.

The events are orders with a known number of faults, each at a known place. Every partition gets the same number of
messages, so Spark cuts the batches at the same position in each, and a pair of duplicates never lies across a cut: the
summary can be exact.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from penstock.assembly.build import build
from penstock.config import load
from penstock.devstack import DevStack
from penstock.engine.listener import Listener
from penstock.errors import MissingError, TerminalError
from penstock.kafka import Cluster
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

PARTITIONS = 8
BATCH_OFFSETS = 60_000
_STARTED = datetime(2026, 1, 1, tzinfo=UTC)
_FAULT_EVERY, _NEGATIVE_EVERY, _TWICE_EVERY = 200, 400, 100

_FAULTS: tuple[tuple[str, bytes | None], ...] = (
    ("MALFORMED_JSON", b'{"order_id": 17, "customer_id": "c-17", "amount": 12.'),
    (
        "WRONG_TYPE",
        b'{"order_id": 18, "customer_id": "c-18", "amount": "twelve", "event_time": "2026-01-01T00:00:00Z"}',
    ),
    ("MISSING_FIELD", b'{"customer_id": "c-19", "amount": 3.5, "event_time": "2026-01-01T00:00:00Z"}'),
    ("NOT_AN_OBJECT", b"[1, 2, 3]"),
    ("INVALID_UTF8", b'{"order_id": 20, "customer_id": "\xff\xfe", "amount": 1.0}'),
    ("TOMBSTONE", None),
    ("TRAILING_DATA", b'{"order_id": 21, "amount": 1.0}{"order_id": 22, "amount": 2.0}'),
    ("EMPTY_MESSAGE", b""),
)


@dataclass(frozen=True)
class DemoMessage:
    """One message and its expected result."""

    partition: int
    key: bytes
    value: bytes | None


@dataclass
class Expected:
    """What must come out, counted while the messages are made."""

    sent: int = 0
    duplicates: int = 0
    filtered: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)

    @property
    def landed(self) -> int:
        """Rows that must be in the table."""
        return self.sent - self.duplicates - self.filtered - sum(self.quarantined.values())


def demo_messages(count: int, expected: Expected, first: int = 0) -> Iterator[DemoMessage]:
    """`count` messages from number `first` on, round robin over the partitions; `expected` is filled in on the way."""
    twice: dict[int, tuple[int, bytes]] = {}
    for number in range(first, first + count):
        position, partition = divmod(number, PARTITIONS)
        expected.sent += 1
        if number in twice:
            order, value = twice.pop(number)
            expected.duplicates += 1
            yield DemoMessage(partition, f"o-{order}".encode(), value)
        elif position % _FAULT_EVERY == 77:
            code, fault = _FAULTS[(position // _FAULT_EVERY + partition) % len(_FAULTS)]
            expected.quarantined[code] += 1
            yield DemoMessage(partition, f"bad-{number}".encode(), fault)
        else:
            negative = position % _NEGATIVE_EVERY == 33
            expected.filtered += negative
            value = _order(number, negative)
            # The copy lands two rounds later and in another partition, well inside the same batch.
            if position % _TWICE_EVERY == 50 and number + 2 * PARTITIONS + 3 < first + count:
                twice[number + 2 * PARTITIONS + 3] = (number, value)
            yield DemoMessage(partition, f"o-{number}".encode(), value)


def _order(number: int, negative: bool) -> bytes:
    amount = round((number * 37 % 50_000) / 100 + 0.5, 2)
    return json.dumps(
        {
            "order_id": number,
            "customer_id": f"c-{number % 5_000:05d}",
            "amount": -amount if negative else amount,
            "event_time": (_STARTED + timedelta(milliseconds=number * 860)).isoformat().replace("+00:00", "Z"),
            "status": ("new", "paid", "sent", "done")[number % 4],
        }
    ).encode()


_MARK = ".penstock-demo"
_LIVE_RATE, _TICK_SECONDS = 1_500, 0.2
_MINUTE, _BURST_SECONDS = 60.0, 12.0
_PIPELINE = """\
name: orders
source:
  type: kafka
  brokers: {brokers}
  topics: [orders]
  start: earliest
{limit}decode:
  format: json
  schema: "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP"
quarantine:
  table: lake/orders_quarantine
transforms:
  - where: "amount >= 0"
  - derive: {{event_date: "date(event_time)"}}
  - dedupe: {{keys: [order_id]}}
sinks:
  - name: orders_delta
    type: delta
    path: lake/orders
    mode: append
    partition_by: [event_date]
checkpoint: checkpoints/orders
trigger: {trigger}
"""


@dataclass(frozen=True)
class DemoSummary:
    """What was sent and what came out, counted independently of the run."""

    folder: Path
    brokers: str
    sent: int
    landed: int
    distinct: int
    filtered: int
    duplicates: int
    quarantined: Counter[str]
    samples: list[dict[str, Any]] = field(repr=False)
    batches: int
    lag: int
    files: int
    run_seconds: float
    seconds: float


Progress = Callable[[str, int, int], None]


def run_demo(folder: Path, events: int, stack: DevStack, listener: Listener, progress: Progress) -> DemoSummary:
    """Send, run, count. The folder is fresh and the stack up; both are left. Raises if the numbers do not add up."""
    began = time.monotonic()
    file = _write(folder, stack, limit=f"  max_offsets: {BATCH_OFFSETS}\n", trigger="{available_now: true}")
    expected = _send(stack.bootstrap, events, progress)
    config = load(file)
    done = run(config, RunOptions(log=folder / "spark.log"), listener)
    orders = _rows(folder / "lake/orders", ["order_id"])
    bad = _rows(folder / "lake/orders_quarantine")
    pipeline = build(config)
    cluster = Cluster(pipeline.settings)
    position = pipeline.sinks[0].position()
    ends = position.next if position is not None else {}
    lag = sum(
        log.end - ends.get(at, 0) for at, log in cluster.bounds(cluster.partitions(pipeline.subscription)).items()
    )
    summary = DemoSummary(
        folder=folder,
        brokers=stack.bootstrap,
        sent=expected.sent,
        landed=orders.num_rows,
        distinct=len(orders.column(0).unique()),
        filtered=expected.filtered,
        duplicates=done.rows_in - done.quarantined - expected.filtered - done.rows_out,
        quarantined=Counter(bad.column("code").to_pylist()),
        samples=bad.slice(0, bad.num_rows).take(_sample_rows(bad)).to_pylist(),
        batches=done.batches,
        lag=lag,
        files=len(DeltaTable(folder / "lake/orders").file_uris()),
        run_seconds=done.seconds,
        seconds=time.monotonic() - began,
    )
    _check(summary, expected)
    return summary


@contextmanager
def live_demo(folder: Path, events: int, stack: DevStack) -> Iterator[Path]:
    """The demo's pipeline, now as one that runs on, and more orders for it until the end: its file."""
    file = _write(folder, stack, limit="", trigger="{every: 2 seconds}")
    over = threading.Event()
    sending = threading.Thread(target=_keep_sending, args=(stack.bootstrap, events, over), daemon=True)
    sending.start()
    try:
        yield file
    finally:
        over.set()
        sending.join(10)


def fresh_folder(folder: Path) -> Path:
    """An empty place for the demo: what an earlier one left is removed, anything else is refused."""
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise MissingError(
            "DEMO_FOLDER_TAKEN",
            f"the folder {folder} is not empty and not an earlier demo",
            hint="choose another one: penstock demo --dir FOLDER",
        )
    for part in ("lake", "checkpoints"):
        shutil.rmtree(folder / part, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
    return folder


def _write(folder: Path, stack: DevStack, *, limit: str, trigger: str) -> Path:
    file = folder / "orders.yaml"
    file.write_text(_PIPELINE.format(brokers=stack.bootstrap, limit=limit, trigger=trigger))
    return file


def _keep_sending(brokers: str, first: int, over: threading.Event) -> None:
    """Orders at a steady rate, and ten times as many for a few seconds of every minute."""
    producer = _producer(brokers)
    messages = demo_messages(sys.maxsize - first, Expected(), first)
    began = time.monotonic()
    while not over.wait(_TICK_SECONDS):
        burst = (time.monotonic() - began) % _MINUTE >= _MINUTE - _BURST_SECONDS
        for message in islice(messages, int(_LIVE_RATE * _TICK_SECONDS) * (10 if burst else 1)):
            producer.produce("orders", message.value, message.key, message.partition)
        producer.poll(0)
    producer.purge()
    producer.flush(5)


def _producer(brokers: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": brokers,
            "linger.ms": 50,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 500_000,
            "log_level": 0,
        }
    )


def _send(brokers: str, events: int, progress: Progress) -> Expected:
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    for created in admin.create_topics([NewTopic("orders", PARTITIONS, 1)]).values():
        created.result()
    producer = _producer(brokers)
    expected, failed = Expected(), Counter[str]()

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed[str(error)] += 1

    for message in demo_messages(events, expected):
        producer.produce("orders", message.value, message.key, message.partition, on_delivery=delivered)
        if expected.sent % 2_000 == 0:
            producer.poll(0)
            progress("sending events", expected.sent, events)
    producer.flush(60)
    progress("sending events", events, events)
    if failed:
        raise TerminalError("DEMO_NOT_SENT", "sending events: some were not delivered", context=failed)
    return expected


def _rows(table: Path, columns: list[str] | None = None) -> Any:
    # Without Arrow's own threads: with them the process may abort at its exit.
    return DeltaTable(table).to_pyarrow_dataset().to_table(columns=columns, use_threads=False)


def _sample_rows(bad: Any) -> list[int]:
    """One row each of the first three codes."""
    first: dict[str, int] = {}
    for row, code in enumerate(bad.column("code").to_pylist()):
        first.setdefault(code, row)
    return list(first.values())[:3]


def _check(summary: DemoSummary, expected: Expected) -> None:
    facts = {
        "landed": (expected.landed, summary.landed),
        "distinct orders": (expected.landed, summary.distinct),
        "duplicates removed": (expected.duplicates, summary.duplicates),
        "quarantined": (
            dict(sorted(expected.quarantined.items())),
            dict(sorted(summary.quarantined.items())),
        ),
        "lag": (0, summary.lag),
    }
    wrong = {name: f"expected {want}, found {got}" for name, (want, got) in facts.items() if want != got}
    if summary.batches < 3:
        wrong["batches"] = f"expected at least 3, found {summary.batches}"
    if wrong:
        raise TerminalError("DEMO_DOES_NOT_ADD_UP", "the demo's numbers do not agree", context=wrong)
