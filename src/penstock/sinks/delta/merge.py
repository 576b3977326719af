"""Delta merge, exactly once: rows staged next to the table, one row a key merged into it with the position.

By delta-rs in the driver where the batch and the files that it touches are small enough, else by Spark. The
MERGE and the position are one commit of the table, with a transaction id that Delta itself checks: a second one with
the same id and version does nothing, and of two at once one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from deltalake import CommitProperties, DeltaTable, WriterProperties

from penstock.errors import MissingError
from penstock.model import (
    COORDINATES,
    DELETES,
    BatchToken,
    Manifest,
    MergeRules,
    Position,
    SlotAttempt,
)
from penstock.sinks.delta.beside_stage import DeltaRowsStage, StagedDeltaRows
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.schema import columns_of, table_name, unsupported
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.delta.touched import Literal, Touched, joint_bounds, predicate, spark_literal
from penstock.sinks.evolution import Fit, written_columns
from penstock.sinks.files.stage import items_of
from penstock.sinks.merging import check_rules, refuse_without_position, rows_that_count
from penstock.sinks.spark_sql import MergeTerms, merge_statement, quoted, staged_schema

# A MERGE by delta-rs, in the driver's own process: no row enters the JVM, and a small batch takes a tenth of a second.
#
# For a batch and a part of the table that fit into memory, and for keys that Arrow and Spark compare alike; anything
# else is merged by Spark. Both leave the same rows, and the same commit: the MERGE and the token are one.

STAGED_BYTES = 256 * 1024 * 1024
"""The most that a batch may have staged to be merged here. It is read whole, and is several times larger then."""

TOUCHED_BYTES = 1024 * 1024 * 1024
"""The most that the files of the table may have which the batch can touch. They are rewritten as a stream."""


def fits_driver(table: DeltaTable, columns: pa.Schema, rules: MergeRules, touched: Mapping[str, Touched]) -> bool:
    """Whether a batch that is small enough itself can be merged here."""
    compared = [*rules.keys, *([rules.when_newer] if rules.when_newer else [])]
    return (
        all(_compares_alike(columns.field(name).type) for name in compared)
        and not any('"' in name for name in columns.names)
        and _touched_bytes(table, touched) <= TOUCHED_BYTES
    )


def merge_in_driver(
    table: DeltaTable,
    staged: pa.Table,
    columns: pa.Schema,
    rules: MergeRules,
    touched: Mapping[str, Touched],
    properties: CommitProperties,
) -> bool:
    """Merge staged rows into the `columns` of the table, in one commit with `properties`.

    False where the merge changes nothing: delta-rs then makes no commit.
    """
    before = table.version()
    terms = MergeTerms(rules, _quoted)
    merger = table.merge(
        rows_that_count(staged, rules),
        predicate=terms.on(_bounds(rules, columns, touched, _quoted, _literal)),
        source_alias="s",
        target_alias="t",
        commit_properties=properties,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
    )
    if not rules.insert_only:
        merger = merger.when_matched_delete(predicate=f"{terms.deletes}{terms.newer}")
        changed = {_quoted(name): terms.source(name) for name in columns.names if name not in rules.keys}
        if changed:
            merger = merger.when_matched_update(updates=changed, predicate=f"NOT {terms.deletes}{terms.newer}")
    every = {_quoted(name): terms.source(name) for name in columns.names}
    merger.when_not_matched_insert(updates=every, predicate=f"NOT {terms.deletes}").execute()
    return table.version() > before


def _literal(kind: pa.DataType, value: Any) -> str | None:
    """A value as a DataFusion literal of exactly this type, or none where there is none to trust."""
    if types.is_signed_integer(kind):
        return f"arrow_cast({value}, 'Int{kind.bit_width}')"
    if types.is_date32(kind) and isinstance(value, date):
        return f"arrow_cast('{value.isoformat()}', 'Date32')"
    if types.is_timestamp(kind) and isinstance(value, datetime):
        zone = 'Some("UTC")' if kind.tz else "None"
        moment = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"arrow_cast('{moment}{'Z' if kind.tz else ''}', 'Timestamp(Microsecond, {zone})')"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return None


def _touched_bytes(table: DeltaTable, touched: Mapping[str, Touched]) -> int:
    """The size of the files that the batch can touch, by their partition values and statistics."""
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return 0
    possible: Any = pa.repeat(pa.scalar(True), files.num_rows)
    for name, seen in touched.items():
        for low, high in ((f"min.{name}", f"max.{name}"), (f"partition.{name}", f"partition.{name}")):
            if low in files.column_names and high in files.column_names:
                outside = pc.or_(pc.greater(files.column(low), seen.high), pc.less(files.column(high), seen.low))
                possible = pc.and_(possible, pc.invert(pc.fill_null(outside, False)))
    return int(pc.sum(files.filter(possible).column("size_bytes")).as_py() or 0)


def _compares_alike(kind: pa.DataType) -> bool:
    """Whether Arrow and Spark find the same values equal, and order them alike. For floats they do not: NaN, -0.0."""
    return bool(
        types.is_signed_integer(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def _quoted(name: str, *members: str) -> str:
    return "".join([f'"{name}"', *(f"['{member}']" for member in members)])


def _bounds(
    rules: MergeRules, columns: pa.Schema, touched: Mapping[str, Touched], quote: Callable[[str], str], literal: Literal
) -> dict[str, str]:
    """What the columns of the table that are bounded by the batch fulfil, in one dialect."""
    names = [name for name in (*rules.keys, *rules.prune_by) if name in touched]
    found = {n: predicate(f"t.{quote(n)}", columns.field(n).type, touched[n], literal) for n in names}
    return {name: bound for name, bound in found.items() if bound is not None}


class DeltaMergeSink(DeltaTableSink):
    """Implements `contracts.Sink`: rows are merged by their keys."""

    needs_sql = True

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        rules: MergeRules,
        *,
        driver_bytes: int = STAGED_BYTES,
        **settings: Any,
    ) -> None:
        super().__init__(pipeline, name, path, **settings)
        self.rules = rules
        self._driver_bytes = driver_bytes
        self._has_coordinates = True

    def by_position(self) -> DeltaMergeSink:
        """The same sink, in which an existing row stays where it came from a later position."""
        made = copy(self)
        made.rules = replace(self.rules, by_position=True)
        return made

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and give it the columns and types that `evolve` allows."""
        check_rules(self.name, schema, self.rules)
        self._has_coordinates = COORDINATES in schema.names
        self._table.prepare(self._written(schema), sql=self._sql, through_spark=True)
        check_rules(self.name, self._table.written or schema, self.rules)
        refuse_without_position(self.name, self._table.written or schema, self.rules, kept=self.keep_coordinates)
        self._refuse_append_only(self._table.settings)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> DeltaRowsStage:
        """In a task: begin the files of one attempt of a slot. Deletes may come with their keys alone."""
        extra = [f for f in schema if f.name in (COORDINATES, DELETES)]
        rows = self._table.staged(written_columns(schema, keep_coordinates=False))
        kept = pa.schema([*rows, *extra])
        keys = self.rules.keys
        bounding = {**{key: key in self.partition_by for key in keys}, **dict.fromkeys(self.rules.prune_by, True)}
        files = self._beside.files(token, writer, kept)
        return DeltaRowsStage(self.name, files, writer, kept, self.partition_by, keys, bounding)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Merge the staged rows into the table, with the position, in one commit. An empty batch is a commit too."""
        staged = items_of(manifests, StagedDeltaRows)
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
        """A MERGE whose files a compaction rewrites meanwhile has to be redone."""
        return True

    def _fit(self, schema: pa.Schema) -> Fit | None:
        check_rules(self.name, schema, self.rules)
        fit = super()._fit(schema)
        if fit is not None:
            check_rules(self.name, fit.taken, self.rules)
        self._refuse_append_only(self._table.settings)
        return fit

    def _merge(self, position: Position, staged: Sequence[StagedDeltaRows], size: int, onto: Position | None) -> None:
        table = self._table.table_at(onto)
        by_spark = bool(unsupported(table)) or not self._has_coordinates or size > self._driver_bytes
        if not staged and self._table.allows_bare_entries():
            self._table.append(position, (), onto)
            return
        columns = columns_of(table, self._table.written)
        touched = joint_bounds([item.touched for item in staged])
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
            columns.names,
            columns.names,
            rules,
            _bounds(rules, columns, touched, quoted, spark_literal),
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
