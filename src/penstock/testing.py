"""Test pipelines from Python: without a broker, a network, or, in the direct lane, Spark.

    from penstock.testing import pipeline

    def test_negative_amounts_are_left_out():
        result = pipeline("orders.yaml")([{"order_id": 1, "amount": -5.0}, {"order_id": 2, "amount": 5.0}])
        assert [row["order_id"] for row in result.sink("orders_delta")] == [2]
        assert result.quarantine == []

For pytest there is the fixture `penstock_pipeline`: `pytest_plugins = ["penstock.testing"]` in `conftest.py`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config import PipelineConfig
    from penstock.config.cases import AdvanceCase, MessageCase
    from penstock.ops.cases.run import Output, SparkWhenNeeded

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""The rows of tables, by name."""

_sessions: list[SparkWhenNeeded] = []


@dataclass(frozen=True)
class Message:
    """A message with more than a value. Text and bytes are sent as they are, None as a tombstone, the rest as JSON."""

    value: Any
    key: Any = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    topic: str | None = None
    partition: int = 0
    offset: int | None = None
    time: datetime | None = None


@dataclass(frozen=True)
class Result:
    """The results: rows as Python values, decimals and times as their own types."""

    seen: Output

    def sink(self, name: str) -> list[dict[str, Any]]:
        """The rows that reach a sink, without the column `_penstock`."""
        rows = self.seen.sinks[name]
        return [{column: value for column, value in row.items() if column != "_penstock"} for row in rows]

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        """The bad records: `code`, `message`, `stage`, their bytes and their coordinates."""
        return self.seen.quarantine

    @property
    def counts(self) -> Mapping[str, int]:
        """What the rules of `expect` counted."""
        return self.seen.counts


@dataclass(frozen=True)
class PipelineTrial:
    """A pipeline under test; each call is a run of its own."""

    _config: PipelineConfig
    _schemas: Mapping[str, str]
    _session: Callable[[], Any]

    def __call__(self, messages: Sequence[Any], *more: Sequence[Any] | timedelta, tables: Rows | None = None) -> Result:
        """Process a batch of messages; `more` are further batches, a timedelta between them lets time pass.

        `tables` gives the rows of the pipeline's `tables`, by name.
        """
        from penstock.assembly.trial_registry import build_offline, given_tables
        from penstock.config.cases import AdvanceCase, Case
        from penstock.ops.cases.run import see

        batches: list[tuple[MessageCase, ...] | AdvanceCase] = [
            AdvanceCase(advance=batch) if isinstance(batch, timedelta) else tuple(_message(one) for one in batch)
            for batch in (messages, *more)
        ]
        rows = {name: tuple(map(dict, table)) for name, table in (tables or {}).items()}
        built, given = build_offline(self._config, self._schemas, given_tables(self._config, rows))
        return Result(see(built, Case(name="from Python", batches=tuple(batches)), self._session, given))


def pipeline(file: str | Path, *, schemas: Mapping[str, str] | None = None, session: Any = None) -> PipelineTrial:
    """Load a pipeline file for a test. `schemas` are files by subject, in place of a registry.

    A pipeline that needs Spark uses `session`, or one that is started when first needed and kept for the process.
    """
    from penstock.config import load

    return PipelineTrial(load(Path(file)), schemas or {}, _spark(session))


def _message(given: Any) -> MessageCase:
    from penstock.config.cases import MessageCase

    message = given if isinstance(given, Message) else Message(given)
    return MessageCase(**{name: getattr(message, name) for name in Message.__dataclass_fields__})


def _spark(session: Any) -> SparkWhenNeeded:
    from penstock.ops.cases.run import SparkWhenNeeded

    if session is not None:
        return SparkWhenNeeded(session)
    if not _sessions:
        _sessions.append(SparkWhenNeeded())
    return _sessions[0]


@atexit.register
def _stop_spark() -> None:
    while _sessions:
        _sessions.pop().stop()


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def penstock_pipeline(request: pytest.FixtureRequest) -> Iterator[Callable[..., PipelineTrial]]:
        """`pipeline`, with paths relative to the folder of the test."""

        def load_beside(file: str | Path, **options: Any) -> PipelineTrial:
            return pipeline(request.path.parent / file, **options)

        yield load_beside
