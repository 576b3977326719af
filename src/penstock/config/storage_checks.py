"""What has to hold of the places of a file that lie in object stores."""

from __future__ import annotations

from penstock.config.fields import is_uri
from penstock.config.parts import Parts
from penstock.config.sinks import IcebergCatalogConfig, IcebergSinkConfig
from penstock.config.tables import IcebergTableConfig

_KEYS = ("access_key", "secret_key")


def check_storage(parts: Parts) -> None:
    """Report credentials that are not whole, and catalogs whose commits no object store makes safe."""
    given = [key for key in _KEYS if parts.written("storage", key)]
    if len(given) == 1:
        [missing] = set(_KEYS) - set(given)
        parts.report(
            ("storage", given[0]), f"{given[0]} means nothing without {missing}", hint=f"add {missing}", at_key=True
        )
    if parts.written("storage", "session_token") and not given:
        parts.report(
            ("storage", "session_token"),
            "session_token means nothing without access_key",
            hint="add access_key and secret_key",
            at_key=True,
        )
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, IcebergSinkConfig):
            _check_catalog(parts, ("sinks", index), sink.warehouse, sink.catalog)
    for name, table in parts.tables.items():
        if isinstance(table, IcebergTableConfig):
            _check_catalog(parts, ("tables", name), table.warehouse, table.catalog)


def _check_catalog(parts: Parts, path: tuple[str | int, ...], warehouse: str, catalog: IcebergCatalogConfig) -> None:
    """A catalog decides which of two commits counts. A file in an object store cannot, nor can a rename there."""
    if not is_uri(warehouse) or warehouse.startswith("file://"):
        return
    if catalog.type == "sqlite" and catalog.uri is None:
        parts.report(
            (*path, "warehouse"),
            "a SQLite catalog can only lie on a disk of this machine",
            hint="name a catalog that decides between writers: catalog: {type: rest, uri: ...} or {type: sql, uri: "
            "...}; for runs of one machine a file of it: catalog: {uri: sqlite:///path}",
        )
    elif catalog.type == "hadoop" and not warehouse.startswith("hdfs://"):
        parts.report(
            (*path, "catalog", "type"),
            "a Hadoop catalog commits by renaming, and in an object store two writers could both win",
            hint="use a catalog of type rest, sql or hive",
        )
