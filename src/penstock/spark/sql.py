"""Spark SQL for the sinks that commit through it: it runs statements over staged files, and keeps nothing.

Each engine has a session of its own, so that the settings of one sink's commit affect neither other sinks nor the
streaming query: `txnVersion` on a shared session would be that of the wrong batch. Its jobs have a tag of their own, so
that they can be cancelled without any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.spark.session import POOL, put_settings

STAGED = "staged"


class SparkSql:
    """Implements `contracts.SqlEngine`. Those of the pipeline's `settings` that belong to a session apply here too."""

    def __init__(self, session: Any, settings: Mapping[str, str] | None = None) -> None:
        self._session = session.newSession()
        put_settings(self._session, settings or {})
        self._context = session.sparkContext
        self._tag = f"penstock-{uuid4().hex}"
        self._pool = self._context.getLocalProperty(POOL)

    def run(
        self,
        *statements: str,
        files: Sequence[str] = (),
        schema: pa.Schema | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Run the statements in order; the rows of the last one."""
        rows: list[dict[str, Any]] = []
        with self._set(settings or {}), self._own_jobs():
            if schema is not None:
                self._staged(files, schema).createOrReplaceTempView(STAGED)
            for statement in statements:
                rows = [row.asDict(recursive=True) for row in self._session.sql(statement).collect()]
        return rows

    def interrupt(self) -> None:
        """Cancel what this engine runs, from another thread."""
        self._context.cancelJobsWithTag(self._tag)

    def _staged(self, files: Sequence[str], schema: pa.Schema) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        if not files:
            return self._session.createDataFrame([], columns)
        return self._session.read.schema(columns).parquet(*files)

    @contextmanager
    def _own_jobs(self) -> Iterator[None]:
        """Tag the jobs of this thread, and run them in the pool of the pipeline, whichever thread this is."""
        if self._pool is not None:
            self._context.setLocalProperty(POOL, self._pool)
        self._context.addJobTag(self._tag)
        try:
            yield
        finally:
            self._context.removeJobTag(self._tag)

    @contextmanager
    def _set(self, settings: Mapping[str, str]) -> Iterator[None]:
        before = {name: self._session.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                self._session.conf.set(name, value)
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    self._session.conf.unset(name)
                else:
                    self._session.conf.set(name, value)
