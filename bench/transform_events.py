"""The events of the transforms part, the table that they are joined with, and what every job must make of them.

However many events there are, they fill one hour of event time, in order. One customer in eleven is not in the table.
Every tenth event of the topic for the dedupe comes again a little later, so that it has `rows` ids and a tenth more
records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import write_deltalake
from events import EVENT_BYTES, MANY, PARTITIONS, Sender, create_topic

COLUMNS = "order_id BIGINT NOT NULL, customer_id STRING, store STRING, cents BIGINT, event_time TIMESTAMP"
EVENTS, REPEATED = "events", "events-repeated"
"""The topics."""

_CUSTOMERS, _TABLE_ROWS, _STORES = 110_000, 100_000, 1_000
_HOUR = timedelta(hours=1) // timedelta(milliseconds=1)
_FIRST = np.datetime64("2026-01-01T00:00:00", "us")
_NOTE = "leave at the side door, ring twice, and mind the dog; " * 4
_REPEAT_EVERY, _REPEAT_SHARE = 10, 100

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Orders:
    """The orders 0 to `rows`, as columns. All of an order follows from its number."""

    rows: int

    @property
    def number(self) -> Numbers:
        """The orders themselves."""
        return np.arange(self.rows, dtype=np.int64)

    @property
    def customer(self) -> Numbers:
        """Which customer; those from 100,000 on are not in the table."""
        return self.number * 7919 % _CUSTOMERS

    @property
    def store(self) -> Numbers:
        """Which store."""
        return self.number * 31 % _STORES

    @property
    def cents(self) -> Numbers:
        """The amount."""
        return self.number * 37 % 50_000

    @property
    def millis(self) -> Numbers:
        """When, in milliseconds since the first."""
        return self.number * _HOUR // self.rows

    def events(self) -> list[bytes]:
        """Each order as JSON, filled up with a note to the usual length."""
        columns = (self.number, self.customer, self.store, self.cents, self.millis)
        return [_event(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]

    def enriched(self) -> pa.Table:
        """What the enrichment gives: the credit of the customer, or null."""
        customer = self.customer
        credit = pa.array(_credit(customer), mask=customer >= _TABLE_ROWS)
        return pa.table({"order_id": self.number, "cents": self.cents, "credit": credit})

    def windows(self, size: timedelta, delay: timedelta) -> pa.Table:
        """What a window by store gives: the windows that have ended by the last watermark."""
        span = size // timedelta(milliseconds=1)
        start = self.millis // span * span
        names = np.array([f"s-{number:04d}" for number in range(_STORES)])
        times = (_FIRST + start.astype("timedelta64[ms]")).astype("datetime64[us]")
        ended = start + span <= int(self.millis[-1]) - delay // timedelta(milliseconds=1)
        columns = {
            "window_start": pa.array(times, pa.timestamp("us", "UTC")),
            "store": pa.array(names[self.store]),
            "cents": pa.array(self.cents),
        }
        groups = pa.table(columns).filter(pa.array(ended)).group_by(["window_start", "store"])
        found = groups.aggregate([([], "count_all"), ("cents", "sum")])
        return found.rename_columns(["window_start", "store", "orders", "total"])

    def deduplicated(self) -> pa.Table:
        """What the dedupe gives: each order once."""
        return pa.table({"order_id": self.number, "cents": self.cents})


def send_transforms(brokers: str, rows: int) -> dict[str, int]:
    """Fill both topics; give how many records each has."""
    events = Orders(rows).events()
    return {EVENTS: _send(brokers, EVENTS, events), REPEATED: _send(brokers, REPEATED, _with_repeats(events))}


def write_customers(table: Path) -> None:
    """The Delta table to join with."""
    customer = np.arange(_TABLE_ROWS, dtype=np.int64)
    columns = {
        "customer_id": [f"c-{number:06d}" for number in range(_TABLE_ROWS)],
        "name": [f"customer number {number}" for number in range(_TABLE_ROWS)],
        "credit": _credit(customer),
        "country": [("DE", "FR", "PL", "IT")[number % 4] for number in range(_TABLE_ROWS)],
    }
    write_deltalake(table, pa.table(columns))


def _event(number: int, customer: int, store: int, cents: int, millis: int) -> bytes:
    second = millis // 1000
    text = (
        f'{{"order_id": {number}, "customer_id": "c-{customer:06d}", "store": "s-{store:04d}", "cents": {cents}, '
        f'"event_time": "2026-01-01T00:{second // 60:02d}:{second % 60:02d}.{millis % 1000:03d}Z", "note": "'
    )
    return f'{text}{_NOTE[: EVENT_BYTES - len(text) - 2]}"}}'.encode()


def _with_repeats(events: list[bytes]) -> Iterable[bytes]:
    """Every tenth event a second time, a hundredth of all events later."""
    later = len(events) // _REPEAT_SHARE
    for number, event in enumerate(events):
        yield event
        if number >= later and (number - later) % _REPEAT_EVERY == 0:
            yield events[number - later]


def _credit(customer: Numbers) -> Numbers:
    return customer * 13 % 10_007


def _send(brokers: str, topic: str, events: Iterable[bytes]) -> int:
    create_topic(brokers, topic)
    sender, sent = Sender(brokers, MANY), 0
    for event in events:
        sender.send(topic, event, sent % PARTITIONS)
        sent += 1
    sender.finish()
    return sent
