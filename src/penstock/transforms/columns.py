"""Column names: found without regard to case, as Spark finds them, and quoted for its SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import DefinitionError
from penstock.model import COORDINATES
from penstock.transforms.expressions.parsing import unknown_column


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
