"""How object stores are reached: one value, translated into the settings of each client.

In: the file's `storage`, or nothing. Out: the settings of delta-rs, pyiceberg, Spark's S3A and our own file system, all
for the same endpoint and the same credentials. What is left out comes from the environment (`AWS_ENDPOINT_URL`,
`AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...), read once, on the driver; otherwise each client finds the role of its machine
by itself. The value pickles, and its `repr` has no secrets.
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
"""The prefix of options of our own client among the properties of a catalog."""

_S3A = "spark.hadoop.fs.s3a"
_PROVIDERS = "org.apache.hadoop.fs.s3a"
_ROLES = (
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    f"{_PROVIDERS}.auth.IAMInstanceCredentialsProvider",
)
_LOG_STORE = "io.penstock.storage.ConditionalLogStore"
_SPARK_PATIENCE = {
    # By default S3A retries for many minutes while a server is unavailable; a run retries itself, and says so.
    f"{_S3A}.connection.establish.timeout": "15s",
    f"{_S3A}.connection.timeout": "30s",
    f"{_S3A}.attempts.maximum": "4",
    f"{_S3A}.retry.limit": "4",
    f"{_S3A}.retry.throttle.limit": "8",
}


# Each of our fields as delta-rs and our own client, pyiceberg, and Hadoop's S3A name it.
_NAMES = {
    "endpoint": ("aws_endpoint", "s3.endpoint", "endpoint"),
    "region": ("aws_region", "s3.region", "endpoint.region"),
    "access_key": ("aws_access_key_id", "s3.access-key-id", "access.key"),
    "secret_key": ("aws_secret_access_key", "s3.secret-access-key", "secret.key"),
    "session_token": ("aws_session_token", "s3.session-token", "session.token"),
}
_OF_DELTA, _OF_ICEBERG, _OF_S3A = range(3)


@dataclass(frozen=True, slots=True)
class Storage:
    """How object stores are reached. One for all of a pipeline's places."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    """Whether the bucket is in the path of a request, not in its host; by default if an endpoint is named."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Any other client option, as delta-rs names it; GCS, Azure and HDFS are configured by these."""

    def with_environment(self, environment: Mapping[str, str] | None = None) -> Storage:
        """The same, with missing fields filled from the variables that AWS's own tools read."""
        variables = os.environ if environment is None else environment

        def first(*names: str) -> str | None:
            return next((variables[name] for name in names if variables.get(name)), None)

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
        """The region; by default `us-east-1` if an endpoint is named."""
        return self.region or (_DEFAULT_REGION if self.endpoint is not None else None)

    def filesystem(self, uri: str, patience: Patience = Patience()) -> tuple[Any, str]:
        """The fsspec file system of a place, and the path in it. None caches listings."""
        if is_object_uri(uri):
            scheme, _, path = uri.partition("://")
            return object_filesystem(scheme.lower(), self.for_delta(), patience), path.rstrip("/")
        found: tuple[Any, str] = url_to_fs(uri, use_listings_cache=False)
        return found

    def for_delta(self) -> dict[str, str]:
        """The `storage_options` of delta-rs, and of our own client: both are the same `object_store`.

        A commit is a conditional put, so no external lock is needed.
        """
        found = {"aws_conditional_put": "etag", **self._named_for(_OF_DELTA)}
        if self.endpoint is not None and self.endpoint.startswith("http://"):
            found["allow_http"] = "true"
        if self.endpoint is not None or self.path_style is not None:
            found["aws_virtual_hosted_style_request"] = str(not self.in_path).lower()
        return {**found, **dict(self.options)}

    def for_delta_at(self, uri: str) -> dict[str, str] | None:
        """The same for one table; none for one on a local disk."""
        return self.for_delta() if is_object_uri(uri) else None

    def for_iceberg(self, warehouse: str) -> dict[str, str]:
        """The properties of pyiceberg's file access; none for a warehouse on a local disk.

        For stores other than S3 pyiceberg uses our own client: its own for Azure is not installed, and Arrow's does not
        take the container and account of a path.
        """
        if is_s3_uri(warehouse):
            return self._for_pyiceberg()
        if not is_object_uri(warehouse):
            return {}
        options = {f"{OPTION}{name}": value for name, value in self.for_delta().items()}
        return {"py-io-impl": "penstock.storage.iceberg_io.StoreFileIO", **options}

    def for_spark(self, buckets: Sequence[str] | None = None) -> dict[str, str]:
        """The settings of S3A and its siblings; also for `s3://`, for which Hadoop has no file system of its own.

        They apply to these S3 buckets only, as pipelines with other settings may share an application; else to all.
        """
        elsewhere = _other_clouds(dict(self.options))
        if buckets is not None and not buckets:
            return elsewhere
        found = {
            "spark.hadoop.fs.s3.impl": f"{_PROVIDERS}.S3AFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.s3.impl": f"{_PROVIDERS}.S3A",
            # Delta's own checks whether a version exists and then puts it: safe for a single driver only.
            **{f"spark.delta.logStore.{scheme}.impl": _LOG_STORE for scheme in ("s3", "s3a")},
            **_SPARK_PATIENCE,
        }
        for where in [_S3A] if buckets is None else [f"{_S3A}.bucket.{bucket}" for bucket in buckets]:
            found |= {f"{where}.{name}": value for name, value in self._for_s3a().items()}
        return {**found, **elsewhere}

    def _for_pyiceberg(self) -> dict[str, str]:
        found = {"s3.connect-timeout": "5", "s3.request-timeout": "30", **self._named_for(_OF_ICEBERG)}
        if not self.in_path and self.endpoint is not None:
            found["s3.force-virtual-addressing"] = "true"
        return found

    def _for_s3a(self) -> dict[str, str]:
        found = {"aws.credentials.provider": ",".join(_ROLES), **self._named_for(_OF_S3A)}
        if self.endpoint is not None:
            found["connection.ssl.enabled"] = str(self.endpoint.startswith("https://")).lower()
        if self.in_path:
            found["path.style.access"] = "true"
        if self.access_key is not None and self.secret_key is not None:
            kind = "SimpleAWSCredentialsProvider" if self.session_token is None else "TemporaryAWSCredentialsProvider"
            found["aws.credentials.provider"] = f"{_PROVIDERS}.{kind}"
        return found

    def _named_for(self, client: int) -> dict[str, str]:
        values = {"endpoint": self.endpoint, "region": self.effective_region}
        if self.access_key is not None and self.secret_key is not None:
            keys = {"access_key": self.access_key, "secret_key": self.secret_key}
            values |= {**keys, "session_token": self.session_token}
        return {_NAMES[name][client]: value for name, value in values.items() if value is not None}


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
    """Whether a place is in a store with a client of this package: an object store, or HDFS."""
    return _scheme(uri) in OBJECT_SCHEMES


def is_s3_uri(uri: str) -> bool:
    """Whether a place is in S3, or in an S3-compatible store."""
    return _scheme(uri) in S3_SCHEMES


def is_hdfs_uri(uri: str) -> bool:
    """Whether a place is in HDFS."""
    return _scheme(uri) in HDFS_SCHEMES


def is_local(uri: str) -> bool:
    """Whether a place is on a disk of this machine."""
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> Path | None:
    """A place on a local disk as a path; none if it is elsewhere."""
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
