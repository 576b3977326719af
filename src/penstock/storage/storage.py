"""One way in to every place that a pipeline names, written out for each of the clients that go there.

Enters: what the file's `storage` says, or nothing. Leaves: the settings of delta-rs, pyiceberg, Spark's S3A and our own
file system, all for the same endpoint and the same credentials. What is left out is asked of the environment
(`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...) once, on the driver; where that says nothing either, each
client finds the role of its machine by itself. The value pickles, and its `repr` holds no secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fsspec.core import url_to_fs

from penstock.storage import client_settings
from penstock.storage.hdfs import HdfsFileSystem
from penstock.storage.objects import ObjectFileSystem
from penstock.storage.stores import Patience

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
HDFS_SCHEMES = frozenset({"hdfs"})
OBJECT_SCHEMES = S3_SCHEMES | HDFS_SCHEMES | {"gs", "gcs", "abfs", "abfss"}
_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Storage:
    """How object stores are reached. One for all of a pipeline's places."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    """Whether the bucket is in the path of a request, not in its host; unset: where an endpoint is named."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Anything else that the clients of stores take, as delta-rs names it; GCS, Azure and HDFS are set by these."""

    def with_environment(self, environment: Mapping[str, str] | None = None) -> Storage:
        """The same, with what it leaves out filled from the variables that AWS's own tools read."""
        told = os.environ if environment is None else environment

        def first(*names: str) -> str | None:
            return next((told[name] for name in names if told.get(name)), None)

        found = replace(
            self,
            endpoint=self.endpoint or first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
            region=self.region or first("AWS_REGION", "AWS_DEFAULT_REGION"),
        )
        if self.access_key is None:
            found = replace(
                found,
                access_key=first("AWS_ACCESS_KEY_ID"),
                secret_key=first("AWS_SECRET_ACCESS_KEY"),
                session_token=first("AWS_SESSION_TOKEN"),
            )
        return found

    @property
    def in_path(self) -> bool:
        """Whether the bucket is in the path of a request."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    @property
    def effective_region(self) -> str | None:
        """The region; a server at an endpoint of its own that names none has the usual one."""
        return self.region or (_DEFAULT_REGION if self.endpoint is not None else None)

    def filesystem(self, uri: str, patience: Patience = Patience()) -> tuple[Any, str]:
        """The file system of a place and its path there, for those who go by fsspec. None keeps a listing."""
        if is_object_uri(uri):
            scheme, _, path = uri.partition("://")
            return object_filesystem(scheme.lower(), self.for_delta(), patience), path.rstrip("/")
        found: tuple[Any, str] = url_to_fs(uri, use_listings_cache=False)
        return found

    def for_delta(self) -> dict[str, str]:
        """The `storage_options` of delta-rs, and of our own client: both are the same `object_store`."""
        return client_settings.for_object_store(self)

    def for_delta_at(self, uri: str) -> dict[str, str] | None:
        """The same for one table; none for one that needs no way in."""
        return self.for_delta() if is_object_uri(uri) else None

    def for_iceberg(self, warehouse: str) -> dict[str, str]:
        """The properties of pyiceberg's file access; none for a warehouse that needs no way in."""
        if is_s3_uri(warehouse):
            return client_settings.for_pyiceberg(self)
        return client_settings.for_pyiceberg_elsewhere(self) if is_object_uri(warehouse) else {}

    def for_spark(self, buckets: Sequence[str] | None = None) -> dict[str, str]:
        """Spark's settings: `s3://` is S3A's. For some buckets of S3, for none, or for all."""
        return client_settings.for_spark(self, buckets)


def object_filesystem(scheme: str, options: dict[str, str], patience: Patience = Patience()) -> ObjectFileSystem:
    """The client of a store by its scheme."""
    kind = HdfsFileSystem if scheme in HDFS_SCHEMES else ObjectFileSystem
    return kind(scheme, options, patience)


def is_object_uri(uri: str) -> bool:
    """Whether a place is in a store that this package speaks to itself: one of objects, or HDFS."""
    return _scheme(uri) in OBJECT_SCHEMES


def is_s3_uri(uri: str) -> bool:
    """Whether a place is in S3, or in a server that speaks like it."""
    return _scheme(uri) in S3_SCHEMES


def is_hdfs_uri(uri: str) -> bool:
    """Whether a place is in HDFS."""
    return _scheme(uri) in HDFS_SCHEMES


def is_local(uri: str) -> bool:
    """Whether a place is on a disk of this machine."""
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> Path | None:
    """A place on a local disk as a path; none where it is somewhere else."""
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    return Path(uri) if is_local(uri) else None


def _scheme(uri: str) -> str:
    scheme, found, _ = uri.partition("://")
    return scheme.lower() if found else ""


def bucket_of(uri: str) -> str:
    """The bucket or container of a place, with its scheme."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
