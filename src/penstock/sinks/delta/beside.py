"""Rows staged beside the table for a commit through Spark: files that no log ever names, gone once they are in.

They lie in `_penstock/staged` inside the table's folder, so that they share its storage and its permissions. Delta
takes no name that begins with an underscore for data, and neither reads nor vacuums it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from penstock.contracts import SqlEngine
from penstock.errors import TerminalError
from penstock.model import BatchToken, Position, SlotAttempt
from penstock.sinks.delta.failures import engine_errors
from penstock.sinks.delta.fitted import uri_of
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.files import ParquetFiles, TableFolder
from penstock.sinks.files.writer import TARGET_FILE_BYTES
from penstock.storage import Storage

STAGED = "_penstock/staged"
_DELTA = "spark.databricks.delta"


class StagedFolder:
    """The staged files of one table, and the engine that commits from them."""

    def __init__(
        self,
        table: TokenTable,
        storage: Storage,
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._table = table
        self._target = target_file_bytes
        self._folder = TableFolder(f"{table.folder.uri}/{STAGED}", storage)

    def files(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> ParquetFiles:
        """In a task: the files of one attempt of a slot."""
        return ParquetFiles(self._folder, self._table.prefix(token), writer, schema, target_file_bytes=self._target)

    def run(
        self,
        sql: SqlEngine | None,
        statement: str,
        position: Position,
        paths: Sequence[str],
        schema: pa.Schema,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Run one statement over the staged rows; its commit, onto the standing table, carries the position."""
        if sql is None:
            raise TerminalError(
                "SINK_NEEDS_SPARK", f"sink {self._table.sink}: committing: the sink was given no SQL engine"
            )
        table = self._table
        app_id, version = table.transaction()
        settings = {
            **(settings or {}),
            f"{_DELTA}.write.txnAppId": app_id,
            f"{_DELTA}.write.txnVersion": str(version),
            f"{_DELTA}.commitInfo.userMetadata": json.dumps(table.metadata(position)),
            # Values stand in the statement as literals: nothing in them may be taken for anything else.
            "spark.sql.variable.substitute": "false",
            "spark.sql.parser.escapedStringLiterals": "false",
            # Spark's default, INT96, has no statistics and, in most other readers, no year before 1678.
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        }
        with engine_errors():
            files = [uri_of(self._folder, path) for path in paths]
            sql.run(statement, files=files, schema=schema, settings=settings)
        table.confirm(position)
        table.note_transactions()

    def read(self, paths: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The staged rows, with exactly these columns."""
        # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
        return self._folder.dataset(paths, schema=schema).to_table(use_threads=False)

    def clean(self, paths: Iterable[str]) -> None:
        """Remove files of a batch that is in the table. What stays behind does no harm."""
        for path in paths:
            with suppress(OSError):
                self._folder.remove(path)

    def discard(self, token: BatchToken) -> None:
        """Remove all that attempts of the batch staged, once the table holds it: no commit needs it any more."""
        strays = list(self._folder.data_files(self._table.prefix(token)))
        if strays and self._table.has_committed(token):
            self.clean(strays)
