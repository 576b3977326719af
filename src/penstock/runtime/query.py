"""The Structured Streaming query: Spark chooses and logs the offsets, Penstock carries the batch.

The frame that Spark hands to each batch is never run in these lanes; it costs nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from penstock.checkpoint import to_spark_json
from penstock.errors import PenstockError
from penstock.runtime.build import Pipeline
from penstock.runtime.faults import in_our_terms
from penstock.runtime.preflight import StartPoint

RunBatch = Callable[[Any, int], None]


class BatchGate:
    """Lets batches through one at a time, keeps the first error, and closes between batches for a stop."""

    def __init__(self, run_batch: RunBatch) -> None:
        self._run_batch = run_batch
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._released = threading.Event()
        self.last_batch: int | None = None
        self.error: PenstockError | None = None

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Spark's `foreachBatch`."""
        with self._lock:
            if not self._closed.is_set():
                try:
                    self._run_batch(frame.sparkSession, batch_id)
                except Exception as error:
                    self.error = in_our_terms(error)
                    raise
                self.last_batch = batch_id
                return
        # A stop came between two batches: this one waits here, untouched, until the query is stopped.
        self._released.wait(60)
        raise RuntimeError("the run is stopping")

    def close(self) -> None:
        """Let the batch in hand finish, and no other begin."""
        self._closed.set()
        with self._lock:
            pass

    def release(self) -> None:
        """Free a batch that waits."""
        self._released.set()


def start_query(session: Any, pipeline: Pipeline, start: StartPoint, gate: BatchGate, drain: bool) -> Any:
    """Start the query over Spark's Kafka source."""
    config = pipeline.config
    reader = session.readStream.format("kafka").options(**pipeline.settings.for_spark())
    # Loss is detected by Penstock, exactly and before a row is read: Spark's own reader never runs.
    reader = reader.option("failOnDataLoss", "false")
    # Spark would ask three times before it says anything; the run itself tries again, and says so.
    reader = reader.option("fetchOffset.numRetries", "1")
    for name, value in {**_subscribed(pipeline), **_starting(pipeline, start), **_limits(pipeline)}.items():
        reader = reader.option(name, value)
    writer = reader.load().writeStream.queryName(config.name).foreachBatch(gate)
    writer = writer.option("checkpointLocation", config.checkpoint)
    if drain or config.trigger.available_now:
        return writer.trigger(availableNow=True).start()
    every = config.trigger.every
    millis = int(every.total_seconds() * 1000) if every is not None else 0
    return writer.trigger(processingTime=f"{millis} milliseconds").start()


def _subscribed(pipeline: Pipeline) -> dict[str, str]:
    subscription = pipeline.subscription
    if subscription.pattern is not None:
        return {"subscribePattern": subscription.pattern}
    if subscription.assign is not None:
        return {"assign": json.dumps({t: list(p) for t, p in subscription.assign.items()})}
    return {"subscribe": ",".join(subscription.topics)}


def _starting(pipeline: Pipeline, start: StartPoint) -> dict[str, str]:
    if start.explicit is not None:
        return {"startingOffsets": to_spark_json(start.explicit)}
    asked = pipeline.config.source.start
    if isinstance(asked, datetime):
        return {
            "startingTimestamp": str(int(asked.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    return {"startingOffsets": asked if isinstance(asked, str) else "earliest"}


def _limits(pipeline: Pipeline) -> dict[str, str]:
    source = pipeline.config.source
    limits: dict[str, str] = {}
    if source.max_offsets is not None:
        limits["maxOffsetsPerTrigger"] = str(source.max_offsets)
    if source.min_offsets is not None:
        limits["minOffsetsPerTrigger"] = str(source.min_offsets)
    if source.max_delay is not None:
        limits["maxTriggerDelay"] = f"{int(source.max_delay.total_seconds() * 1000)}ms"
    return limits
