"""PostgreSQL as sinks and lookup tables reach it: connections by a URL, and names that are safe in a statement.

The URL is a secret: no error, target or repr shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.model.pem import DatabaseTls

Connection = psycopg.Connection[tuple[Any, ...]]

_DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": 10,
    # A server that vanished without a word is noticed within a minute.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "penstock",
}
# libpq gives no code for a connection that is refused: its words choose the hint.
_DENIED = re.compile(
    r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist|permission denied|SASL",
    re.IGNORECASE,
)
_TLS = re.compile(r"\bSSL\b|certificate|\bTLS\b", re.IGNORECASE)

_PART = r'"(?:[^"]|"")+"|[^".\s]+'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")


class Database:
    """One database. Opens connections, and takes the secrets of its URL out of messages."""

    def __init__(self, url: str, tls: DatabaseTls | None = None) -> None:
        self._url = url
        self._tls = tls

    def __repr__(self) -> str:
        return f"Database({self.address})"

    @property
    def is_valid(self) -> bool:
        """Whether the URL is one of a PostgreSQL database."""
        return self._parts is not None

    @property
    def address(self) -> str:
        """Host, port and database, without user and password."""
        parts = self._parts
        if parts is None:
            return "postgresql"
        host = parts.get("host") or parts.get("hostaddr") or "localhost"
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"{host}{port}/{parts.get('dbname') or 'the default database'}"

    def open(self, *, autocommit: bool) -> Connection:
        """A connection, for the caller to close. Statements are never prepared by name: a pooler may be in between."""
        settings = {name: value for name, value in _DEFAULTS.items() if name not in (self._parts or ())}
        settings |= self._tls.settings() if self._tls is not None else {}
        conninfo = make_conninfo(self._url, client_encoding="utf8", **settings)
        return psycopg.connect(conninfo, autocommit=autocommit, prepare_threshold=None)

    def reason(self, error: psycopg.Error) -> str:
        """The server's message without the address that libpq puts in front, and without secrets of the URL."""
        return self.scrub(message_of(error).split("FATAL:")[-1].strip())

    def scrub(self, message: str) -> str:
        """The message without the secrets of the URL."""
        parts = self._parts
        if parts is None:
            return "the database's message is hidden: it may contain the url"
        for name in ("password", "sslpassword", "passfile"):
            if parts.get(name):
                message = message.replace(str(parts[name]), "***")
        if parts.get("user"):
            message = re.sub(rf'(user|role) "{re.escape(str(parts["user"]))}"', r"\1 ***", message)
        return message

    @property
    def _parts(self) -> dict[str, Any] | None:
        try:
            return conninfo_to_dict(self._url)
        except (psycopg.Error, UnicodeError):
            return None


def is_tls_failure(error: psycopg.Error) -> bool:
    """Whether a connection was not opened because of TLS."""
    return error.sqlstate is None and _TLS.search(message_of(error)) is not None


def is_access_refused(error: psycopg.Error) -> bool:
    """Whether the server refuses the user, or the user's statement."""
    return isinstance(error, errors.InsufficientPrivilege) or _DENIED.search(message_of(error)) is not None


def message_of(error: psycopg.Error, limit: int = 300) -> str:
    """The database's message in one line, without its details: these quote whole rows."""
    said = error.diag.message_primary or str(error)
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= limit else line[:limit] + "..."


def split_table_name(given: str) -> tuple[str, str] | None:
    """Schema and name of `table` (in the schema `public`) or `schema.table`, each plain or in double quotes."""
    found = _TABLE.fullmatch(given)
    if found is None:
        return None
    schema, name = (part[1:-1].replace('""', '"') if part.startswith('"') else part for part in found.groups("public"))
    return schema, name


def quote(name: str) -> str:
    """A name as an identifier: its case and every character kept."""
    return '"' + name.replace('"', '""') + '"'
