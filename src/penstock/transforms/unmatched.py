"""The second step of `enrich` with `on_miss: quarantine`: it refuses the rows that the join only marked."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefinitionError, TerminalError
from penstock.model import COMPUTED, COORDINATES, OffsetRange, Refusal, Split

FOUND = f"{COMPUTED}found"
"""Whether the table had a row for the key: a column between the two steps."""
MISS = "ENRICH_MISS"
"""The code of a row that goes to the quarantine."""


class Unmatched:
    """Refuses the rows that `Enrich` found no match for."""

    def __init__(self, table: str, keys: Sequence[str]) -> None:
        self.table = table
        self.keys = list(keys)

    def __repr__(self) -> str:
        return f"quarantine rows without a match in {self.table}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: this is a step over Arrow in both lanes."""
        return None

    def select(self, columns: Sequence[str]) -> str | None:
        """None: this is a step over Arrow in both lanes."""
        return None

    def names(self, columns: Sequence[str]) -> list[str]:
        """The columns without the mark."""
        return [column for column in columns if column != FOUND]

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns without the mark. Raises where the rows do not say which record they are of."""
        if COORDINATES not in schema.names:
            raise DefinitionError(
                "ENRICH_NEEDS_COORDINATES",
                f"enrich with table {self.table}: rows without a match go to the quarantine, and these no longer say "
                "which record they are of",
                context={"needed": COORDINATES, "columns": ", ".join(self.names(schema.names))},
                hint=f"keep `{COORDINATES}` in the step that leaves it out, or set another `on_miss`",
            )
        return pa.schema([schema.field(name) for name in self.names(schema.names)])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Keep the rows with a match."""
        found = rows.column(FOUND)
        good = pa.RecordBatch.from_arrays(
            [rows.column(name) for name in self.names(rows.schema.names)], schema=self.output(rows.schema)
        )
        if found.true_count == len(found):
            return Split.all_good(good)
        message = f"enrich: table {self.table} has no row for the key ({', '.join(self.keys)})"
        missed = rows.column(COORDINATES).filter(pc.invert(found)).to_pylist()
        if any(at is None or at["topic"] is None or at["offset"] is None for at in missed):
            raise TerminalError(
                "ENRICH_WITHOUT_RECORD",
                f"quarantining rows: some without a match in table {self.table} do not say which record they are of",
                context={"column": COORDINATES},
                hint="put `enrich` in front of the step that makes rows without a record, or set another `on_miss`",
            )
        records = dict.fromkeys((at["topic"], at["partition"], at["offset"]) for at in missed)
        refused = tuple(
            Refusal(OffsetRange(topic, partition, offset, offset + 1), MISS, message)
            for topic, partition, offset in records
        )
        return Split(good.filter(found), refused=refused)
