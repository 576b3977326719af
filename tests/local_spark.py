"""A stand-in for a Spark session: pipelines of the direct lane run through the product's own `run`, without a JVM.

It does what Spark does around such a pipeline, with the same files in the checkpoint: it chooses the offsets of a batch
at the brokers, writes them ahead, calls back for the batch, writes the commit, and runs tasks. Everything else is the
product. Tasks and their results are pickled as Spark pickles them, and a task that fails is text on the driver, as on
Spark. SQL, frames and state need Spark itself: what asks for them here fails.

Tests that are marked `ON_BOTH` (tests/sessions.py) run here and on Spark; they show that the two agree.
"""

from __future__ import annotations

import json
import math
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from pyspark import cloudpickle

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.errors import MissingError
from penstock.kafka import Cluster, KafkaSettings, LogBounds, Subscription
from penstock.model import TopicPartition
from penstock.storage import Storage

CORES = 2
_EARLIEST, _LATEST = -2, -1
_NOT_HOSTED = (
    "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic-partition."
)


class TaskError(Exception):
    """What Spark's driver knows of a task that failed: the text of its traceback."""


@dataclass(frozen=True)
class LocalTasks:
    """As much of an RDD as the direct lane uses. Each part is a task, which runs when its results are collected."""

    run: Callable[[], list[list[Any]]]
    copies: bool

    def map(self, do: Callable[[Any], Any]) -> LocalTasks:
        return self._then(lambda _, part: map(do, part))

    def flatMap(self, do: Callable[[Any], Iterable[Any]]) -> LocalTasks:  # noqa: N802  Spark's own name
        return self._then(lambda _, part: (made for item in part for made in do(item)))

    def mapPartitionsWithIndex(self, do: Callable[[int, Iterable[Any]], Iterable[Any]]) -> LocalTasks:  # noqa: N802
        return self._then(do)

    def partitionBy(self, count: int, place: Callable[[Any], int]) -> LocalTasks:  # noqa: N802
        def exchanged() -> list[list[Any]]:
            parts: list[list[Any]] = [[] for _ in range(count)]
            for key, value in (pair for part in self.run() for pair in part):
                parts[place(key) % count].append((key, value))
            return parts

        return LocalTasks(exchanged, self.copies)

    def collect(self) -> list[Any]:
        return [item for part in self.run() for item in part]

    def _then(self, do: Callable[[int, Iterable[Any]], Iterable[Any]]) -> LocalTasks:
        tasks = self.run
        return LocalTasks(
            lambda: [_run_task(do, number, part, self.copies) for number, part in enumerate(tasks())], self.copies
        )


def _run_task(
    do: Callable[[int, Iterable[Any]], Iterable[Any]], number: int, part: list[Any], copies: bool
) -> list[Any]:
    """One task, on copies of what it was sent; its results are copies too."""
    do, part = pickle.loads(cloudpickle.dumps((do, part))) if copies else (do, part)
    try:
        results = list(do(number, iter(part)))
        results = pickle.loads(pickle.dumps(results)) if copies else results
    except Exception as error:
        raise TaskError("".join(traceback.format_exception(error))) from None
    return results


@dataclass(frozen=True)
class _Broadcast:
    value: Any


class _NoCollectors:
    """A JVM without garbage collectors, and Spark's read limits as plain numbers."""

    def __getattr__(self, name: str) -> Any:
        return self

    def getGarbageCollectorMXBeans(self) -> list[Any]:  # noqa: N802
        return []

    def maxRows(self, count: int) -> int:  # noqa: N802
        return count


class _Gateway:
    def __init__(self) -> None:
        self.jvm = _NoCollectors()


class LocalContext:
    """As much of a Spark context as the runtime asks for."""

    def __init__(self, cores: int, copies: bool) -> None:
        self._copies = copies
        self.master = f"local[{cores}]"
        self.defaultParallelism = cores
        self._conf: dict[str, str] = {}
        self._gateway = _Gateway()
        self._jsc = self

    def sc(self) -> LocalContext:
        return self

    def parallelize(self, items: Sequence[Any], slices: int) -> LocalTasks:
        parts: list[list[Any]] = [[] for _ in range(slices)]
        for number, item in enumerate(items):
            parts[number * slices // len(items)].append(item)
        return LocalTasks(lambda: parts, self._copies)

    def broadcast(self, value: Any) -> _Broadcast:
        return _Broadcast(value)

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802
        """Of a thread's jobs, such as their pool: tasks run where they are asked for, and share no cores."""

    def getLocalProperty(self, name: str) -> None:  # noqa: N802
        """Nothing: there are no pools here that jobs could be of."""


class _Conf(dict[str, str]):
    def set(self, name: str, value: object) -> None:
        self[name] = str(value)

    def unset(self, name: str) -> None:
        self.pop(name, None)


class LocalSession:
    """In place of a Spark session: `run(config, session=LocalSession())`."""

    def __init__(self, cores: int = CORES, storage: Storage = Storage(), copies: bool = True) -> None:
        """Without `copies` tasks share what they are given with the test, as hooks and counters in it need."""
        self.sparkContext = LocalContext(cores, copies)
        self.conf = _Conf()
        self.streams = _Queries()
        self.storage = storage
        """How the checkpoint is reached, where it is not on this disk."""

    def newSession(self) -> LocalSession:  # noqa: N802
        """One with settings of its own in the same application; it runs no SQL."""
        own = LocalSession(storage=self.storage)
        own.sparkContext = self.sparkContext
        return own

    @property
    def readStream(self) -> _Builder:  # noqa: N802
        return _Builder(self)


class _Queries:
    """The streaming queries of a session."""

    def __init__(self) -> None:
        self.started: list[LocalQuery] = []

    @property
    def active(self) -> list[LocalQuery]:
        return [query for query in self.started if query.isActive]


class _Builder:
    """The reader and the writer of a streaming query: it only records its settings."""

    def __init__(self, session: LocalSession) -> None:
        self.sparkSession = session
        self.options_: dict[str, str] = {}
        self.asked: dict[str, Any] = {}

    def format(self, name: str) -> _Builder:
        assert name == "kafka", name
        return self

    def option(self, name: str, value: str) -> _Builder:
        self.options_[name] = value
        return self

    def options(self, **options: str) -> _Builder:
        self.options_ |= options
        return self

    def load(self) -> _Builder:
        return self

    @property
    def writeStream(self) -> _Builder:  # noqa: N802
        return self

    def queryName(self, name: str) -> _Builder:  # noqa: N802
        return self

    def outputMode(self, mode: str) -> _Builder:  # noqa: N802
        assert mode == "append", "only Spark keeps state"
        return self

    def foreachBatch(self, run_batch: Callable[[Any, int], None]) -> _Builder:  # noqa: N802
        self.asked["run_batch"] = run_batch
        return self

    def trigger(self, **when: Any) -> _Builder:
        self.asked["drain"] = when.get("availableNow", False)
        self.asked["every"] = int(when.get("processingTime", "0 milliseconds").split()[0]) / 1000
        return self

    def start(self) -> LocalQuery:
        query = LocalQuery(self.sparkSession, self.options_, **self.asked)
        self.sparkSession.streams.started.append(query)
        return query


class _KafkaSource:
    """Spark's Kafka source, as far as it chooses offsets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.limit = int(options["maxOffsetsPerTrigger"]) if "maxOffsetsPerTrigger" in options else None
        assert "minOffsetsPerTrigger" not in options, "only Spark waits for a least number of offsets"
        self._options = options
        self._cluster = Cluster(KafkaSettings(options["kafka.bootstrap.servers"]))
        topics = tuple(filter(None, options.get("subscribe", "").split(",")))
        assign = json.loads(options["assign"]) if "assign" in options else None
        self._subscription = Subscription(topics, options.get("subscribePattern"), assign)

    def logs(self) -> dict[TopicPartition, LogBounds]:
        """The logs of all partitions as they are now."""
        try:
            partitions = self._cluster.partitions(self._subscription)
            logs = self._cluster.bounds(partitions)
        except MissingError as error:
            raise RuntimeError(_NOT_HOSTED) from error
        if len(logs) < len(partitions):
            raise RuntimeError(_NOT_HOSTED)
        return logs

    def first_offsets(self) -> Offsets:
        """Where the first batch begins."""
        logs = self.logs()
        if "startingTimestamp" in self._options:
            when = datetime.fromtimestamp(int(self._options["startingTimestamp"]) / 1000, UTC)
            found = self._cluster.offsets_at(logs, when)
            return {at: found[at] if found[at] >= 0 else log.end for at, log in logs.items()}
        start = self._options["startingOffsets"]
        asked = json.loads(start) if start.startswith("{") else {}
        default = _LATEST if start == "latest" else _EARLIEST
        offsets = {at: asked.get(at.topic, {}).get(str(at.partition), default) for at in logs}
        return {at: {_EARLIEST: logs[at].start, _LATEST: logs[at].end}.get(o, o) for at, o in offsets.items()}

    def next_offsets(self, begin: Offsets, latest: Mapping[TopicPartition, LogBounds]) -> Offsets:
        """Where a batch ends: at the ends of the logs, or each partition at its share of the limit."""
        starts = {at: begin.get(at, log.start) for at, log in latest.items()}
        ends = {at: log.end for at, log in latest.items()}
        sizes = {at: ends[at] - starts[at] for at in ends if ends[at] > starts[at]}
        if self.limit is None or not sizes:
            return ends
        share = self.limit / sum(sizes.values())
        taken = {at: math.ceil(n * share) if n * share < 1 else math.floor(n * share) for at, n in sizes.items()}
        return {at: min(end, starts[at] + taken[at]) if at in sizes else end for at, end in ends.items()}


class LocalQuery:
    """A streaming query in a thread of its own."""

    def __init__(
        self,
        session: LocalSession,
        options: Mapping[str, str],
        run_batch: Callable[[Any, int], None],
        drain: bool,
        every: float,
    ) -> None:
        self.runId: UUID = uuid4()
        self.lastProgress: None = None
        self.status = {"message": "Initializing sources"}
        self._session, self._options = session, options
        self._run_batch, self._drain, self._every = run_batch, drain, every
        self._path = options["checkpointLocation"]
        self._checkpoint = SparkCheckpoint(self._path, session.storage)
        self._stopping, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        if self._checkpoint.query_id() is None:
            self._checkpoint.put_metadata(str(uuid4()))
        self._source = _KafkaSource(options)
        self._jsq = _Handle(self._source)
        self._thread = threading.Thread(target=self._run, name="local-query", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._over.is_set()

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        if not self._over.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        if self._thread.is_alive():
            raise TimeoutError("the query did not stop within 30 seconds")

    def _run(self) -> None:
        try:
            self._batches()
        except BaseException as error:
            # What a batch raises while its query is being stopped is not an error of the query.
            self._error = None if self._stopping.is_set() else error
        # The error's traceback knows the query: it must not keep the source's client open.
        del self._source, self._jsq
        self._over.set()

    def _batches(self) -> None:
        if self._checkpoint.initial() is None:
            self._checkpoint.put_initial([self._source.first_offsets()])
        last = self._source.logs() if self._drain else None
        while not self._stopping.is_set():
            began = time.monotonic()
            batch_id = self._plan(last)
            if batch_id is not None:
                self.status = {"message": "Processing new data"}
                self._run_batch(self, batch_id)
                self._checkpoint.put_commit(batch_id)
            elif self._drain:
                return
            self.status = {"message": "Waiting for data to arrive"}
            pause = began + self._every - time.monotonic()
            self._stopping.wait(max(pause, 0.01 if batch_id is None else 0))

    @property
    def sparkSession(self) -> LocalSession:  # noqa: N802
        """A batch's frame has this and nothing else here."""
        return self._session

    def _plan(self, last: Mapping[TopicPartition, LogBounds] | None) -> int | None:
        """The next batch, its offsets written ahead: the open one, or one up to the ends of the logs; none without."""
        begun, done = self._checkpoint.last_begun(), self._checkpoint.last_committed()
        if begun is not None and begun != done:
            return begun
        begin = self._checkpoint.ends(done) if done is not None else self._checkpoint.initial() or {}
        ends = self._source.next_offsets(begin, last if last is not None else self._source.logs())
        if ends == begin:
            return None
        batch_id = 0 if done is None else done + 1
        self._write_ahead(batch_id, ends)
        return batch_id

    def _write_ahead(self, batch_id: int, ends: Offsets) -> None:
        if self._checkpoint.last_begun() == batch_id:
            raise RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.")
        settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.join.stateFormatVersion": "2"}
        head = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": settings}
        topics: dict[str, dict[str, int]] = {}
        for at, offset in sorted(ends.items()):
            topics.setdefault(at.topic, {})[str(at.partition)] = offset
        lines = ["v1", *(json.dumps(part, separators=(",", ":")) for part in (head, topics))]
        self._checkpoint.put(f"offsets/{batch_id}", "\n".join(lines))


class _Handle:
    """What `limit_batches` asks the JVM's query for: its sources, each with its limit."""

    def __init__(self, source: _KafkaSource) -> None:
        self._source = source

    def streamingQuery(self) -> _Handle:  # noqa: N802
        return self

    def uniqueSources(self) -> _Sources:  # noqa: N802
        return _Sources([None])

    def __getattr__(self, name: str) -> Any:
        assert name == "uniqueSources_$eq", name
        return lambda sources: setattr(self._source, "limit", sources[0])


class _Sources(list[Any]):
    """A Scala map of one source and its limit."""

    def size(self) -> int:
        return len(self)

    def keysIterator(self) -> _Keys:  # noqa: N802
        return _Keys(iter(range(len(self))))

    def updated(self, key: int, limit: Any) -> _Sources:
        return _Sources([limit if at == key else one for at, one in enumerate(self)])


class _Keys:
    def __init__(self, keys: Iterator[int]) -> None:
        self._left = list(keys)

    def hasNext(self) -> bool:  # noqa: N802
        return bool(self._left)

    def next(self) -> int:
        return self._left.pop(0)
