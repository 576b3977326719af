"""Delta merge, exactly once: rows staged next to the table, one row a key merged into it with the position.

By delta-rs in the driver where the batch and what it touches are small enough, else by Spark, with the MERGE statement
here. The MERGE and the position are one commit of the table, with a transaction id that Delta itself checks: a second
one with the same id and version does nothing, and of two at once one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from deltalake import CommitProperties, DeltaTable, WriterProperties

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
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.maintenance import DeltaMaintenance
from penstock.sinks.delta.names import quoted, table_name
from penstock.sinks.delta.replace import records_held
from penstock.sinks.delta.schema import columns_of, unsupported
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.delta.touched import Literal, Touched, spark_literal, touched_by_all, within
from penstock.sinks.evolution import Evolve, Fit
from penstock.sinks.files.writer import TARGET_FILE_BYTES
from penstock.sinks.merging import (
    check_rules,
    counts_sql,
    later_sql,
    one_row_a_key,
    refuse_without_position,
    rows_that_count,
)
from penstock.storage import Storage

# A MERGE by delta-rs, in the driver's own process: no row enters the JVM, and a small batch takes a tenth of a second.
#
# For a batch and a part of the table that fit into memory, and for keys that Arrow and Spark compare alike; anything
# else is merged by Spark. Both leave the same rows, and the same commit: the MERGE and the token are one. The terms of
# a MERGE are here for both engines, which differ in how they quote a name and write a literal.


@dataclass(frozen=True)
class MergeTerms:
    """Conditions over the table `t` and the rows `s` that are merged into it."""

    rules: MergeRules
    quote: Callable[..., str]
    """A column, or with two names a member of one."""
    literal: Literal

    def target(self, name: str) -> str:
        """A column of the table."""
        return f"t.{self.quote(name)}"

    def source(self, name: str) -> str:
        """A column of the rows."""
        return f"s.{self.quote(name)}"

    @property
    def deletes(self) -> str:
        """Whether a row deletes."""
        return f"coalesce({self.source(DELETES)}, FALSE)"

    @property
    def newer(self) -> str:
        """That a row is not late, as a further condition; empty where any row counts."""
        newer, later = self.rules.when_newer, None
        if self.rules.by_position:
            later = later_sql(*(partial(self._coordinate, of) for of in "ts"))
        both = (self.source(newer), self.target(newer)) if newer is not None else None
        counts = counts_sql(both, later)
        return f" AND ({counts})" if counts else ""

    def on(self, columns: pa.Schema, touched: Mapping[str, Touched]) -> str:
        """When a row meets one of the table: their keys are equal, in the part of the table that can be touched."""
        equal = (f"{self.target(key)} = {self.source(key)}" for key in self.rules.keys)
        return " AND ".join([*equal, *self._bounds(columns, touched)])

    def _coordinate(self, of: str, part: str) -> str:
        return f"{of}.{self.quote(COORDINATES, part)}"

    def _bounds(self, columns: pa.Schema, touched: Mapping[str, Touched]) -> Iterator[str]:
        """Predicates on the table alone, by which files and partitions are left out."""
        for name in (*self.rules.keys, *self.rules.prune_by):
            if name not in touched:
                continue
            bound = within(self.target(name), columns.field(name).type, touched[name], self.literal)
            if bound is not None:
                # A row from before the column was added, or with an empty text to partition by, has a null there.
                yield f"({bound})" if name in self.rules.keys else f"({bound} OR {self.target(name)} IS NULL)"


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
    terms = MergeTerms(rules, _quoted, _literal)
    merger = table.merge(
        rows_that_count(staged, rules),
        predicate=terms.on(columns, touched),
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
