"""A pipeline on a cluster: which of its places every machine must see, and what the executors are sent.

Nothing assumes that driver and executors share a disk. A place that a task writes or reads must be seen from every
machine; one that only the driver uses may be on its disk, as long as the driver stays here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydantic import BaseModel

from penstock import config as cfg
from penstock.assembly.reaching import places_of
from penstock.assembly.user_code import code_to_ship
from penstock.config.fields import is_uri
from penstock.config.operation import ClusterConfig
from penstock.errors import MissingError
from penstock.spark.placement import LOCAL, DeployMode, Placement
from penstock.spark.security import ENABLED, is_unauthenticated
from penstock.spark.shipping import Shipping
from penstock.spark.submitted import is_submitted, submitted_setting
from penstock.storage.storage import is_hdfs_uri


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    location: str
    by_tasks: bool
    """Whether executors read or write there; otherwise only the driver does."""


def placement_of(config: cfg.PipelineConfig, deploy_mode: DeployMode = "client") -> Placement:
    """Where the executors of a run are: as given to spark-submit, else as in the file."""
    asked = cfg.reveal(config.spark).get("spark.master", LOCAL)
    placement = Placement((submitted_setting("spark.master") if is_submitted() else None) or asked, deploy_mode)
    if placement.kind == "other":
        raise MissingError(
            "MASTER_UNKNOWN",
            f"running {config.name}: unknown Spark master",
            context={"spark.master": placement.master},
            hint="expected spark://HOST:PORT, k8s://URL, yarn or local[*]",
        )
    return placement


def shipping_of(config: cfg.PipelineConfig) -> Shipping:
    """The files to ship to executors on other machines."""
    cluster = config.cluster or ClusterConfig()
    placement = placement_of(config)
    usual = "installed" if is_submitted() or placement.kind == "kubernetes" else "pack"
    return Shipping(
        packed=(cluster.environment or usual) == "pack",
        forced=cluster.environment == "pack",
        python=cluster.python,
        packages=(*cluster.packages, *(["hdfs-native"] if any(map(is_hdfs_uri, places_of(config))) else [])),
        code=(code,) if (code := code_to_ship(config)) is not None else (),
    )


def open_ports(config: cfg.PipelineConfig, placement: Placement) -> list[str]:
    """A warning about a cluster without authentication."""
    said = submitted_setting(ENABLED) if is_submitted() else None
    settings = {**cfg.reveal(config.spark), **({ENABLED: said} if said is not None else {})}
    if placement.is_local or not is_unauthenticated(placement, settings):
        return []
    return [
        f"spark.authenticate is not true: anyone who can reach the ports of {placement.master} can run code as its "
        "user; set it, and spark.authenticate.secret by reference unless the cluster creates one"
    ]


def check_places(config: cfg.PipelineConfig, placement: Placement) -> list[str]:
    """Stop if a machine of the cluster cannot access a location that it needs; returns notices."""
    if placement.shares_disk:
        return []
    shared = [PurePath(path) for path in (config.cluster.shared_paths if config.cluster is not None else ())]
    local = [place for place in _places(config) if not _is_seen(place.location, shared)]
    refused = [place for place in local if place.by_tasks or placement.deploy_mode == "cluster"]
    if refused:
        raise MissingError(
            "PATH_NOT_SHARED",
            f"the machines of {placement.master} cannot access this machine's disk",
            context={place.name: place.location for place in refused},
            hint="move them to storage that every machine can reach, such as s3://bucket/path\n"
            "or, for a network file system mounted on all of them, set: cluster: {shared_paths: [/mnt/...]}",
        )
    return [
        f"{place.name} is on this machine's disk: this pipeline can only continue from this machine ({place.location})"
        for place in local
    ]


def _is_seen(location: str, shared: list[PurePath]) -> bool:
    if is_uri(location) and not location.startswith("file://"):
        return True
    path = PurePath(location.removeprefix("file://"))
    return any(path.is_relative_to(folder) for folder in shared)


def _places(config: cfg.PipelineConfig) -> Iterator[_Place]:
    if config.quarantine is not None and config.quarantine.table is not None:
        yield _Place("quarantine.table", config.quarantine.table, True)
    for index, sink in enumerate(config.sinks):
        yield from _places_of_sink(f"sinks[{index}]", sink)
    yield from _named_in("source.options", cfg.reveal(config.source.options))
    yield from _registry_files("", config)
    stateful = any(map(cfg.remembers, (step for flow in cfg.flows(config) for step in flow.transforms)))
    staged = config.quarantine is not None and config.quarantine.topic is not None
    yield _Place("checkpoint", config.checkpoint, stateful or staged)
    if config.checkpoint_backup is not None and config.checkpoint_backup.to is not None:
        yield _Place("checkpoint_backup.to", config.checkpoint_backup.to, False)
    for name, table in config.tables.items():
        # One that fits in memory is read by the driver and goes to the tasks from there; a larger one is read by them.
        if isinstance(table, cfg.IcebergTableConfig):
            yield _Place(f"tables.{name}.warehouse", table.warehouse, True)
        elif not isinstance(table, cfg.PostgresTableConfig):
            yield _Place(f"tables.{name}.path", table.path, _is_large(table.path, table.memory))


def _places_of_sink(at: str, sink: cfg.SinkConfig) -> Iterator[_Place]:
    match sink:
        case cfg.FolderSinkConfig():
            yield _Place(f"{at}.path", sink.path, True)
        case cfg.IcebergSinkConfig():
            # To a REST catalog a warehouse may be a name, which the file's folder has made a path.
            if sink.catalog.type != "rest" or is_uri(sink.warehouse):
                yield _Place(f"{at}.warehouse", sink.warehouse, True)
            if sink.catalog.type == "sqlite":
                uri = sink.catalog.uri.get_secret_value() if sink.catalog.uri is not None else sink.warehouse
                yield _Place(f"{at}.catalog", uri.removeprefix("sqlite:///"), False)
        case cfg.KafkaSinkConfig():
            yield from _named_in(f"{at}.options", cfg.reveal(sink.options))


def _named_in(at: str, options: Mapping[str, str]) -> Iterator[_Place]:
    """The files that a client's options name, which a task would open."""
    for name, value in options.items():
        if name.endswith(".location"):
            yield _Place(f"{at}.{name}", value, True)


def _registry_files(at: str, value: object) -> Iterator[_Place]:
    """The certificate files of registries, which tasks also query. Those of `security` are shipped as text."""
    if isinstance(value, cfg.RegistryConfig):
        for name in ("ca_file", "certificate_file", "key_file"):
            if (file := getattr(value, name)) is not None:
                yield _Place(f"{at}.{name}", file, True)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _registry_files(f"{at}.{name}".lstrip("."), getattr(value, name))
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from _registry_files(f"{at}[{index}]", inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _registry_files(f"{at}.{key}", inner)


def _is_large(path: str, memory: int) -> bool:
    here = Path(path.removeprefix("file://"))
    files = here.rglob("*") if here.is_dir() else (here,)
    return sum(file.stat().st_size for file in files if file.is_file()) > memory
