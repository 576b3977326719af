"""Names in the database: of target tables, and of Penstock's own.

Penstock's own tables are in a schema of their own, `penstock`: staging tables come and go there without
cluttering the schema that people read, and its rights can be granted separately.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass

from penstock.errors import MissingError
from penstock.model import BatchToken
from penstock.postgres import quote, split_table_name

OWN_SCHEMA = "penstock"
NAME_BYTES = 63
"""PostgreSQL truncates longer names silently."""

_STAGED = re.compile(r"staged_([0-9a-f]{10})_([0-9a-f]{8})_([0-9a-f]+)_([0-9a-f]{8})_[0-9a-f]{8}")


def text(value: str) -> str:
    """A string as a literal, whatever `standard_conforming_strings` is."""
    body = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{body}'" if "\\" in value else f"'{body}'"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by its schema and its own name."""

    schema: str
    name: str

    @classmethod
    def parse(cls, sink: str, given: str) -> TableName:
        """`table` (in the schema `public`) or `schema.table`, each as it is or in double quotes."""
        parts = split_table_name(given)
        if parts is None or any(len(part.encode()) > NAME_BYTES for part in parts):
            raise MissingError(
                "SINK_TABLE_NAME",
                f"sink {sink}: not the name of a table",
                context={"table": given},
                hint='write table, schema.table or "a schema"."a table"; each name has at most 63 bytes',
            )
        return cls(*parts)

    @property
    def quoted(self) -> str:
        """The whole name, safe in a statement."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def own(name: str) -> str:
    """A table of Penstock's own, quoted."""
    return TableName(OWN_SCHEMA, name).quoted


@dataclass(frozen=True, slots=True)
class StagedName:
    """The parts of a staging table's name: its sink, query and batch, and when it was created."""

    sink_mark: str
    query_mark: str
    batch_id: int
    made: int

    @classmethod
    def parse(cls, name: str) -> StagedName | None:
        """None where the name is not one of a staging table."""
        found = _STAGED.fullmatch(name)
        return cls(found[1], found[2], int(found[3], 16), int(found[4], 16)) if found else None


def sink_mark(pipeline: str, sink: str, target: TableName) -> str:
    """Identifies the staging tables of a sink, however long its name is."""
    return _digest(pipeline, sink, target.schema, target.name)[:10]


def staged_name(mark: str, token: BatchToken) -> str:
    """The staging table of one attempt of one slot: at most 61 bytes, nothing to quote.

    A random suffix separates attempts: two drivers may give the same number to theirs.
    """
    return f"staged_{mark}_{query_mark(token)}_{token.batch_id:x}_{int(time.time()):08x}_{secrets.token_hex(4)}"


def query_mark(token: BatchToken) -> str:
    """The mark of the token's query in the names of its staging tables."""
    return _digest(token.query_id)[:8]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
