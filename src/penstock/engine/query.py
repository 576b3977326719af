"""The Structured Streaming query: Spark chooses and logs the offsets, Penstock processes the batch.

Without state the frame that Spark hands to each batch is never run; it costs nothing. A flow with state is that frame.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import translate_error
from penstock.assembly.layout import StreamInput
from penstock.assembly.state import STATE_SETTINGS
from penstock.checkpoint import to_spark_json
from penstock.config import KafkaSourceConfig, reveal
from penstock.errors import PenstockError
from penstock.kafka import Subscription
from penstock.preflight.checks import StartPoint
from penstock.spark.internals import close_connection, connection_of
from penstock.storage.storage import is_s3_uri

if TYPE_CHECKING:
    from penstock.engine.stream import Stream

RunBatch = Callable[[Any, int], None]
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


class BatchGate:
    """Lets batches through one at a time, keeps the first error, and closes between batches for a stop."""

    def __init__(self, run_batch: RunBatch, until: int | None = None) -> None:
        self._run_batch = run_batch
        self.until = until
        """The last batch to run."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._released = threading.Event()
        self._connection: Any = None
        self.last_batch: int | None = None
        self.error: PenstockError | None = None
        self.in_hand = False
        """Whether a batch is running in this process."""

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Spark's `foreachBatch`."""
        self._connection = self._connection or connection_of(frame)
        with self._lock:
            if not self._closed.is_set() and (self.until is None or batch_id <= self.until):
                self.in_hand = True
                try:
                    self._run_batch(frame, batch_id)
                    self.last_batch = batch_id
                    return
                except Exception as error:
                    self.error, told = translate_error(error), f"{type(error).__name__}: {error}"
                finally:
                    self.in_hand = False
                # Spark keeps what is raised here as long as the session: so nothing whose traceback knows the run.
                raise RuntimeError(told)
        # The run stops between two batches: this one waits here, not started, until the query is stopped.
        self._released.wait(60)
        raise RuntimeError("the run is stopping")

    def close(self) -> None:
        """Let the current batch finish, and start no other."""
        self._closed.set()
        with self._lock:
            pass

    def release(self) -> None:
        """Free a batch that waits."""
        self._released.set()

    def end(self) -> None:
        """The query is over. Spark's gateway keeps the gate as long as the session, and all that it refers to."""
        self._closed.set()
        self._run_batch, self.error = _nothing, None
        # Not if Spark stopped waiting for a batch that still runs.
        if self._connection is not None and self._lock.acquire(blocking=False):
            close_connection(self._connection)
            self._lock.release()


def _nothing(frame: Any, batch_id: int) -> None:
    """What a gate runs after its query has ended."""


def start_query(
    session: Any,
    pipeline: Pipeline,
    start: StartPoint,
    gate: BatchGate,
    drain: bool,
    stream: Stream | None = None,
    cap: int | None = None,
) -> Any:
    """Start the query over Spark's Kafka source, or over several that a stream joins.

    A source without its own cap gets its share of `cap`.
    """
    config = pipeline.config
    shares = max(1, len(config.sources))
    share = max(1, cap // shares) if cap is not None else None
    mode = "append"
    if stream is None:
        frame = _read(session, pipeline, start, pipeline.subscription, config.source, share)
    else:
        mode = "update" if stream.layout.changes else "append"
        own = reveal(config.spark)
        draining = drain or config.trigger.available_now
        # Timers of processing time never leave nothing to do: a run that is to end does without batches for them alone.
        ends = "false" if draining and stream.layout.by_the_clock else "true"
        for name, value in {**STATE_SETTINGS, "spark.sql.streaming.noDataMicroBatches.enabled": ends}.items():
            session.conf.set(name, own.get(name, value))
        frame = stream.frame(
            session, {one.name: _raw(session, pipeline, start, one, share) for one in stream.layout.inputs}
        )
    writer = frame.writeStream.queryName(config.name).outputMode(mode).foreachBatch(gate)
    choose_file_manager(session, config.checkpoint, reveal(config.spark).get(_FILE_MANAGER))
    writer = writer.option("checkpointLocation", config.checkpoint)
    if drain or config.trigger.available_now:
        return writer.trigger(availableNow=True).start()
    every = config.trigger.every
    millis = int(every.total_seconds() * 1000) if every is not None else 0
    return writer.trigger(processingTime=f"{millis} milliseconds").start()


def choose_file_manager(session: Any, checkpoint: str, asked: str | None = None) -> None:
    """On S3, checkpoint files are written in place with a conditional put; elsewhere by a rename.

    The session may have run another pipeline before: its settings are unset.
    """
    chosen = asked or (_ABORTABLE if is_s3_uri(checkpoint) else None)
    if chosen is not None:
        session.conf.set(_FILE_MANAGER, chosen)
    else:
        session.conf.unset(_FILE_MANAGER)


def _read(
    session: Any,
    pipeline: Pipeline,
    start: StartPoint,
    subscription: Subscription,
    source: KafkaSourceConfig,
    cap: int | None,
    **more: str,
) -> Any:
    reader = session.readStream.format("kafka").options(**{**pipeline.settings.for_spark(), **more})
    # Loss is detected by Penstock, exactly and before a row is read: Spark's own reader does not run without state.
    reader = reader.option("failOnDataLoss", "false")
    # Spark would retry three times silently; the run itself retries, and reports it.
    reader = reader.option("fetchOffset.numRetries", "1")
    return reader.options(
        **_subscribed(subscription), **_starting(start, subscription, source), **_limits(source, cap)
    ).load()


def _raw(session: Any, pipeline: Pipeline, start: StartPoint, one: StreamInput, cap: int | None) -> Any:
    """The records of one input, as Spark's own reader gives them."""
    config = pipeline.config
    source: KafkaSourceConfig = config.sources.get(one.name, config.source)
    subscription = pipeline.subscription
    if one.name in config.sources:
        subscription = Subscription(source.topics or (), None, None)
    # By default this reader waits half a second at the end of every partition.
    quick = {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "10000", "includeHeaders": "true"}
    return _read(session, pipeline, start, subscription, source, cap, **quick)


def _subscribed(subscription: Subscription) -> dict[str, str]:
    if subscription.pattern is not None:
        return {"subscribePattern": subscription.pattern}
    if subscription.assign is not None:
        return {"assign": json.dumps({t: list(p) for t, p in subscription.assign.items()})}
    return {"subscribe": ",".join(subscription.topics)}


def _starting(start: StartPoint, subscription: Subscription, source: KafkaSourceConfig) -> dict[str, str]:
    if start.explicit is not None:
        mine = {at: o for at, o in start.explicit.items() if not subscription.topics or at.topic in subscription.topics}
        return {"startingOffsets": to_spark_json(mine)}
    asked = source.start
    if isinstance(asked, datetime):
        return {
            "startingTimestamp": str(int(asked.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    return {"startingOffsets": asked if isinstance(asked, str) else "earliest"}


def _limits(source: KafkaSourceConfig, cap: int | None) -> dict[str, str]:
    limits: dict[str, str] = {}
    if (most := source.max_offsets or cap) is not None:
        limits["maxOffsetsPerTrigger"] = str(most)
    if source.min_offsets is not None:
        limits["minOffsetsPerTrigger"] = str(source.min_offsets)
    if source.max_delay is not None:
        limits["maxTriggerDelay"] = f"{int(source.max_delay.total_seconds() * 1000)}ms"
    return limits
