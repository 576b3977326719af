"""A class for `stateful`: copied beside a pipeline file, where it is `steps.Numbering`. Its names are Spark's."""
# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

STEP = {
    "class": "steps.Numbering",
    "keys": ["customer_id"],
    "schema": "customer_id STRING, number BIGINT, order_id BIGINT",
    "time": "event",
    "rows": "python",
}
_DAY = 86_400_000


class Numbering(StatefulProcessor):  # type: ignore[misc]
    """Numbers the orders of each customer; a day of event time after the first it tells how many there were."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "count BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        known = self.count.get()
        number = 0 if known is None else known[0]
        for row in rows:
            if number == 0:
                self.handle.registerTimer(int(row["event_time"].timestamp() * 1000) + _DAY)
            number += 1
            yield Row(customer_id=key[0], number=number, order_id=row["order_id"])
        self.count.update((number,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        [number] = self.count.get()
        self.count.clear()
        yield Row(customer_id=key[0], number=number, order_id=-1)

    def close(self) -> None:
        pass
