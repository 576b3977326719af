"""Reports as Spark and Kafka give them, and the one line that a person needs."""

from __future__ import annotations

import pytest

from penstock.assembly.faults import only_reporting_failed, refused_step, translate_error
from penstock.errors import MissingError, TerminalError, TransientError

TASK = (
    "An error occurred while calling o95.collectToPython.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, "
    "most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): "
)
PYTHON = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "/x/worker.py", line 2044, in main\n'
    "    process()\n"
    "    ^^^^^^^^^\n"
    "OSError: [Errno 28] No space left on device: 'part-1.parquet'\n"
    "\n\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n"
)
STREAM = (
    "[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: {} SQLSTATE: XXKST\n=== Streaming Query ==="
)


class CapturedError(Exception):
    """As PySpark keeps an error: a message, and the Java stack beside it."""

    def __init__(self, message: str, stack: str) -> None:
        super().__init__(message)
        self._stackTrace = stack


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (TASK + PYTHON, "OSError: [Errno 28] No space left on device: 'part-1.parquet'"),
        (
            TASK
            + "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'c' SQLSTATE: 22018\n\tat x",
            "[CAST_INVALID_INPUT] The value 'c'",
        ),
        (
            TASK + "java.lang.OutOfMemoryError: Java heap space\n\tat java.util.Arrays",
            "OutOfMemoryError: Java heap space",
        ),
        (STREAM.format("Topic orders is gone."), "Topic orders is gone."),
        (
            "An error occurred while calling o72.stop.\n: java.io.IOException: Disk quota exceeded\n\tat x",
            "IOException: Disk quota exceeded",
        ),
        (
            STREAM.format("File file:/srv/checkpoints/orders/offsets does not exist"),
            "File file:/srv/checkpoints/orders/offsets does not exist",
        ),
        (STREAM.format(""), "Exception"),
        ("", "Exception"),
    ],
)
def test_terminal_fault_cause_is_the_telling_line(text: str, cause: str) -> None:
    told = translate_error(Exception(text))
    assert isinstance(told, TerminalError)
    full = any(sign in cause for sign in ("No space left", "quota"))
    assert told.code == ("DISK_FULL" if full else "BATCH_FAILED")
    assert told.context["cause"] == cause


@pytest.mark.parametrize(
    "error",
    [
        Exception(STREAM.format("Timed out waiting for a node assignment. Call: describeTopics")),
        CapturedError(
            STREAM.format("null"), "Caused by: org.apache.kafka.common.errors.TimeoutException: expired\n\tat x"
        ),
        Exception("org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient"),
    ],
)
def test_kafka_away_may_pass_and_names_the_brokers(error: Exception) -> None:
    told = translate_error(error, "a:9092")
    assert isinstance(told, TransientError)
    assert (told.code, told.context["brokers"]) == ("BROKER_UNREACHABLE", "a:9092")


@pytest.mark.parametrize("text", [STREAM, TASK + "{}"], ids=["query", "task"])
def test_python_that_starts_too_slowly_may_pass(text: str) -> None:
    late = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat x"
    told = translate_error(Exception(text.format(late)))
    assert isinstance(told, TransientError)
    assert told.code == "PYTHON_WORKER_LATE"
    assert told.context["cause"].endswith("Python worker failed to connect back.")


def test_topic_that_is_gone_is_not_called_brokers_that_are_away() -> None:
    gone = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic."
    told = translate_error(CapturedError(STREAM.format("null"), f"Caused by: {gone}\n\tat x"), "a:9092")
    assert isinstance(told, TransientError)
    assert (told.code, told.context["brokers"]) == ("TOPIC_GONE", "a:9092")
    assert "deleted" in str(told.hint)


def test_own_error_in_a_java_report_comes_back_whole() -> None:
    own = TerminalError("DATA_LOSS", "gone", context={"orders[0]": "1-2"}, hint="look")
    told = translate_error(Exception(TASK + PYTHON.replace("OSError: ", f"RuntimeError: {own.to_wire()} ")))
    assert (type(told), str(told)) == (TerminalError, str(own))


def test_refused_step_is_named_with_the_cause() -> None:
    text = "[UNRESOLVED_ROUTINE] Cannot resolve routine `f`. SQLSTATE: 42883; line 1 pos 7;\n'Project [*]\n+- x"
    told = refused_step("transforms[2]", "sql SELECT f(a)", Exception(text))
    assert isinstance(told, MissingError)
    assert told.summary.startswith("transforms[2]: ")
    assert told.context == {"cause": "[UNRESOLVED_ROUTINE] Cannot resolve routine `f`.", "step": "sql SELECT f(a)"}


def test_progress_report_fault_is_known() -> None:
    assert only_reporting_failed(Exception('x Cannot invoke "scala.collection.IterableOps.map(scala.Function1)" y'))
    assert not only_reporting_failed(Exception("anything else"))


@pytest.mark.parametrize(
    "text",
    [
        "Error from python worker:\n  /usr/bin/python3.11: Error while finding module specification for "
        "'penstock.spark.daemon' (ModuleNotFoundError: No module named 'penstock')",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
        'java.io.IOException: Cannot run program "python3.11": error=2, No such file or directory',
    ],
)
def test_fault_of_an_executors_python_says_how_to_give_it_one(text: str) -> None:
    told = translate_error(
        RuntimeError(f"Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: {text}")
    )
    assert (told.code, told.exit_code) == ("EXECUTOR_PYTHON_UNFIT", 3)


def test_checkpoint_that_another_run_writes_to_is_told_as_shared() -> None:
    overtaken = STREAM.format(
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 7. "
        "Please make sure only one streaming job runs on a specific checkpoint location at a time."
    )
    told = translate_error(Exception(overtaken))
    assert (type(told), told.code) == (TerminalError, "CHECKPOINT_SHARED")
    assert told.context["cause"].startswith("[CONCURRENT_STREAM_LOG_UPDATE]")
