"""Column names: found without regard to case, as Spark finds them, and quoted for its SQL. The records of rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, OffsetRange


def find_column(name: str, columns: Sequence[str]) -> int:
    """The position of a column. Raises where there is none, or more than one."""
    found = [index for index, column in enumerate(columns) if column.lower() == name.lower()]
    if not found:
        raise unknown_column(name, columns)
    if len(found) > 1:
        raise DefinitionError(
            "COLUMN_AMBIGUOUS",
            f'column "{name}" is there more than once: upper and lower case do not tell columns apart',
            context={"columns": ", ".join(columns)},
        )
    return found[0]


def unknown_column(name: str, columns: Sequence[str], context: dict[str, str] | None = None) -> DefinitionError:
    """The error for a column that is not there, with the nearest one that is."""
    close = difflib.get_close_matches(name.lower(), [column.lower() for column in columns], n=1)
    return DefinitionError(
        "COLUMN_UNKNOWN",
        f'column "{name}" is not in the input',
        context={**(context or {}), "columns": ", ".join(columns)},
        hint=next((f'did you mean "{column}"?' for column in columns if column.lower() in close), None),
    )


def check_there(names: Iterable[str], columns: Sequence[str]) -> None:
    """Raise where a column is not there, or there more than once."""
    for name in names:
        find_column(name, columns)


def check_reserved(names: Iterable[str]) -> None:
    """Raise where a transform would change the column that carries the coordinates."""
    for name in names:
        if name.lower() == COORDINATES:
            raise DefinitionError(
                "COLUMN_RESERVED",
                f'column "{name}" is reserved for the coordinates of the row',
                hint="derive another column from its fields: topic, partition, offset, timestamp",
            )


def check_distinct(names: Sequence[str]) -> None:
    """Raise where two columns would have one name."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise DefinitionError(
                "COLUMN_DUPLICATE",
                f'two columns would be named "{name}"',
                context={"columns": ", ".join(names)},
            )
        seen.add(name.lower())


def quote(name: str) -> str:
    """A name as Spark SQL reads it whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def select_list(items: Iterable[str]) -> str:
    """`SELECT items FROM input`."""
    return f"SELECT {', '.join(items)} FROM input"


def records_of(rows: pa.RecordBatch, places: Sequence[int]) -> list[OffsetRange | None]:
    """The record of each of some rows; None where the row does not say it."""
    if COORDINATES not in rows.schema.names:
        return [None] * len(places)
    taken = rows.column(COORDINATES).take(pa.array(places, pa.int64()))
    # Field by field: the timestamp may be one that Python has no value for.
    parts = (pc.struct_field(taken, name).to_pylist() for name in ("topic", "partition", "offset"))
    return [
        None
        if topic is None or partition is None or offset is None
        else OffsetRange(topic, partition, offset, offset + 1)
        for topic, partition, offset in zip(*parts, strict=True)
    ]


def place_in_words(rows: pa.RecordBatch, row: int) -> dict[str, str]:
    """For the context of an error: the record of a row, where it is known."""
    [record] = records_of(rows, [row])
    return {} if record is None else {"record": f"{record.topic}[{record.partition}] offset {record.start}"}
