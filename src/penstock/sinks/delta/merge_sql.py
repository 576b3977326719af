"""The MERGE statement: one row a key out of the staged rows, into the part of the table that they can touch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules
from penstock.sinks.delta.merge_terms import MergeTerms
from penstock.sinks.delta.names import quoted
from penstock.sinks.delta.touched import Touched, spark_literal
from penstock.sinks.merging import one_row_a_key

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
