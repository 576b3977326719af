"""The events of the sinks part, and what a target must hold after them.

Three of ten events are for an order that came before. All events of an order go to one partition, so that the newest
is the one with the highest offset. An event's number is its amount in cents: what landed is told event by event.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from events import MANY, PARTITIONS, Sender, create_topic, moment, order_text

Numbers = npt.NDArray[np.int64]

NEWEST = date(2026, 6, 30)
"""The newest date of a table with history."""

_DATES_TOUCHED = 2


@dataclass(frozen=True)
class Pairs:
    """The number of the event that each row came from, with its order."""

    order_id: Numbers
    number: Numbers

    def newest(self) -> Pairs:
        """Of each order the row with the highest number."""
        last = np.lexsort((self.number, self.order_id))
        ids = self.order_id[last]
        ends = np.append(ids[1:] != ids[:-1], True)
        return Pairs(ids[ends], self.number[last][ends])

    def then(self, later: Pairs) -> Pairs:
        """These and later ones."""
        return Pairs(np.append(self.order_id, later.order_id), np.append(self.number, later.number))

    def difference(self, found: Pairs) -> str | None:
        """How `found` differs from these, as counts; `None` where it holds the same pairs, each as often."""
        wanted, there = self._codes(), found._codes()
        if np.array_equal(wanted, there):
            return None
        missing, strange = np.setdiff1d(wanted, there), np.setdiff1d(there, wanted)
        twice = len(there) - len(np.unique(there))
        return (
            f"wanted {len(wanted):,} rows, found {len(there):,}: "
            f"{len(missing):,} missing, {len(strange):,} not wanted, {twice:,} twice"
        )

    def _codes(self) -> Numbers:
        return np.sort(self.order_id * 2**32 + self.number + 1)


def pairs_of(table: pa.Table) -> Pairs:
    """The pairs of a table with the columns `order_id` and `amount`."""
    amounts = table.column("amount").to_numpy()
    return Pairs(table.column("order_id").to_numpy(), np.rint(amounts * 100).astype(np.int64))


def send_orders(brokers: str, topic: str, events: int) -> Pairs:
    """Fill a new topic; give what was sent."""
    numbers = np.arange(events, dtype=np.int64)
    again = numbers % 10 >= 7
    so_far = np.cumsum(~again)
    ids = np.where(again, _spread(numbers) % so_far, so_far - 1)
    _send(brokers, topic, ids, [moment(number) for number in range(events)])
    return Pairs(ids, numbers)


@dataclass(frozen=True)
class History:
    """A table of some dates: orders are numbered from the newest date backwards, so that each size of it has the same
    orders on its newest dates. Events change some of those, and add others to the same dates."""

    orders_a_date: int

    def rows(self, dates: int) -> pa.Table:
        """The table before the events."""
        ids = np.arange(dates * self.orders_a_date, dtype=np.int64)
        days = np.datetime64(NEWEST) - ids // self.orders_a_date
        columns = {
            "order_id": pa.array(ids),
            "customer_id": pa.array([f"c-{number % 50_000:05d}" for number in ids]),
            "amount": pa.array(np.full(len(ids), -0.01)),
            "event_time": pa.array(days.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
            "order_date": pa.array(days.astype("datetime64[D]"), pa.date32()),
        }
        return pa.table(columns)

    def send(self, brokers: str, topic: str, events: int) -> Pairs:
        """Fill a new topic with events for the newest dates alone."""
        numbers = np.arange(events, dtype=np.int64)
        touched = _DATES_TOUCHED * self.orders_a_date
        # New orders have numbers above those of any history, so that the range of a batch's keys tells nothing.
        again = numbers % 10 >= 7
        ids = np.where(again, _spread(numbers) % touched, 10**9 + np.cumsum(~again))
        days = [(NEWEST - timedelta(days=back)).isoformat() for back in range(_DATES_TOUCHED)]
        # The time moves with each event, the date never.
        times = [days[self._date_of(order_id)] + moment(at)[10:] for at, order_id in enumerate(ids.tolist())]
        _send(brokers, topic, ids, times)
        return Pairs(ids, numbers)

    def _date_of(self, order_id: int) -> int:
        known = order_id < _DATES_TOUCHED * self.orders_a_date
        return order_id // self.orders_a_date if known else order_id % _DATES_TOUCHED


def _spread(numbers: Numbers) -> Numbers:
    """Numbers without a pattern, and the same in every run: Knuth's multiplicative hash, its upper bits."""
    return (numbers * 2_654_435_761 % 2**32) >> 6


def _send(brokers: str, topic: str, ids: Numbers, times: list[str]) -> None:
    create_topic(brokers, topic)
    sender = Sender(brokers, MANY)
    for number, (order_id, time) in enumerate(zip(ids.tolist(), times, strict=True)):
        sender.send(topic, order_text(order_id, number, time), order_id % PARTITIONS)
    sender.finish()
