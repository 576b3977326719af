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

from penstock.storage.hdfs import HdfsFileSystem
from penstock.storage.objects import ObjectFileSystem
from penstock.storage.stores import Patience, is_hadoop_option

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
HDFS_SCHEMES = frozenset({"hdfs"})
OBJECT_SCHEMES = S3_SCHEMES | HDFS_SCHEMES | {"gs", "gcs", "abfs", "abfss"}
_DEFAULT_REGION = "us-east-1"
OPTION = "penstock.store."
"""Before the name of an option of our own client, where it stands among the properties of a catalog."""

_S3A = "spark.hadoop.fs.s3a"
_PROVIDERS = "org.apache.hadoop.fs.s3a"
_ROLES = (
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    f"{_PROVIDERS}.auth.IAMInstanceCredentialsProvider",
)
_LOG_STORE = "io.penstock.storage.ConditionalLogStore"
_SPARK_PATIENCE = {
    # By default S3A goes on for many minutes with a server that is away; a run tries again itself, and says so.
    f"{_S3A}.connection.establish.timeout": "15s",
    f"{_S3A}.connection.timeout": "30s",
    f"{_S3A}.attempts.maximum": "4",
    f"{_S3A}.retry.limit": "4",
    f"{_S3A}.retry.throttle.limit": "8",
}


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
        """The `storage_options` of delta-rs, and of our own client: both are the same `object_store`.

        A commit is a conditional put, which no lock beside the store has to guard.
        """
        found = {"aws_conditional_put": "etag"}
        if self.endpoint is not None:
            found["aws_endpoint"] = self.endpoint
            if self.endpoint.startswith("http://"):
                found["allow_http"] = "true"
        if self.effective_region is not None:
            found["aws_region"] = self.effective_region
        if self.access_key is not None and self.secret_key is not None:
            found |= {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
            if self.session_token is not None:
                found["aws_session_token"] = self.session_token
        if self.endpoint is not None or self.path_style is not None:
            found["aws_virtual_hosted_style_request"] = str(not self.in_path).lower()
        return {**found, **dict(self.options)}

    def for_delta_at(self, uri: str) -> dict[str, str] | None:
        """The same for one table; none for one that needs no way in."""
        return self.for_delta() if is_object_uri(uri) else None

    def for_iceberg(self, warehouse: str) -> dict[str, str]:
        """The properties of pyiceberg's file access; none for a warehouse that needs no way in.

        Where a store is not S3 pyiceberg goes through our own client, with its options: its own for Azure is not among
        what is installed, and Arrow's does not take the container and account of a path.
        """
        if is_s3_uri(warehouse):
            return self._for_pyiceberg()
        if not is_object_uri(warehouse):
            return {}
        options = {f"{OPTION}{name}": value for name, value in self.for_delta().items()}
        return {"py-io-impl": "penstock.storage.iceberg_io.StoreFileIO", **options}

    def for_spark(self, buckets: Sequence[str] | None = None) -> dict[str, str]:
        """As S3A and its siblings name them; also for `s3://`, which Hadoop has no file system for by itself.

        For these buckets of S3 alone, so that pipelines with other ways in may share an application; else for all.
        """
        elsewhere = _other_clouds(dict(self.options))
        if buckets is not None and not buckets:
            return elsewhere
        found = {
            "spark.hadoop.fs.s3.impl": f"{_PROVIDERS}.S3AFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.s3.impl": f"{_PROVIDERS}.S3A",
            # Delta's own looks whether a version is there and then puts it: safe for one driver alone.
            **{f"spark.delta.logStore.{scheme}.impl": _LOG_STORE for scheme in ("s3", "s3a")},
            **_SPARK_PATIENCE,
        }
        for where in [_S3A] if buckets is None else [f"{_S3A}.bucket.{bucket}" for bucket in buckets]:
            found |= {f"{where}.{name}": value for name, value in self._for_s3a().items()}
        return {**found, **elsewhere}

    def _for_pyiceberg(self) -> dict[str, str]:
        """As pyiceberg names them for its Arrow file access."""
        found: dict[str, str] = {}
        if self.endpoint is not None:
            found["s3.endpoint"] = self.endpoint
        if self.effective_region is not None:
            found["s3.region"] = self.effective_region
        if self.access_key is not None and self.secret_key is not None:
            found |= {"s3.access-key-id": self.access_key, "s3.secret-access-key": self.secret_key}
            if self.session_token is not None:
                found["s3.session-token"] = self.session_token
        if not self.in_path and self.endpoint is not None:
            found["s3.force-virtual-addressing"] = "true"
        found |= {"s3.connect-timeout": "5", "s3.request-timeout": "30"}
        return found

    def _for_s3a(self) -> dict[str, str]:
        found = {"aws.credentials.provider": ",".join(_ROLES)}
        if self.endpoint is not None:
            found["endpoint"] = self.endpoint
            found["connection.ssl.enabled"] = str(self.endpoint.startswith("https://")).lower()
        if self.effective_region is not None:
            found["endpoint.region"] = self.effective_region
        if self.in_path:
            found["path.style.access"] = "true"
        if self.access_key is not None and self.secret_key is not None:
            temporary = self.session_token is not None
            kind = "TemporaryAWSCredentialsProvider" if temporary else "SimpleAWSCredentialsProvider"
            found |= {
                "aws.credentials.provider": f"{_PROVIDERS}.{kind}",
                "access.key": self.access_key,
                "secret.key": self.secret_key,
            }
            if self.session_token is not None:
                found["session.token"] = self.session_token
        return found


def _other_clouds(options: dict[str, str]) -> dict[str, str]:
    found = {f"spark.hadoop.{name}": value for name, value in options.items() if is_hadoop_option(name)}
    if "google_service_account" in options:
        found["spark.hadoop.fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
        found["spark.hadoop.fs.gs.auth.service.account.json.keyfile"] = options["google_service_account"]
    account = options.get("azure_storage_account_name")
    if account is not None:
        host = f"{account}.dfs.core.windows.net"
        if "azure_storage_account_key" in options:
            found[f"spark.hadoop.fs.azure.account.key.{host}"] = options["azure_storage_account_key"]
        if "azure_storage_sas_key" in options:
            found[f"spark.hadoop.fs.azure.account.auth.type.{host}"] = "SAS"
            found[f"spark.hadoop.fs.azure.sas.fixed.token.{host}"] = options["azure_storage_sas_key"]
    return found


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
