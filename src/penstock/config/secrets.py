"""Secrets are written as references: one that stands in the file itself is refused, and never repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from penstock.config.fields import is_secret
from penstock.config.files import literal_part
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.sinks import IcebergSinkConfig, KafkaSinkConfig, PostgresSinkConfig
from penstock.config.tables import IcebergTableConfig, PostgresTableConfig

_ADDRESSES = (("registry", "url"), ("security", "token_url"))
_ASSIGNED = re.compile(
    r"(password|passwd|secret|token|accountkey|accesskey|signature|[;?&]sig)\s*=\s*[\"']?[^\s\"';&]", re.IGNORECASE
)
_CREDENTIALS = re.compile(r"authorization|cookie|api-?key|auth-?key", re.IGNORECASE)
_SCHEMES = ("", "bearer", "basic", "digest", "token", "apikey", "geniekey")
"""What stands before the secret in a header of HTTP."""


def check_secrets(parts: Parts) -> None:
    """Report every secret that is written out in the file."""
    for path in _secret_paths(parts):
        text = parts.file.positions.values[path].text
        # A composed setting (JAAS) has harmless text around its references; a plain one has nothing else.
        composed = path in parts.filled and "=" in text
        literal = literal_part(text)
        exposed = bool(_ASSIGNED.search(literal)) if composed else literal.strip().lower() not in _SCHEMES
        if exposed:
            _refuse(parts, path)
    for path in _setting_paths(parts):
        _check_setting(parts, path)
    for path in _url_paths(parts):
        literal = literal_part(parts.file.positions.values[path].text)
        if _ASSIGNED.search(literal) or _has_password(literal):
            _refuse(parts, path)

    for path, spot in parts.file.positions.values.items():
        literal = literal_part(spot.text)
        header = path[:3] == ("alerts", "webhook", "headers") and _is_credential(str(path[-1]))
        url = path == ("alerts", "webhook", "url")
        if (header and literal.strip().lower() not in _SCHEMES) or (url and _has_password(literal)):
            _refuse(parts, path)


def _is_credential(header: str) -> bool:
    return is_secret(header) or _CREDENTIALS.search(header) is not None


def _check_setting(parts: Parts, path: Path) -> None:
    """A setting with a harmless name may still hold a secret, or lead one onto a command line."""
    text = parts.file.positions.values[path].text
    if _ASSIGNED.search(literal_part(text)) and not is_secret(str(path[-1])):
        _refuse(parts, path)
    elif path in parts.filled and str(path[-1]).endswith("JavaOptions"):
        parts.report(
            path,
            "these options stand on a command line, which everybody on the machine can read: not for a reference",
            hint="write them out, and give a secret by a setting or a file that they name",
        )


def _refuse(parts: Parts, path: Path) -> None:
    parts.report(path, "a secret is written out in the file", hint="write it as ${env:NAME} or ${file:path}")


def _setting_paths(parts: Parts) -> Iterator[Path]:
    """Every setting of a client or of Spark."""
    settings: list[Path] = [("source", "options"), ("spark",), ("storage", "options")]
    settings += [("sources", name, "options") for name in parts.sources]
    settings += [("tables", name, "catalog", "properties") for name in parts.tables]
    settings += [("sinks", i, "options") for i, sink in enumerate(parts.sinks) if isinstance(sink, KafkaSinkConfig)]
    iceberg = [i for i, sink in enumerate(parts.sinks) if isinstance(sink, IcebergSinkConfig)]
    settings += [("sinks", i, "catalog", "properties") for i in iceberg]
    yield from (path for path in parts.file.positions.values if path[:-1] in settings)


def _secret_paths(parts: Parts) -> Iterator[Path]:
    settings = set(_setting_paths(parts))
    for path in parts.file.positions.values:
        of_registry = path[-2:-1] == ("registry",) and path[-1] in ("password", "token")
        of_security = path[-2:-1] == ("security",) and path[-1] in ("password", "key_password", "client_secret")
        salt = path[-1:] == ("hash",) and "mask" in path
        of_storage = path[:-1] == ("storage",) and path[-1] in ("access_key", "secret_key", "session_token")
        if of_registry or of_security or of_storage or salt or (path in settings and is_secret(str(path[-1]))):
            yield path


def _url_paths(parts: Parts) -> Iterator[Path]:
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, PostgresSinkConfig):
            yield "sinks", index, "url"
        elif isinstance(sink, IcebergSinkConfig) and parts.written("sinks", index, "catalog", "uri"):
            yield "sinks", index, "catalog", "uri"
    for name, table in parts.tables.items():
        if isinstance(table, PostgresTableConfig):
            yield "tables", name, "url"
        elif isinstance(table, IcebergTableConfig) and parts.written("tables", name, "catalog", "uri"):
            yield "tables", name, "catalog", "uri"
    if parts.written("metrics", "otel", "endpoint"):
        yield "metrics", "otel", "endpoint"
    yield from (path for path in parts.file.positions.values if path[-2:] in _ADDRESSES)


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False
