"""What all merging sinks share: keys are never null, and each batch has one row per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.errors import MissingError, TerminalError
from penstock.model import COMPUTED, COORDINATES, COORDINATES_FIELD, DELETES, MergeRules, OffsetRange, Refusal

KEY_NULL = "SINK_KEY_NULL"
PARTITION_VALUE = "SINK_PARTITION_VALUE"
RANK = f"{COMPUTED}rank"
_POSITION = ("offset", "timestamp", "topic", "partition")


def check_rules(sink: str, schema: pa.Schema, rules: MergeRules) -> None:
    """Refuse rules that name columns which the rows lack, and keys that cannot be compared."""
    newer = (rules.when_newer,) if rules.when_newer else ()
    named = {"keys": rules.keys, "when_newer": newer, "prune_by": rules.prune_by}
    for setting, columns in named.items():
        absent = [name for name in columns if name not in schema.names]
        if absent:
            raise MissingError(
                "SINK_SCHEMA_MISMATCH",
                f'sink {sink}: {setting}: no column "{absent[0]}" in the rows',
                context={setting: ", ".join(columns), "columns": ", ".join(schema.names)},
            )
    nested = [f"{name} {schema.field(name).type}" for name in rules.keys if types.is_nested(schema.field(name).type)]
    if nested:
        raise MissingError(
            "SINK_SCHEMA_MISMATCH",
            f"sink {sink}: keys: a column of this type cannot be a key",
            context={"columns": ", ".join(nested)},
            hint="derive a plain column from it, and merge by that",
        )


def refuse_without_position(sink: str, schema: pa.Schema, rules: MergeRules, *, kept: bool) -> None:
    """Refuse rows without coordinates where a target that keeps them is merged into by their positions."""
    if rules.by_position and kept and COORDINATES not in schema.names:
        raise MissingError(
            "SINK_NEEDS_COORDINATES",
            f"sink {sink}: older rows are distinguished from newer ones by the column {COORDINATES}, which is missing",
            context={"columns": ", ".join(schema.names)},
            hint=f"select {COORDINATES} as well; a replay may also write to another target: --into TARGET",
        )


def refuse_null_keys(sink: str, rows: pa.RecordBatch, keys: Sequence[str]) -> tuple[pa.RecordBatch, list[Refusal]]:
    """The rows without null keys, and a refusal for each other row: no merge could find it again."""
    nulls = [pc.is_null(rows.column(key)) for key in keys if rows.column(key).null_count]
    if not nulls:
        return rows, []
    refused = reduce(pc.or_, nulls)
    message = f"sink {sink}: a key column is null: {', '.join(keys)}"
    return rows.filter(pc.invert(refused)), refusals(sink, rows.filter(refused), KEY_NULL, message)


def refusals(sink: str, rows: pa.RecordBatch, code: str, message: str) -> list[Refusal]:
    """A refusal for each row, by its coordinates."""
    if COORDINATES not in rows.schema.names:
        raise TerminalError(
            code,
            f"{message}, and the rows have no coordinates",
            context={"rows": rows.num_rows, "columns": ", ".join(rows.schema.names)},
            hint=f"keep the column {COORDINATES} in the pipeline's SQL, so that such records can be quarantined",
        )
    found = rows.column(COORDINATES).to_pylist()
    return [
        Refusal(OffsetRange(at["topic"], at["partition"], at["offset"], at["offset"] + 1), code, message)
        for at in found
    ]


def one_row_a_key(relation: str, rules: MergeRules, *, quote: Callable[[str], str], position: Sequence[str]) -> str:
    """A query for the one row that counts of each key in `relation`, with all its columns.

    `position` are expressions that order rows by their place in the source, the offset first. A delete is a row like
    any other: with `when_newer` it counts by that column.
    """
    keys = ", ".join(map(quote, rules.keys))
    direction = "ASC" if rules.insert_only else "DESC"
    newest = [f"{quote(rules.when_newer)} {direction} NULLS LAST"] if rules.when_newer is not None else []
    order = ", ".join([*newest, *(f"{expression} {direction}" for expression in position)])
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS {quote(RANK)} FROM {relation}"
    return f"SELECT * FROM ({ranked}) AS ranked WHERE {quote(RANK)} = 1"


def later_sql(held: Callable[[str], str], given: Callable[[str], str]) -> str:
    """That the existing row has a later offset than the given one; both functions name a member of the coordinates."""
    same = " AND ".join(f"{held(part)} = {given(part)}" for part in ("topic", "partition"))
    return f"coalesce({same} AND {held('offset')} > {given('offset')}, FALSE)"


def counts_sql(newer: tuple[str, str] | None, later: str | None) -> str:
    """The condition under which a row replaces the existing one; empty where it always does.

    `newer` is the column `when_newer` in both. `later`, the condition that the existing row came from a later position,
    decides between rows that are equally new.
    """
    if newer is None:
        return f"NOT {later}" if later else ""
    ours, its = newer
    if later is None:
        terms = [f"{ours} >= {its}", f"{its} IS NULL"]
    else:
        known = f"({its} IS NULL AND {ours} IS NOT NULL)"
        terms = [f"{ours} > {its}", known, f"({ours} IS NOT DISTINCT FROM {its} AND NOT {later})"]
    return " OR ".join(terms)


def rows_that_count(rows: pa.Table, rules: MergeRules) -> pa.Table:
    """The same for rows in memory, which have coordinates: one row per key.

    A sink that only inserts ignores deletes.
    """
    import polars as pl  # imported here: tasks that only refuse null keys do not need it

    position = rows.column(COORDINATES).combine_chunks() if rows.num_rows else pa.array([], COORDINATES_FIELD.type)
    names = [*rules.keys, *([rules.when_newer] if rules.when_newer and rules.when_newer not in rules.keys else [])]
    judged = {name: rows.column(name) for name in names}
    judged |= {f"{COMPUTED}{part}": pc.struct_field(position, part) for part in _POSITION}
    deletes = pc.fill_null(rows.column(DELETES), False) if DELETES in rows.column_names else None
    judged[DELETES] = deletes if deletes is not None else pa.repeat(pa.scalar(False), rows.num_rows)
    frame = pl.DataFrame(pl.from_arrow(pa.table(judged))).with_row_index(RANK).lazy()
    order = [f"{COMPUTED}{part}" for part in _POSITION]
    if rules.insert_only:
        frame = frame.filter(~pl.col(DELETES))
    if rules.when_newer is not None:
        order = [rules.when_newer, *order]
    newest = frame.sort(order, descending=not rules.insert_only, nulls_last=True)
    kept = newest.unique(subset=list(rules.keys), keep="first", maintain_order=False).sort(RANK).collect()
    return rows.take(kept[RANK].to_arrow())
