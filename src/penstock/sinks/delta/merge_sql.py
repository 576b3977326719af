"""The MERGE statement: one row a key out of the staged rows, into the part of the table that they can touch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules
from penstock.sinks.delta.beside import quoted
from penstock.sinks.delta.touched import Touched, spark_literal, within
from penstock.sinks.merging import CUT, one_row_a_key

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
    conditions = [f"{_target(key)} = {_source(key)}" for key in rules.keys]
    conditions += _bounds(columns, rules, touched)
    lines = [f"MERGE INTO {table} AS t USING ({_rows(rules, positioned)}) AS s", f"ON {' AND '.join(conditions)}"]
    if not rules.insert_only:
        lines += _matched(columns, rules)
    names, values = (", ".join(form(name) for name in columns.names) for form in (quoted, _source))
    lines.append(f"WHEN NOT MATCHED AND NOT {_deletes(_source(DELETES))} THEN INSERT ({names}) VALUES ({values})")
    return "\n".join(lines)


def _rows(rules: MergeRules, positioned: bool) -> str:
    """The query for the rows that count."""
    deletes = _deletes(quoted(DELETES))
    # To a sink that only inserts a delete means nothing; it must not stand for a row that is to be inserted.
    relation = f"(SELECT * FROM staged WHERE NOT {deletes}) AS live" if rules.insert_only else "staged"
    return one_row_a_key(relation, rules, quote=quoted, position=_POSITION if positioned else ("0",), deletes=deletes)


def _matched(columns: pa.Schema, rules: MergeRules) -> Iterator[str]:
    newer = ""
    if rules.when_newer is not None:
        ours, its = _source(rules.when_newer), _target(rules.when_newer)
        newer = f" AND ({ours} >= {its} OR {its} IS NULL OR {_source(CUT)} IS NOT NULL)"
    yield f"WHEN MATCHED AND {_deletes(_source(DELETES))}{newer} THEN DELETE"
    changed = [name for name in columns.names if name not in rules.keys]
    if changed:
        assignments = ", ".join(f"{_target(name)} = {_source(name)}" for name in changed)
        yield f"WHEN MATCHED AND NOT {_deletes(_source(DELETES))}{newer} THEN UPDATE SET {assignments}"


def _bounds(columns: pa.Schema, rules: MergeRules, touched: Mapping[str, Touched]) -> Iterator[str]:
    """Predicates on the target alone, by which Delta leaves files and partitions out."""
    for name in (*rules.keys, *rules.prune_by):
        bound = (
            within(_target(name), columns.field(name).type, touched[name], spark_literal) if name in touched else None
        )
        if bound is None:
            continue
        # A row from before the column was added, or with an empty text to partition by, has a null there.
        yield f"({bound})" if name in rules.keys else f"({bound} OR {_target(name)} IS NULL)"


def _deletes(column: str) -> str:
    return f"coalesce({column}, FALSE)"


def _target(name: str) -> str:
    return f"t.{quoted(name)}"


def _source(name: str) -> str:
    return f"s.{quoted(name)}"
