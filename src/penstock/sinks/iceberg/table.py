"""Which catalog a table is in, said once for both sides: pyiceberg on the driver, and Spark.

Both use the same catalog name, because a catalog in a database keeps it in its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.errors import MissingError
from penstock.storage import Storage

Kind = Literal["sqlite", "rest", "sql", "hive", "hadoop"]

_CLIENT_TYPES = {"sqlite": "sql", "sql": "sql", "rest": "rest", "hive": "hive"}
_SPARK_TYPES = {"sqlite": "jdbc", "sql": "jdbc", "rest": "rest", "hive": "hive", "hadoop": "hadoop"}
_DRIVERS = {"postgresql": "postgresql+psycopg"}


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """A catalog and how to reach it. The address and the properties may hold secrets, so `repr` leaves them out.

    `sqlite` without an address is a file beside the tables; `sql` takes a database URL (`postgresql://...`).
    """

    kind: Kind = "sqlite"
    uri: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "penstock"

    def client_properties(self, warehouse: str) -> dict[str, str]:
        """What pyiceberg's `load_catalog` takes. A Hadoop catalog has no such client."""
        found = {"type": _CLIENT_TYPES[self.kind], "warehouse": self._warehouse(warehouse)}
        if found["type"] == "sql":
            # A look makes no catalog; and a connection that the database closed meanwhile is noticed.
            found |= {"init_catalog_tables": "false", "pool_pre_ping": "true"}
        if self.kind == "sqlite":
            found["uri"] = f"sqlite:///{self.file(warehouse)}"
        elif self.uri is not None:
            parts = urlsplit(self.uri)
            driver = _DRIVERS.get(parts.scheme, parts.scheme) if self.kind == "sql" else parts.scheme
            found["uri"] = urlunsplit(parts._replace(scheme=driver))
        return {**found, **self.properties}

    def spark_settings(self, warehouse: str) -> dict[str, str]:
        """The `spark.sql.catalog.*` settings, for a session that has not used this catalog name yet."""
        found = {
            "type": _SPARK_TYPES[self.kind],
            "warehouse": self._warehouse(warehouse),
            # Spark keeps tables it has seen for half a minute, and would not see what pyiceberg commits.
            "cache-enabled": "false",
        }
        if self.kind == "sqlite":
            found["uri"] = f"jdbc:sqlite:{self.file(warehouse)}"
        elif self.kind == "sql" and self.uri is not None:
            found |= _jdbc(self.uri)
        elif self.uri is not None:
            found["uri"] = self.uri
        prefix = f"spark.sql.catalog.{self.name}"
        settings = {f"{prefix}.{key}": value for key, value in {**found, **self.properties}.items()}
        return {prefix: "org.apache.iceberg.spark.SparkCatalog", **settings}

    def _warehouse(self, warehouse: str) -> str:
        return warehouse if self.kind == "rest" else warehouse_uri(warehouse)  # to a REST catalog it may be a name

    def file(self, warehouse: str) -> Path:
        """Where a SQLite catalog is."""
        if self.uri is not None:
            return Path(self.uri.removeprefix("sqlite:///")).absolute()
        root = local_path(warehouse)
        if root is None:
            raise MissingError(
                "SINK_CATALOG_UNSUPPORTED",
                "the embedded SQLite catalog needs a warehouse on a local disk",
                context={"warehouse": warehouse},
                hint="name another catalog, or give the SQLite file by its uri",
            )
        return root / "catalog.db"


def warehouse_uri(warehouse: str) -> str:
    """The warehouse for both sides: a URI where it is a local path, so that maintenance compares alike."""
    root = local_path(warehouse)
    return warehouse.rstrip("/") if root is None else f"file://{root}"


def local_path(warehouse: str) -> Path | None:
    """The warehouse as an absolute local path, or none where it is somewhere else."""
    parts = urlsplit(warehouse)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in warehouse else Path(warehouse).absolute()


def _jdbc(uri: str) -> dict[str, str]:
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    address = parts.netloc.rpartition("@")[2]
    found = {"uri": f"jdbc:{urlunsplit(parts._replace(scheme=scheme, netloc=address))}"}
    if parts.username:
        found["jdbc.user"] = unquote(parts.username)
    if parts.password:
        found["jdbc.password"] = unquote(parts.password)
    return found


def open_catalog(
    kind: Kind, uri: str | None, properties: Mapping[str, str], warehouse: str, storage: Storage
) -> IcebergCatalog:
    """A catalog as a file names it, with the way in to the store that its warehouse is in."""
    return IcebergCatalog(kind, uri, {**storage.for_iceberg(warehouse), **properties})
