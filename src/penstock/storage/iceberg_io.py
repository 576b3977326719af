"""The files of Iceberg tables in a store that is not S3, for pyiceberg, through our own client.

A property of the catalog names this class; only pyiceberg imports it.
"""

from __future__ import annotations

from fsspec import AbstractFileSystem
from pyiceberg.io.fsspec import FsspecFileIO

from penstock.storage.storage import OPTION, is_object_uri, object_filesystem


class StoreFileIO(FsspecFileIO):
    """pyiceberg's own, with another client for object stores."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> AbstractFileSystem:
        if not is_object_uri(f"{scheme}://"):
            return super()._get_fs(scheme, hostname)
        named = {name: value for name, value in self.properties.items() if name.startswith(OPTION)}
        return object_filesystem(scheme, {name.removeprefix(OPTION): value for name, value in named.items()})
