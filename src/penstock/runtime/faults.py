"""What comes out of Spark, in Penstock's terms: the cause on top, and whether it may pass."""

from __future__ import annotations

from penstock.errors import PenstockError, TerminalError, TransientError, from_wire

_PASSING_CAUSES = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "Failed to create new KafkaAdminClient",
    "UnknownTopicOrPartitionException: This server does not host",
    "NotLeaderOrFollowerException",
    "LeaderNotAvailableException",
)


def only_reporting_failed(error: BaseException) -> bool:
    """Whether Spark fell over its own progress report, after the batch was done and committed.

    Spark 4.1's Kafka source does so for a batch that is run again after a restart: the report wants offsets
    that were not asked for (SPARK-57438). Starting the query again goes on with the next batch.
    """
    return 'Cannot invoke "scala.collection.IterableOps.map(' in str(error)


def in_our_terms(error: BaseException) -> PenstockError:
    """Whatever came out of Spark as one of Penstock's errors: the cause on top, no Java stack."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = from_wire(text)
    if found is not None:
        return found
    cause = next((line.strip() for line in text.splitlines() if _tells(line)), type(error).__name__)
    cause = cause.partition("terminated with exception: ")[2] or cause
    if any(sign in text for sign in _PASSING_CAUSES):
        return TransientError("BROKER_UNREACHABLE", "asking Kafka through Spark", context={"cause": cause[:500]})
    return TerminalError(
        "BATCH_FAILED",
        "running the batch: Spark gave up",
        context={"cause": cause[:500]},
        hint="the whole story is in Spark's log; --debug shows the stack",
    )


def _tells(line: str) -> bool:
    """Whether a line of a Java or Python report names the cause rather than the place."""
    text = line.strip()
    return bool(text) and not text.startswith(("at ", "File ", "Traceback", "...", ":", "JVM stacktrace", "^"))
