"""A fleet in a thread of the test, on the shared session, with everything that it tells."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.services.running import wait_for

from penstock.engine.listener import BatchDone, Started
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.preflight.options import RunOptions
from penstock.supervision.fleet import Fleet
from penstock.supervision.fleet_events import FleetEvent, FleetOptions, FleetSummary


class Sailing:
    """A fleet under way. Leaving it asks it to stop, and waits."""

    def __init__(self, session: Any, paths: Sequence[Path], **options: Any) -> None:
        self.events: list[tuple[str, FleetEvent]] = []
        self.stop = StopRequest()
        self.summary: FleetSummary | None = None
        self.error: BaseException | None = None
        run = RunOptions(available_now=options.pop("available_now", False), give_up_after=options.pop("give_up", 2.0))
        asked = FleetOptions(run, **{"first_delay": 0.25, "longest_delay": 0.5, "look_every": 0.1, **options})
        self.fleet = Fleet(paths, asked, lambda name, event: self.events.append((name, event)), self.stop)
        self._session = session
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.summary = self.fleet.run(self._session)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.ask()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def ended(self, seconds: float = 60) -> FleetSummary:
        """Until it ends by itself."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it goes on"
        if self.error is not None:
            raise self.error
        assert self.summary is not None
        return self.summary

    def told(self, kind: type[Any], name: str | None = None) -> list[Any]:
        return [event for one, event in self.events if isinstance(event, kind) and name in (None, one)]

    def await_told(self, kind: type[Any], name: str | None = None, count: int = 1, seconds: float = 60) -> Any:
        """The newest event of a kind, once there are so many."""
        try:
            wait_for(lambda: len(self.told(kind, name)) >= count or self.error, f"{kind.__name__} of {name}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; heard were {self.events[-10:]}") from None
        assert self.error is None, self.error
        return self.told(kind, name)[-1]

    def await_started(self, *names: str) -> None:
        for name in names:
            self.await_told(Started, name)

    def await_rows(self, name: str, count: int) -> None:
        """Until so many records of a pipeline went through all of its sinks."""

        def through() -> int:
            return sum(event.metrics.rows_in for event in self.told(BatchDone, name))

        wait_for(lambda: through() >= count or self.error, f"{count} rows of {name}, {through()} so far")
        assert self.error is None, self.error


def rows_in(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table, without coordinates."""
    from deltalake import DeltaTable

    if not (table / "_delta_log").is_dir():
        return []
    return [
        {k: v for k, v in row.items() if k != "_penstock"}
        for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    ]


def ids_in(table: Path) -> Counter[int]:
    return Counter(row["order_id"] for row in rows_in(table))


def code_of(error: PenstockError | None) -> str | None:
    return error.code if error is not None else None
