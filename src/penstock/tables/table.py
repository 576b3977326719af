"""What the runtime asks of a table, whatever it is kept in. Everything runs on the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.tables.types import to_plain


class LookupTable(Protocol):
    """A table that is read whole. Its types are those that decoders give.

    What is not there at the first look is missing (`TABLE_MISSING`); what was there once may come back, being
    replaced just now, and is told as passing (`TABLE_UNREACHABLE`).
    """

    @property
    def name(self) -> str:
        """The name in the pipeline file."""
        ...

    @property
    def target(self) -> str:
        """Where it is, for people."""
        ...

    def schema(self) -> pa.Schema:
        """The columns. Reads no rows."""
        ...

    def version(self) -> str:
        """What changes whenever the rows may have. Cheap: asked before every batch. `read` gives this version."""
        ...

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns; none where they take more than `most_bytes` of memory."""
        ...

    def estimated_bytes(self) -> int | None:
        """About how large the whole table is, by its metadata; none where that does not say."""
        ...


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int | None) -> pa.Table | None:
    """The batches as one table of plain types; none, and nothing more read, once they take more than `most_bytes`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(to_plain(batch, schema))
        size += held[-1].nbytes
        if most_bytes is not None and size > most_bytes:
            return None
    return pa.Table.from_batches(held, schema)


def select_columns(table: str, schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns. Raises where the table lacks one."""
    for name in columns:
        if name not in schema.names:
            raise MissingError(
                "TABLE_COLUMN_MISSING",
                f'table {table}: there is no column "{name}"',
                context={"needed": ", ".join(columns), "columns of the table": ", ".join(schema.names)},
                hint="correct the name, or add the column to the table",
            )
    return pa.schema([schema.field(name) for name in columns])


# What goes wrong with a table, as errors that say whether to try again. None shows a secret or a value.

_QUOTED = re.compile(r"'[^']*'")
"""Where Arrow's messages have values of the table."""
_PASSWORD = re.compile(r"(://[^/@\s:]*):[^@\s]*@")


class TableState:
    """How one table stands.

    What is missing before it was ever seen may only be away after that, and what cannot be read after it once was
    may be half written.
    """

    def __init__(self, name: str, target: str, gone: tuple[type[Exception], ...] = ()) -> None:
        self._name = name
        self._target = target
        self._gone: tuple[type[Exception], ...] = (FileNotFoundError, NotADirectoryError, *gone)
        self._was_seen = False
        self._was_read = False

    @contextmanager
    def looking(self, doing: str) -> Iterator[None]:
        """Raise what goes wrong inside as an error of this table; `doing` says what was under way."""
        try:
            yield
        except PenstockError:
            raise
        except pa.ArrowException as error:
            raise self.unreadable(doing, _QUOTED.sub("...", told(error))) from error
        except Exception as error:
            if isinstance(error, self._gone):
                raise self.missing(doing) from error
            raise self.unreachable(doing, told(error)) from error
        self._was_seen = True

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The same for reading the rows, all of them."""
        with self.looking("reading the rows"):
            yield
        self._was_read = True

    def missing(self, doing: str) -> PenstockError:
        """The error for a table that is not there."""
        if self._was_seen:
            return self.unreachable(doing, "it was there before, and is not now")
        return MissingError(
            "TABLE_MISSING",
            f"table {self._name}: {doing}: it is not there",
            context={"looked at": self._target},
            hint="create the table, or correct where the file says it is",
        )

    def unreachable(self, doing: str, why: str) -> PenstockError:
        """The error for a table that may come back; at a start it has to be put right first."""
        kind = TransientError if self._was_seen else MissingError
        return kind("TABLE_UNREACHABLE", f"table {self._name}: {doing}: {why}", context={"looked at": self._target})

    def unreadable(self, doing: str, why: str, *, file: str | None = None, column: str | None = None) -> PenstockError:
        """The error for a table that is there and cannot be read as it is."""
        places = {"file": file, "column": column}
        kind = TransientError if self._was_read else MissingError
        return kind(
            "TABLE_UNREADABLE",
            f"table {self._name}: {doing}: {why}",
            context={"looked at": self._target, **{name: place for name, place in places.items() if place}},
        )


def told(error: BaseException) -> str:
    """What an error says in one line, without the password of an address."""
    lines = str(error).strip().splitlines()
    return _PASSWORD.sub(r"\1:***@", lines[0])[:300] if lines else type(error).__name__
