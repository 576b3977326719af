"""The same endpoint and credentials in the words of each client: delta-rs, pyiceberg, Spark's S3A."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.storage import Storage

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


def for_object_store(storage: Storage) -> dict[str, str]:
    """As `object_store` names them. A commit is a conditional put, which no lock beside the store has to guard."""
    found = {"aws_conditional_put": "etag"}
    if storage.endpoint is not None:
        found["aws_endpoint"] = storage.endpoint
        if storage.endpoint.startswith("http://"):
            found["allow_http"] = "true"
    if storage.effective_region is not None:
        found["aws_region"] = storage.effective_region
    if storage.access_key is not None and storage.secret_key is not None:
        found |= {"aws_access_key_id": storage.access_key, "aws_secret_access_key": storage.secret_key}
        if storage.session_token is not None:
            found["aws_session_token"] = storage.session_token
    if storage.endpoint is not None or storage.path_style is not None:
        found["aws_virtual_hosted_style_request"] = str(not storage.in_path).lower()
    return {**found, **dict(storage.options)}


def for_pyiceberg(storage: Storage) -> dict[str, str]:
    """As pyiceberg names them for its Arrow file access."""
    found: dict[str, str] = {}
    if storage.endpoint is not None:
        found["s3.endpoint"] = storage.endpoint
    if storage.effective_region is not None:
        found["s3.region"] = storage.effective_region
    if storage.access_key is not None and storage.secret_key is not None:
        found |= {"s3.access-key-id": storage.access_key, "s3.secret-access-key": storage.secret_key}
        if storage.session_token is not None:
            found["s3.session-token"] = storage.session_token
    if not storage.in_path and storage.endpoint is not None:
        found["s3.force-virtual-addressing"] = "true"
    found |= {"s3.connect-timeout": "5", "s3.request-timeout": "30"}
    return found


def for_pyiceberg_elsewhere(storage: Storage) -> dict[str, str]:
    """The same for a store that is not S3: there pyiceberg goes through our own client, with its options.

    Its own for Azure is not among what is installed, and Arrow's does not take the container and account of a path.
    """
    options = {f"{OPTION}{name}": value for name, value in for_object_store(storage).items()}
    return {"py-io-impl": "penstock.storage.iceberg_io.StoreFileIO", **options}


def for_spark(storage: Storage, buckets: Sequence[str] | None = None) -> dict[str, str]:
    """As S3A and its siblings name them; also for `s3://`, which Hadoop has no file system for by itself.

    For these buckets of S3 alone, so that pipelines with other ways in may share an application; else for all.
    """
    elsewhere = _other_clouds(dict(storage.options))
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
        found |= {f"{where}.{name}": value for name, value in _s3a(storage).items()}
    return {**found, **elsewhere}


def is_hadoop_option(name: str) -> bool:
    """Whether an option is one of Hadoop's own settings, which HDFS is reached by."""
    return name.startswith(("dfs.", "fs.", "hadoop."))


def _s3a(storage: Storage) -> dict[str, str]:
    found = {"aws.credentials.provider": ",".join(_ROLES)}
    if storage.endpoint is not None:
        found["endpoint"] = storage.endpoint
        found["connection.ssl.enabled"] = str(storage.endpoint.startswith("https://")).lower()
    if storage.effective_region is not None:
        found["endpoint.region"] = storage.effective_region
    if storage.in_path:
        found["path.style.access"] = "true"
    if storage.access_key is not None and storage.secret_key is not None:
        temporary = storage.session_token is not None
        kind = "TemporaryAWSCredentialsProvider" if temporary else "SimpleAWSCredentialsProvider"
        found |= {
            "aws.credentials.provider": f"{_PROVIDERS}.{kind}",
            "access.key": storage.access_key,
            "secret.key": storage.secret_key,
        }
        if storage.session_token is not None:
            found["session.token"] = storage.session_token
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
