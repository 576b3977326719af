"""Delta merge, exactly once: rows staged next to the table, one row a key merged into it with the position.

By delta-rs in the driver where the batch and what it touches are small enough, else by Spark, with the MERGE statement
here. The MERGE and the position are one commit of the table, with a transaction id that Delta itself checks: a second
one with the same id and version does nothing, and of two at once one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.contracts import SqlEngine
from penstock.errors import MissingError
from penstock.model import (
    COMPUTED,
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    BatchToken,
    Guarantee,
    Manifest,
    MergeRules,
    OffsetRange,
    Position,
    SlotAttempt,
)
from penstock.sinks.delta.beside import StagedFolder
from penstock.sinks.delta.beside_stage import FolderStage, StagedBeside, staged_items
from penstock.sinks.delta.driver_merge import STAGED_BYTES, MergeTerms, fits_driver, merge_in_driver
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.maintenance import DeltaMaintenance
from penstock.sinks.delta.names import quoted, table_name
from penstock.sinks.delta.replace import records_held
from penstock.sinks.delta.schema import columns_of, unsupported
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.delta.touched import Touched, spark_literal, touched_by_all
from penstock.sinks.evolution import Evolve, Fit
from penstock.sinks.files.sizing import TARGET_FILE_BYTES
from penstock.sinks.merging import check_rules, one_row_a_key, refuse_without_position
from penstock.storage import Storage

_POSITION = tuple(quoted(COORDINATES, name) for name in ("offset", "timestamp", "topic", "partition"))


def staged_schema(columns: pa.Schema, *, positioned: bool) -> pa.Schema:
    """How the staged files are read: the table's columns, the rows' coordinates, and what deletes."""
    fields = [field for field in columns if field.name != COORDINATES]
    beside = [COORDINATES_FIELD] if positioned else []
    return pa.schema([*fields, *beside, pa.field(DELETES, pa.bool_())])


def merge_statement(
    table: str, columns: pa.Schema, rules: MergeRules, touched: Mapping[str, Touched], *, positioned: bool
) -> str:
    """Merge the relation `staged` into `table`, whose `columns` the rows fill.

    Rows that are not `positioned`, having lost their coordinates on the way, must be one a key already, or told
    apart by `when_newer`.
    """
    terms = MergeTerms(rules, quoted, spark_literal)
    lines = [
        f"MERGE INTO {table} AS t USING ({_rows(rules, positioned)}) AS s",
        f"ON {terms.on(columns, touched)}",
    ]
    if not rules.insert_only:
        lines += _matched(columns, terms)
    names, values = (", ".join(form(name) for name in columns.names) for form in (quoted, terms.source))
    lines.append(f"WHEN NOT MATCHED AND NOT {terms.deletes} THEN INSERT ({names}) VALUES ({values})")
    return "\n".join(lines)


def _rows(rules: MergeRules, positioned: bool) -> str:
    """The query for the rows that count."""
    deletes = f"coalesce({quoted(DELETES)}, FALSE)"
    # To a sink that only inserts a delete means nothing; it must not stand for a row that is to be inserted.
    relation = f"(SELECT * FROM staged WHERE NOT {deletes}) AS live" if rules.insert_only else "staged"
    return one_row_a_key(relation, rules, quote=quoted, position=_POSITION if positioned else ("0",))


def _matched(columns: pa.Schema, terms: MergeTerms) -> Iterator[str]:
    yield f"WHEN MATCHED AND {terms.deletes}{terms.newer} THEN DELETE"
    changed = [name for name in columns.names if name not in terms.rules.keys]
    if changed:
        assignments = ", ".join(f"{terms.target(name)} = {terms.source(name)}" for name in changed)
        yield f"WHEN MATCHED AND NOT {terms.deletes}{terms.newer} THEN UPDATE SET {assignments}"


class DeltaMergeSink:
    """Implements `contracts.Sink` and `contracts.SqlSink` over one Delta table."""

    guarantee = Guarantee.EXACTLY_ONCE
    needs_sql = True

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        rules: MergeRules,
        *,
        partition_by: Sequence[str] | None = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        storage: Storage = Storage(),
        driver_bytes: int = STAGED_BYTES,
        target_file_bytes: int = TARGET_FILE_BYTES,
        cluster_by: Sequence[str] = (),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.rules = rules
        self.partition_by = tuple(partition_by or ())
        self.keep_coordinates = keep_coordinates
        self.target_file_bytes = target_file_bytes
        self.cluster_by = tuple(cluster_by)
        self._storage = storage
        self._table = TokenTable(pipeline, name, path, self.partition_by, evolve, storage)
        self._beside = StagedFolder(self._table, storage, target_file_bytes)
        self._driver_bytes = driver_bytes
        self._has_coordinates = True
        self._sql: SqlEngine | None = None

    def by_position(self) -> DeltaMergeSink:
        """The same sink, in which a row that is there stays where it came from a later position."""
        made = copy(self)
        made.rules = replace(self.rules, by_position=True)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sql": None}

    @property
    def target(self) -> str:
        """The table's path."""
        return self.path

    def use(self, sql: SqlEngine) -> None:
        """Take the engine to merge through."""
        self._sql = sql

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and give it the columns and types that `evolve` allows."""
        check_rules(self.name, schema, self.rules)
        self._has_coordinates = COORDINATES in schema.names
        self._table.prepare(self._written(schema), sql=self._sql, through_spark=True)
        check_rules(self.name, self._table.written or schema, self.rules)
        refuse_without_position(self.name, self._table.written or schema, self.rules, kept=self.keep_coordinates)
        self._refuse_append_only(self._table.settings)

    def check(self, schema: pa.Schema) -> None:
        """Look whether the table, if it is there, can take the rows, with what `evolve` may change in it."""
        self._fit(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Only look: what `prepare` would change in the table for these rows, and what it would leave out of them."""
        fit = self._fit(schema)
        return ["create table"] if fit is None else fit.told()

    def position(self) -> Position | None:
        """Where the table stands, whichever query committed last, past what a RESTORE took back."""
        return self._table.position()

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The records in these ranges that the table holds a row of; none where the rows do not say."""
        return records_held(self._table, ranges, self._sql) if self.keep_coordinates else None

    def other_writers(self) -> list[str]:
        """The other pipelines and sinks that have a position in the table."""
        return self._table.other_writers()

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> FolderStage:
        """In a task: begin the files of one attempt of a slot. Deletes may come with their keys alone."""
        beside = [f for f in schema if f.name in (COORDINATES, DELETES)]
        rows = self._table.staged(pa.schema([f for f in self._written(schema) if f.name != COORDINATES]))
        kept = pa.schema([*rows, *beside])
        keys = self.rules.keys
        bounding = {**{key: key in self.partition_by for key in keys}, **dict.fromkeys(self.rules.prune_by, True)}
        files = self._beside.files(token, writer, kept)
        return FolderStage(self.name, files, writer, kept, self.partition_by, keys, bounding)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Merge the staged rows into the table, with the position, in one commit. An empty batch is a commit too."""
        staged = staged_items(manifests)
        size = sum(manifest.size_bytes for manifest in manifests)
        with self._table.landing(position):
            self._merge(position, staged, size, onto)
        self._beside.clean(path for item in staged for path in item.paths)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove the files of other attempts, once the batch is committed.

        Before that another driver may still be about to commit them; afterwards the position refuses it.
        """
        with sink_failures(self.name, f"removing leftovers of batch {token.batch_id}"):
            self._beside.discard(token)

    @property
    def commits_under_lock(self) -> bool:
        """A MERGE whose files a compaction rewrites meanwhile has to be made anew."""
        return True

    def maintenance(self) -> DeltaMaintenance:
        """The care of the table."""
        return DeltaMaintenance(
            self.pipeline, self.name, self.path, self.target_file_bytes, self.cluster_by, self._storage
        )

    def _written(self, schema: pa.Schema) -> pa.Schema:
        left_out = () if self.keep_coordinates else (COORDINATES,)
        return pa.schema([f for f in schema if f.name not in left_out and not f.name.startswith(COMPUTED)])

    def _fit(self, schema: pa.Schema) -> Fit | None:
        check_rules(self.name, schema, self.rules)
        fit = self._table.check(self._written(schema))
        if fit is not None:
            check_rules(self.name, fit.taken, self.rules)
        self._refuse_append_only(self._table.settings)
        return fit

    def _merge(self, position: Position, staged: Sequence[StagedBeside], size: int, onto: Position | None) -> None:
        table = self._table.standing_table(onto)
        by_spark = bool(unsupported(table)) or not self._has_coordinates or size > self._driver_bytes
        if not staged and self._table.takes_bare_entries():
            self._table.append(position, (), onto)
            return
        columns = columns_of(table, self._table.written)
        touched = touched_by_all([item.touched for item in staged])
        paths = [path for item in staged for path in item.paths]
        schema = staged_schema(columns, positioned=self._has_coordinates)
        rules = self.rules
        if COORDINATES not in columns.names or not self._has_coordinates:
            rules = replace(rules, by_position=False)
        if not by_spark and fits_driver(table, columns, rules, touched):
            properties = self._table.properties(position)
            if merge_in_driver(table, self._beside.read(paths, schema), columns, rules, touched, properties):
                self._table.confirm(position)
            else:
                self._table.append(position, (), onto)
            return
        statement = merge_statement(
            table_name(self._table.folder),
            columns,
            rules,
            touched,
            positioned=self._has_coordinates,
        )
        # A MERGE reads its source twice, and Delta keeps a copy in case it came out otherwise the second time. Ours
        # cannot, being files that stay and an order that is total: without the copy a small merge takes 0.5 s less.
        copied = {} if not self._has_coordinates else {"spark.databricks.delta.merge.materializeSource": "none"}
        self._beside.run(self._sql, statement, position, paths, schema, copied)

    def _refuse_append_only(self, settings: Mapping[str, str]) -> None:
        if settings.get("delta.appendOnly") == "true" and not self.rules.insert_only:
            raise MissingError(
                "SINK_TABLE_UNSUPPORTED",
                f"sink {self.name}: the table takes no updates and no deletes",
                context={"table features": "delta.appendOnly"},
                hint="set insert_only on this sink, unset delta.appendOnly, or write to another table",
            )
