"""What the runtime asks of a lookup table, and what every kind of table has in common. All of it runs on the driver."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Protocol

import pyarrow as pa

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.tables.types import to_plain


class LookupTable(Protocol):
    """A table that is read whole. Its types are those that decoders give.

    A table that cannot be found is missing (`TABLE_MISSING`). One that was found before may just be being replaced,
    which is transient (`TABLE_UNREACHABLE`).
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
        """Changes whenever the rows may have changed. Cheap: called before every batch. `read` reads this version."""
        ...

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns, or None where they take more than `most_bytes` of memory."""
        ...

    def estimated_bytes(self) -> int | None:
        """About how large the whole table is according to its metadata, or None where that does not say."""
        ...


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int | None) -> pa.Table | None:
    """The batches as one table of plain types. Stops with None once they take more than `most_bytes`."""
    plain: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        plain.append(to_plain(batch, schema))
        size += plain[-1].nbytes
        if most_bytes is not None and size > most_bytes:
            return None
    return pa.Table.from_batches(plain, schema)


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


_QUOTED = re.compile(r"'[^']*'")
"""Where Arrow's messages have values of the table."""
_PASSWORD = re.compile(r"(://[^/@\s:]*):[^@\s]*@")


class StoredTable(ABC):
    """Implements `LookupTable`. A kind of table opens it and reads its rows; limits and errors are the same for all.

    No error shows a secret or a value. A table that was found once and is missing now may only be away, and one that
    was read once and cannot be read now may be half written: both are transient.
    """

    gone: ClassVar[tuple[type[Exception], ...]] = ()
    """What the library of this kind raises for a table that does not exist."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.target = target
        self._was_found = False
        self._was_read = False

    def schema(self) -> pa.Schema:
        """The columns as they are now."""
        with self._errors("reading the columns"):
            self._refresh()
            return self._columns()

    def version(self) -> str:
        """The version as it is now."""
        with self._errors("looking at the table"):
            self._refresh()
            return self._version()

    def estimated_bytes(self) -> int | None:
        """The size as it is now."""
        with self._errors("looking at the table"):
            self._refresh()
            return self._size_bytes()

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns, at the version that was last looked at."""
        with self._errors("reading the rows"):
            if not self._was_found:
                self._refresh()
            wanted = select_columns(self.name, self._columns(), columns)
            rows = gather(self._rows(wanted), wanted, most_bytes)
        self._was_read = True
        return rows

    @abstractmethod
    def _refresh(self) -> None:
        """Open the table, or bring what is known of it up to date."""

    @abstractmethod
    def _columns(self) -> pa.Schema: ...

    @abstractmethod
    def _version(self) -> str: ...

    @abstractmethod
    def _size_bytes(self) -> int | None: ...

    @abstractmethod
    def _rows(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]: ...

    def _translate(self, error: Exception, doing: str) -> PenstockError:
        """The error for anything that a library raised; `doing` says what was being done."""
        if isinstance(error, pa.ArrowException):
            return self._unreadable(doing, _QUOTED.sub("...", first_line(error)))
        if not isinstance(error, (FileNotFoundError, NotADirectoryError, *self.gone)):
            return self._unreachable(doing, first_line(error))
        if self._was_found:
            return self._unreachable(doing, "it was there before, and is not now")
        return MissingError(
            "TABLE_MISSING",
            f"table {self.name}: {doing}: it is not there",
            context={"looked at": self.target},
            hint="create the table, or correct where the file says it is",
        )

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise self._translate(error, doing) from error
        self._was_found = True

    def _unreachable(self, doing: str, why: str) -> PenstockError:
        """A table that may come back, unless it was never found: then it has to be put right first."""
        kind = TransientError if self._was_found else MissingError
        return kind("TABLE_UNREACHABLE", f"table {self.name}: {doing}: {why}", context={"looked at": self.target})

    def _unreadable(self, doing: str, why: str, *, file: str | None = None, column: str | None = None) -> PenstockError:
        """A table that is there and cannot be read as it is."""
        places = {"file": file, "column": column}
        kind = TransientError if self._was_read else MissingError
        return kind(
            "TABLE_UNREADABLE",
            f"table {self.name}: {doing}: {why}",
            context={"looked at": self.target, **{name: place for name, place in places.items() if place}},
        )


def first_line(error: BaseException) -> str:
    """What an error says in one line, without the password of an address."""
    lines = str(error).strip().splitlines()
    return _PASSWORD.sub(r"\1:***@", lines[0])[:300] if lines else type(error).__name__
