"""A batch written by Spark SQL to a branch of its own, which nobody reads until main is moved there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg.table import Table

from penstock.contracts import SqlEngine
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules, OffsetRange
from penstock.sinks.iceberg.bounds import Bounds, conditions
from penstock.sinks.iceberg.staged_rows import StagedRows
from penstock.sinks.iceberg.types import as_held, quoted
from penstock.sinks.merging import counts_sql, later_sql, one_row_a_key
from penstock.sinks.replacing import ranges_sql

STAGED = "staged"
_DELETED = f"coalesce({quoted(DELETES)}, false)"
_POSITION = tuple(f"{quoted(COORDINATES)}.{quoted(part)}" for part in ("offset", "timestamp", "topic", "partition"))


def relation_schema(columns: pa.Schema) -> pa.Schema:
    """What staged files are read as: the table's columns, the coordinates and the mark of a delete."""
    fields = [field for field in columns if field.name != COORDINATES]
    return pa.schema([*fields, COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])


def insert(target: str, written: Sequence[str], held: Sequence[str], *, rows: bool = True) -> str:
    """Append the staged rows, or none of them; a column that they lack is null."""
    values = ", ".join(quoted(name) if name in written else f"NULL AS {quoted(name)}" for name in held)
    names = ", ".join(map(quoted, held))
    return f"INSERT INTO {target} ({names}) SELECT {values} FROM {STAGED}{'' if rows else ' WHERE false'}"


def delete(target: str, ranges: Sequence[OffsetRange]) -> str:
    """Take the rows of some ranges out."""
    return f"DELETE FROM {target} WHERE {ranges_sql(ranges, lambda part: quoted(COORDINATES, part))}"


def merge(
    target: str,
    rules: MergeRules,
    written: Sequence[str],
    held: Sequence[str],
    bounds: Sequence[Mapping[str, Bounds]],
) -> str:
    """Merge the staged rows, one a key, reading of the target only what they can touch."""
    # To a sink that only inserts a delete means nothing; it must not stand for a row that is to be inserted.
    relation = f"(SELECT * FROM {STAGED} WHERE NOT {_DELETED}) AS live" if rules.insert_only else STAGED
    source = one_row_a_key(relation, rules, quote=quoted, position=_POSITION)
    keys = [f"t.{quoted(key)} = s.{quoted(key)}" for key in rules.keys]
    pruned = conditions(bounds, rules.keys, rules.prune_by, "t")
    deleted = f"coalesce(s.{quoted(DELETES)}, false)"
    values = ", ".join(f"s.{quoted(name)}" if name in written else "NULL" for name in held)
    clauses = [f"MERGE INTO {target} AS t USING ({source}) AS s ON {' AND '.join([*keys, *pruned])}"]
    if not rules.insert_only:
        newer = _newer(rules, positioned=COORDINATES in written)
        sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in written if name not in rules.keys)
        clauses.append(f"WHEN MATCHED AND {deleted}{newer} THEN DELETE")
        if sets:
            clauses.append(f"WHEN MATCHED AND NOT {deleted}{newer} THEN UPDATE SET {sets}")
    clauses.append(f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({', '.join(map(quoted, held))}) VALUES ({values})")
    return "\n".join(clauses)


def _newer(rules: MergeRules, *, positioned: bool) -> str:
    later = later_sql(lambda part: quoted("t", COORDINATES, part), lambda part: quoted("s", COORDINATES, part))
    newer = (quoted("s", rules.when_newer), quoted("t", rules.when_newer)) if rules.when_newer is not None else None
    counts = counts_sql(newer, later if rules.by_position and positioned else None)
    return f" AND ({counts})" if counts else ""


_PROPERTY = "spark.sql.iceberg.snapshot-property."


class BranchWriter:
    """Writes to branches of one table. `name` is the table's for Spark, quoted, with its catalog."""

    def __init__(self, engine: SqlEngine, name: str, settings: Mapping[str, str]) -> None:
        self._engine = engine
        self._name = name
        self._settings = dict(settings)

    def write(
        self,
        branch: str,
        seen: Table,
        files: Sequence[str],
        rows: Sequence[StagedRows],
        columns: Sequence[str],
        rules: MergeRules | None,
        summary: Mapping[str, str],
        replaces: Sequence[OffsetRange] = (),
    ) -> None:
        """Make the branch where `seen` has main, and write the rows to it, with the summary in their snapshot.

        The rows of the ranges that it `replaces` go out first.
        """
        current = seen.current_snapshot()
        base = f" AS OF VERSION {current.snapshot_id}" if current else ""
        self._engine.run(f"ALTER TABLE {self._name} CREATE BRANCH {quoted(branch)}{base}", settings=self._settings)
        target = f"{self._name}.{quoted(f'branch_{branch}')}"
        held = [field.name for field in seen.schema().fields]
        if rules is not None and rows:
            statement = merge(target, rules, columns, held, [item.bounds for item in rows])
        else:
            statement = insert(target, columns, held, rows=bool(rows))
        if replaces and current is not None:
            self._engine.run(delete(target, replaces), settings=self._settings)
        self._engine.run(
            statement,
            files=files,
            schema=relation_schema(as_held(columns, seen.schema())),
            settings={**self._settings, **{f"{_PROPERTY}{name}": value for name, value in summary.items()}},
        )
