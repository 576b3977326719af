"""`dedupe`: one row for each key, the newest: the greatest offset, then timestamp, topic and partition.

Keys are equal as Spark groups them: NULLs are one key, NaNs are one key, -0.0 is 0.0. Deduplication is within
a batch; `buckets` says which slot has to see a row, so that all rows of a key meet in one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, Split
from penstock.transforms.columns import find_column, quote, select_list
from penstock.transforms.expressions.terms import sql_name
from penstock.transforms.hashing import can_hash, group_numbers, hash_rows
from penstock.transforms.step import Step

NEWEST_BY = ("offset", "timestamp", "topic", "partition")
"""The coordinates that decide which of several rows is the newest, the first one first."""


class Dedupe(Step):
    """Keeps the newest row of each key."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise DefinitionError("DEDUPE_WITHOUT_KEYS", "dedupe needs at least one key column")
        self.keys = list(keys)

    def __repr__(self) -> str:
        return f"dedupe by {', '.join(self.keys)}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark, or None where Arrow keeps exactly the same rows."""
        for name in self.keys:
            kind = schema.field(find_column(name, schema.names)).type
            if not can_hash(kind):
                return f"dedupe by `{name}`: keys of type {sql_name(kind)} are left to Spark"
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The same columns; raises for a key that is not there."""
        for name in self.keys:
            find_column(name, schema.names)
        return schema

    def buckets(self, rows: pa.RecordBatch, n: int) -> pa.Array:
        """For each row a number below `n`: the same for equal keys, in every process."""
        # The upper bits only, as signed integers: Arrow's division needs no care about signs then.
        hashes = pc.shift_right(hash_rows(self._key_columns(rows)), pa.scalar(33, pa.uint64())).cast(pa.int64())
        count = pa.scalar(n, pa.int64())
        return pc.subtract(hashes, pc.multiply(pc.divide(hashes, count), count)).cast(pa.int32())

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Keep the newest row of each key, in the order in which they came."""
        if rows.num_rows < 2:
            return Split.all_good(rows)
        groups, count = group_numbers(self._key_columns(rows))
        if count == rows.num_rows:
            return Split.all_good(rows)
        kept = _greatest_offsets(rows, groups)
        if len(kept) > count:
            kept = _settle_ties(rows, groups, kept)
        return Split.all_good(rows.take(kept))

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        keys = ", ".join(quote(columns[find_column(name, columns)]) for name in self.keys)
        order = ", ".join(f"{quote(COORDINATES)}.{quote(name)} DESC" for name in NEWEST_BY)
        rank = quote(f"{COORDINATES}_rank")
        ranked = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS {rank} FROM input"
        return f"{select_list(map(quote, columns)).removesuffix('input')}({ranked}) WHERE {rank} = 1"

    def _key_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [rows.column(find_column(name, rows.schema.names)) for name in self.keys]


def _greatest_offsets(rows: pa.RecordBatch, groups: pa.Array) -> pa.Array:
    """The places of the rows with the greatest offset of their key: several where partitions share it."""
    offsets = pc.struct_field(rows.column(COORDINATES), "offset")
    table = pa.table({"group": groups, "offset": offsets})
    # One thread, so that the groups come in the order of their numbers.
    greatest = table.group_by("group", use_threads=False).aggregate([("offset", "max")])["offset_max"]
    return pc.indices_nonzero(pc.equal(offsets, greatest.combine_chunks().take(groups)))


def _settle_ties(rows: pa.RecordBatch, groups: pa.Array, kept: pa.Array) -> pa.Array:
    """One place for each key: by timestamp, topic and partition where the offsets are equal."""
    owners = groups.take(kept)
    counts = pc.value_counts(owners)
    shared = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    tied = pc.is_in(owners, value_set=shared)
    places = kept.filter(tied)
    coordinates = rows.column(COORDINATES).take(places)
    table = pa.table(
        {
            "place": places,
            "group": groups.take(places),
            **{name: pc.struct_field(coordinates, name) for name in NEWEST_BY[1:]},
        }
    )
    newest_first = table.sort_by([("group", "ascending"), *((name, "descending") for name in NEWEST_BY[1:])])
    owners = newest_first["group"].combine_chunks()
    changes = pc.not_equal(owners[1:], owners[:-1])
    first = newest_first["place"].filter(pa.concat_arrays([pa.array([True]), changes]))
    places = pa.concat_arrays([kept.filter(pc.invert(tied)), first.combine_chunks()])
    return places.take(pc.sort_indices(places))
