"""The gate between Spark's query and the batches of a run."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from penstock.engine.query import BatchGate
from penstock.errors import TerminalError


class Failing:
    """A run whose batches fail."""

    def __call__(self, frame: Any, batch_id: int) -> None:
        raise TerminalError("SINK_FAILED", f"batch {batch_id} does not come through")


def test_failed_batch_is_told_to_spark_in_words_and_kept_as_it_was() -> None:
    gate = BatchGate(Failing())
    with pytest.raises(RuntimeError, match="TerminalError: SINK_FAILED batch 7 does not come through"):
        gate(None, 7)
    assert gate.error is not None and gate.error.code == "SINK_FAILED"
    assert gate.last_batch is None


def test_gate_behind_its_query_keeps_nothing_of_the_run_that_failed() -> None:
    run = Failing()
    kept = weakref.ref(run)
    gate = BatchGate(run)
    # As Spark keeps it: with its traceback, and the gate, for as long as the session.
    with pytest.raises(RuntimeError) as raised:
        gate(None, 0)
    gate.end()
    del run
    gc.collect()
    assert raised.value.__traceback__ is not None
    assert kept() is None
