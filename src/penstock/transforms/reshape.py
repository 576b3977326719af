"""`rename` and `drop`: the same rows with other column names, or fewer columns. Always exact in Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.model import Split
from penstock.transforms.columns import check_distinct, check_reserved, find_column, quote, select_list


class Rename:
    """Gives columns other names, all at once, so that two may swap theirs."""

    def __init__(self, names: Mapping[str, str]) -> None:
        check_distinct(list(names))
        check_reserved([*names, *names.values()])
        self.renamed = dict(names)

    def __repr__(self) -> str:
        return f"rename {', '.join(f'{old} to {new}' for old, new in self.renamed.items())}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: renaming is exact."""
        self.names(schema.names)
        return None

    def names(self, columns: Sequence[str]) -> list[str]:
        """The columns that leave when these enter."""
        result = list(columns)
        for old, new in self.renamed.items():
            result[find_column(old, columns)] = new
        check_distinct(result)
        return result

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns under their new names."""
        return pa.schema(field.with_name(name) for field, name in zip(schema, self.names(schema.names), strict=True))

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Rename the columns."""
        return Split.all_good(pa.RecordBatch.from_arrays(rows.columns, schema=self.output(rows.schema)))

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        pairs = zip(columns, self.names(columns), strict=True)
        return select_list(quote(old) if old == new else f"{quote(old)} AS {quote(new)}" for old, new in pairs)


class Drop:
    """Leaves columns out."""

    def __init__(self, columns: Sequence[str]) -> None:
        check_reserved(columns)
        self.columns = list(columns)

    def __repr__(self) -> str:
        return f"drop {', '.join(self.columns)}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: leaving columns out is exact."""
        self.names(schema.names)
        return None

    def names(self, columns: Sequence[str]) -> list[str]:
        """The columns that leave when these enter."""
        dropped = {find_column(name, columns) for name in self.columns}
        return [column for index, column in enumerate(columns) if index not in dropped]

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are left."""
        return pa.schema(schema.field(name) for name in self.names(schema.names))

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Leave the columns out."""
        return Split.all_good(rows.select(self.names(rows.schema.names)))

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        return select_list(map(quote, self.names(columns)))
