"""How a pipeline reaches its brokers and its object stores, by its file."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import backups_of
from penstock.config import (
    FolderSinkConfig,
    KafkaSourceConfig,
    PipelineConfig,
    PostgresTableConfig,
    SecurityConfig,
    StorageConfig,
    reveal,
)
from penstock.config.tables import IcebergTableConfig
from penstock.kafka import KafkaSettings, Subscription, read_security
from penstock.model.pem import DatabaseTls, read_pem
from penstock.storage import Storage, bucket_of, is_object_uri
from penstock.storage.storage import is_s3_uri


def settings_of(source: KafkaSourceConfig) -> KafkaSettings:
    """The settings of every client that a source needs."""
    return KafkaSettings(source.brokers, reveal(source.options), read_security(source.security, "source.security"))


def subscription_of(source: KafkaSourceConfig) -> Subscription:
    """The topics and partitions that a source reads."""
    return Subscription(source.topics or (), source.pattern, source.assign)


def database_tls(security: SecurityConfig | None, where: str) -> DatabaseTls | None:
    """The TLS settings of a database, with files read; None if only its url has them."""
    if security is None:
        return None
    password = security.key_password.get_secret_value() if security.key_password is not None else None
    files = (security.ca_file, security.certificate_file, security.key_file)
    return DatabaseTls(security.tls, read_pem(where, *files, password))


def storage_of(config: PipelineConfig) -> Storage:
    """Access to every location in the file: its settings, completed from the environment."""
    told = config.storage or StorageConfig()
    keys = (told.access_key, told.secret_key, told.session_token)
    access, secret, token = (key.get_secret_value() if key is not None else None for key in keys)
    options = tuple(sorted(reveal(told.options).items()))
    return Storage(told.endpoint, told.region, access, secret, token, told.path_style, options).with_environment()


def places_of(config: PipelineConfig) -> Iterator[str]:
    """Every place that the file names: the checkpoint and its backups, tables, files."""
    yield config.checkpoint
    if config.checkpoint_backup is not None:
        yield backup_place_of(config)
    if config.quarantine is not None and config.quarantine.table is not None:
        yield config.quarantine.table
    for sink in config.sinks:
        if sink.folder is not None:
            yield sink.folder
    for table in config.tables.values():
        if isinstance(table, IcebergTableConfig):
            yield table.warehouse
        elif not isinstance(table, PostgresTableConfig):
            yield table.path


def committed_places_of(config: PipelineConfig) -> Iterator[str]:
    """The locations where a commit or lease is a conditional write; an Iceberg table uses its catalog instead."""
    yield config.checkpoint
    if config.quarantine is not None and config.quarantine.table is not None:
        yield config.quarantine.table
    for sink in config.sinks:
        if isinstance(sink, FolderSinkConfig):
            yield sink.path


def backup_place_of(config: PipelineConfig) -> str:
    """The backup folder of a checkpoint: as in the file, or next to the checkpoint."""
    asked = config.checkpoint_backup
    return (asked.to if asked is not None else None) or backups_of(config.checkpoint)


def checkpoint_of(config: PipelineConfig) -> SparkCheckpoint:
    """The pipeline's checkpoint."""
    return SparkCheckpoint(config.checkpoint, storage_of(config))


def store_settings_of(config: PipelineConfig) -> dict[str, str]:
    """The settings of Spark that open the buckets of a file, and no others: for one among several pipelines."""
    places = [place for place in places_of(config) if is_object_uri(place)]
    buckets = dict.fromkeys(bucket_of(place).partition("://")[2] for place in places if is_s3_uri(place))
    return storage_of(config).for_spark(tuple(buckets)) if places else {}


def spark_settings_of(config: PipelineConfig) -> dict[str, str]:
    """Spark's settings: the file's own, after those that open its object stores."""
    places = [place for place in places_of(config) if is_object_uri(place)]
    found = storage_of(config).for_spark(None if any(map(is_s3_uri, places)) else ()) if places else {}
    return {**found, **reveal(config.spark)}
