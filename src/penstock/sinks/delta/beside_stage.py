"""Rows staged beside the table for a commit through Spark: files that no log ever names, gone once they are in.

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
from penstock.model import DELETES, BatchToken, Manifest, Position, Refusal, SlotAttempt
from penstock.sinks.delta.failures import engine_errors, sink_failures
from penstock.sinks.delta.fitted import uri_of
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.delta.touched import Touched, TouchedColumn
from penstock.sinks.evolution import cast_rows
from penstock.sinks.files import ParquetFiles, TableFolder, folder_of
from penstock.sinks.files.writer import TARGET_FILE_BYTES
from penstock.sinks.merging import KEY_NULL, refusals, refuse_null_keys
from penstock.sinks.spark_sql import require_engine
from penstock.storage import Storage

PARTITION_VALUE = "SINK_PARTITION_VALUE"


@dataclass(frozen=True, slots=True)
class StagedBeside:
    """What one slot staged: the item of a manifest. Paths are inside the staging folder."""

    paths: tuple[str, ...]
    touched: tuple[Touched, ...]


class FolderStage:
    """Implements `contracts.Stage`. `keys` may not be null.

    What the `bounding` columns hold goes into the manifest; of those that are true the single values, while few.
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
        self._sink = sink
        self._files = files
        self._writer = writer
        self._schema = schema
        self._texts = [f.name for f in schema if f.name in partition_by and types.is_string(f.type)]
        self._keys = tuple(keys)
        self._bounding = [TouchedColumn(name, listed=listed) for name, listed in (bounding or {}).items()]

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take some rows. Those that have no key or fit no partition are given back."""
        with sink_failures(self._sink, "staging rows"):
            rows = cast_rows(rows, self._schema)
            rows, refused = refuse_null_keys(self._sink, rows, self._keys)
            for column in self._texts:
                rows, unfit = _refuse_unfit(self._sink, rows, column, is_key=column in self._keys)
                refused += unfit
            deletes = rows.column(DELETES) if DELETES in self._schema.names else None
            for seen in self._bounding:
                seen.see(rows, deletes)
            if rows.num_rows:
                self._files.add("", rows)
        return refused

    def finish(self) -> Manifest:
        """Close the files, make them durable, and say what there is."""
        with sink_failures(self._sink, "finishing staged files"):
            written = self._files.finish()
        if not written:
            return Manifest(self._sink, self._writer, 0, 0)
        touched = [column.touched() for column in self._bounding]
        item = StagedBeside(tuple(file.path for file in written), tuple(seen for seen in touched if seen is not None))
        rows = sum(file.footer.num_rows for file in written)
        return Manifest(self._sink, self._writer, rows, sum(file.size_bytes for file in written), (item,))

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible."""
        self._files.abort()


def staged_items(manifests: Sequence[Manifest]) -> list[StagedBeside]:
    """What all slots staged."""
    return [item for manifest in manifests for item in manifest.items if isinstance(item, StagedBeside)]


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
        table = self._table
        engine = require_engine(sql, table.sink, "committing")
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
            engine.run(statement, files=files, schema=schema, settings=settings)
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
