from __future__ import annotations

import errno
from pathlib import Path

import pytest
import requests
import sqlalchemy as sa
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NotInstalledError,
    RESTError,
    UnauthorizedError,
)

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.sinks.iceberg.failures import is_transient, sink_failure, sink_failures

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
        (CommitStateUnknownException("who knows"), TransientError, "SINK_UNAVAILABLE"),
        (ConnectionResetError("gone"), TransientError, "SINK_UNAVAILABLE"),
        (requests.ConnectionError("refused"), TransientError, "SINK_UNAVAILABLE"),
        (requests.Timeout("too late"), TransientError, "SINK_UNAVAILABLE"),
        (requests.exceptions.InvalidURL("connection timed out: 503"), TerminalError, "SINK_FAILED"),
        (OSError("AWS Error SLOW_DOWN during PutObject operation"), TransientError, "SINK_UNAVAILABLE"),
        (FileNotFoundError("connection"), TerminalError, "SINK_FAILED"),
        (ValueError("column 500: connection timed out"), TerminalError, "SINK_FAILED"),
        (RuntimeError(JAVA.format(cause="Connection refused")), TerminalError, "SINK_FAILED"),
        (UnauthorizedError("no"), MissingError, "SINK_CATALOG_REFUSED"),
        (NotInstalledError("thrift"), MissingError, "SINK_CATALOG_UNSUPPORTED"),
        (OSError(errno.ENOSPC, "No space left on device"), TerminalError, "SINK_FAILED"),
    ],
)
def test_failure_of_a_kind_says_whether_to_try_again(error: Exception, kind: type[PenstockError], code: str) -> None:
    found = sink_failure("out", "committing batch 3", error)
    assert (type(found), found.code) == (kind, code)
    assert found.summary.startswith("sink out: committing batch 3: ")


@pytest.mark.parametrize(
    ("status", "passing"), [(400, False), (404, False), (409, False), (429, True), (500, True), (503, True)]
)
def test_failure_of_a_catalog_is_judged_by_its_status(status: int, passing: bool) -> None:
    answer = requests.Response()
    answer.status_code = status
    refused = requests.HTTPError("says what it likes: 503", response=answer)
    told = RESTError("what pyiceberg makes of it")
    told.__cause__ = refused
    assert is_transient(refused) is passing
    assert is_transient(told) is passing


def test_failure_of_a_locked_sqlite_catalog_may_pass_and_another_one_may_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    one, other = (sa.create_engine(url, connect_args={"timeout": 0}) for _ in range(2))
    with one.connect() as writer, other.connect() as waiting:
        writer.execute(sa.text("CREATE TABLE t (n INTEGER NOT NULL UNIQUE)"))
        writer.commit()
        writer.execute(sa.text("INSERT INTO t VALUES (1)"))
        with pytest.raises(sa.exc.OperationalError) as locked:
            waiting.execute(sa.text("INSERT INTO t VALUES (2)"))
        with pytest.raises(sa.exc.OperationalError) as absent:
            waiting.execute(sa.text("SELECT * FROM busy"))
    assert is_transient(locked.value)
    assert not is_transient(absent.value)


def test_failure_to_reach_a_postgres_catalog_may_pass() -> None:
    engine = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(sa.exc.OperationalError) as refused, engine.connect():
        raise AssertionError("something answers on port 1")
    assert is_transient(refused.value)


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
