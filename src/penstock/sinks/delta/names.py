"""A table and its columns as Spark SQL names them."""

from __future__ import annotations

from pathlib import Path

from penstock.sinks.files import TableFolder


def quoted(*names: str) -> str:
    """Names as one Spark SQL identifier."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def uri_of(folder: TableFolder, path: str = "") -> str:
    """A path in the form that Spark takes, wherever its own default file system is."""
    if folder.local is None:
        return f"{folder.uri}/{path}".rstrip("/")
    return f"file:{Path(folder.local, path).absolute()}"


def table_name(folder: TableFolder) -> str:
    """The table of a folder in a statement."""
    return quoted("delta", uri_of(folder))
