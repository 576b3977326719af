"""The stateful step of visits.yaml, written with Spark's `transformWithState` in pandas."""

# ruff: noqa: N802, N803 -- the names are Spark's

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor

MOST_ORDERS = 5
IDLE_MILLISECONDS = 30 * 60 * 1000


class Visits(StatefulProcessor):
    """Adds up the orders of a customer until the visit ends, and emits one row per visit."""

    def init(self, handle: Any) -> None:
        """One value for each customer: the current visit."""
        self.handle = handle
        self.visit = handle.getValueState("visit", "orders BIGINT, total DOUBLE, ends BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """The orders of one customer, in a batch."""
        for order in pd.concat(rows).sort_values("ordered_at").itertuples():
            orders, total, ends = self.visit.get() or (0, 0.0, None)
            if ends is not None:
                self.handle.deleteTimer(ends)
            orders, total = orders + 1, total + order.amount
            if orders == MOST_ORDERS:
                self.visit.clear()
                yield self._row(key, orders, total)
            else:
                ends = int(order.ordered_at.timestamp() * 1000) + IDLE_MILLISECONDS
                self.handle.registerTimer(ends)
                self.visit.update((orders, total, ends))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Half an hour without an order."""
        orders, total, _ = self.visit.get()
        self.visit.clear()
        yield self._row(key, orders, total)

    def close(self) -> None:
        """Nothing to close."""

    def _row(self, key: Any, orders: int, total: float) -> pd.DataFrame:
        return pd.DataFrame({"customer_id": [key[0]], "orders": [orders], "total": [total]})
