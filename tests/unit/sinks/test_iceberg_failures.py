from __future__ import annotations

import errno

import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NotInstalledError,
    UnauthorizedError,
)

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.sinks.iceberg.failures import sink_failure, sink_failures

JAVA = """An error occurred while calling o12.sql.
: org.apache.spark.SparkException: Writing job aborted
\tat org.apache.spark.Connection.timeout(Connection.java:1)
Caused by: java.io.IOException: {cause}
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (CommitFailedException("main has changed"), TransientError, "SINK_COMMIT_CONFLICT"),
        (ValueError("Cannot fast-forward: main is not an ancestor of b"), TransientError, "SINK_COMMIT_CONFLICT"),
        (CommitStateUnknownException("who knows"), TransientError, "SINK_UNAVAILABLE"),
        (ConnectionResetError("gone"), TransientError, "SINK_UNAVAILABLE"),
        (RuntimeError("(sqlite3.OperationalError) database is locked"), TransientError, "SINK_UNAVAILABLE"),
        (RuntimeError(JAVA.format(cause="Connection refused")), TransientError, "SINK_UNAVAILABLE"),
        (RuntimeError(JAVA.format(cause="File name too long")), TerminalError, "SINK_FAILED"),
        (UnauthorizedError("no"), MissingError, "SINK_CATALOG_REFUSED"),
        (NotInstalledError("thrift"), MissingError, "SINK_CATALOG_UNSUPPORTED"),
        (OSError(errno.ENOSPC, "No space left on device"), TerminalError, "SINK_FAILED"),
    ],
)
def test_failure_of_a_kind_says_whether_to_try_again(error: Exception, kind: type[PenstockError], code: str) -> None:
    found = sink_failure("out", "committing batch 3", error)
    assert (type(found), found.code) == (kind, code)
    assert found.summary.startswith("sink out: committing batch 3: ")


def test_failure_inside_spark_is_told_without_the_stack() -> None:
    found = sink_failure("out", "committing", RuntimeError(JAVA.format(cause="File name too long")))
    assert found.summary == "sink out: committing: org.apache.spark.SparkException: Writing job aborted"
    assert found.context == {"cause": "java.io.IOException: File name too long"}


def test_failure_at_the_start_has_to_be_put_right_first() -> None:
    with pytest.raises(MissingError) as refused, sink_failures("out", "preparing", at_start=True):
        raise ConnectionRefusedError("nobody there")
    assert refused.value.code == "SINK_UNAVAILABLE"


def test_failure_that_is_told_already_goes_through_as_it_is() -> None:
    told = TerminalError("SINK_TABLE_GONE", "gone")
    with pytest.raises(TerminalError) as raised, sink_failures("out", "preparing"):
        raise told
    assert raised.value is told
