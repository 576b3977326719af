"""Rows staged next to the table for a commit through Spark: files that the log never names, removed after it.

They lie in `_penstock/staged` inside the table's folder, so that they share its storage and its permissions. Delta
takes no name that begins with an underscore for data, and neither reads nor vacuums it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.contracts import SqlEngine
from penstock.model import DELETES, BatchToken, Position, Refusal, SlotAttempt
from penstock.model.stored_manifests import stored_as
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.schema import uri_of
from penstock.sinks.delta.table import SinkTable
from penstock.sinks.delta.touched import BoundsCollector, Touched
from penstock.sinks.files import ParquetFiles, TableFolder, folder_of
from penstock.sinks.files.stage import STAGED, RowsStage
from penstock.sinks.files.writer import TARGET_FILE_BYTES, WrittenParquet
from penstock.sinks.merging import KEY_NULL, PARTITION_VALUE, refusals
from penstock.sinks.spark_sql import require_engine
from penstock.storage import Storage


@stored_as("delta rows")
@dataclass(frozen=True, slots=True)
class StagedDeltaRows:
    """What one slot staged: the item of a manifest. Paths are inside the staging folder."""

    paths: tuple[str, ...]
    touched: tuple[Touched, ...]


class DeltaRowsStage(RowsStage):
    """Implements `contracts.Stage`.

    The bounds of the `bounding` columns go into the manifest; where the flag is true, the single values too while they
    are few.
    """

    def __init__(
        self,
        sink: str,
        files: ParquetFiles,
        writer: SlotAttempt,
        schema: pa.Schema,
        partition_by: Sequence[str],
        keys: Sequence[str] = (),
        bounding: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__(sink, writer, files, schema, keys, sink_failures)
        self._texts = [f.name for f in schema if f.name in partition_by and types.is_string(f.type)]
        self._bounding = [BoundsCollector(name, listed=listed) for name, listed in (bounding or {}).items()]

    def _refuse(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        refused: list[Refusal] = []
        for column in self._texts:
            rows, unfit = _refuse_unfit(self._sink, rows, column, is_key=column in self._keys)
            refused += unfit
        return rows, refused

    def _note_bounds(self, rows: pa.RecordBatch) -> None:
        deletes = rows.column(DELETES) if DELETES in self._schema.names else None
        for column in self._bounding:
            column.add(rows, deletes)

    def _items(self, written: Sequence[WrittenParquet]) -> tuple[object, ...]:
        if not written:
            return ()
        touched = (column.bounds() for column in self._bounding)
        return (StagedDeltaRows(tuple(file.path for file in written), tuple(each for each in touched if each)),)


def _refuse_unfit(
    sink: str, rows: pa.RecordBatch, column: str, *, is_key: bool
) -> tuple[pa.RecordBatch, list[Refusal]]:
    """Refuse the texts that Spark cannot make a partition of, or that no merge could find there again."""
    texts = pc.unique(rows.column(column)).drop_null().to_pylist()
    unfit = {PARTITION_VALUE: [text for text in texts if _is_cut(column, text)]}
    if is_key:
        unfit[KEY_NULL] = [""]  # a table keeps the empty text of a partition column as null
    refused: list[Refusal] = []
    for code, values in unfit.items():
        found = pc.is_in(rows.column(column), pa.array(values, rows.schema.field(column).type))
        if pc.any(found).as_py():
            message = f"sink {sink}: the table cannot be partitioned by this value of {column}: empty, or too long"
            refused += refusals(sink, rows.filter(found), code, message)
            rows = rows.filter(pc.invert(found))
    return rows, refused


def _is_cut(column: str, text: str) -> bool:
    """Whether the value is too long for the name of a folder. Spark, which writes the files, does not cut it."""
    return text != "" and unquote(folder_of((column,), (text,))) != f"{column}={text}"


_DELTA = "spark.databricks.delta"


class StagedFolder:
    """The staged files of one table, and the engine that commits from them."""

    def __init__(
        self,
        table: SinkTable,
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
        """Run one statement over the staged rows; its commit, onto `table_at`, carries the position."""
        table = self._table
        engine = require_engine(sql, table.sink, "committing")
        app_id, version = table.transaction()
        settings = {
            **(settings or {}),
            f"{_DELTA}.write.txnAppId": app_id,
            f"{_DELTA}.write.txnVersion": str(version),
            f"{_DELTA}.commitInfo.userMetadata": json.dumps(table.metadata(position)),
            # The statement contains values as literals: nothing in them may be substituted.
            "spark.sql.variable.substitute": "false",
            "spark.sql.parser.escapedStringLiterals": "false",
            # Spark's default, INT96, has no statistics and, in most other readers, no year before 1678.
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        }
        engine.run(statement, files=[uri_of(self._folder, path) for path in paths], schema=schema, settings=settings)
        table.confirm(position)
        table.write_transaction_ids()

    def read(self, paths: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The staged rows, with exactly these columns."""
        # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
        return self._folder.dataset(paths, schema=schema).to_table(use_threads=False)

    def has(self, path: str) -> bool:
        """Whether a staged file exists."""
        return self._folder.has(path)

    def clean(self, paths: Iterable[str]) -> None:
        """Remove files of a batch that is in the table. Files that stay do no harm."""
        for path in paths:
            with suppress(OSError):
                self._folder.remove(path)

    def discard(self, token: BatchToken) -> None:
        """Remove all that attempts of the batch staged, once the table holds it: no commit needs it any more."""
        leftovers = list(self._folder.data_files(self._table.prefix(token)))
        if leftovers and self._table.has_committed(token):
            self.clean(leftovers)
