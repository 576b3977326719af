"""Iceberg append in an object store, in the contract suite; the catalog is a SQLite file of this machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog
from tests.contract.kit_iceberg import TABLE, IcebergKit
from tests.contract.kits import Evolve, Rows

from penstock.config.sinks import IcebergCatalogConfig
from penstock.model import MergeRules
from penstock.sinks.iceberg import IcebergSink, open_catalog


class IcebergObjectsKit(IcebergKit):
    def __init__(self, folder: Path, request: pytest.FixtureRequest, store: str) -> None:
        self.server = request.getfixturevalue(store)
        self.bucket = self.server.bucket()
        self.uri = self.server.uri(self.bucket, "lake/ice")
        self.catalog = folder / "catalog.db"
        self.database = f"sqlite:///{self.catalog}"

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> IcebergSink:
        storage = self.server.storage
        return IcebergSink(
            pipeline,
            name,
            TABLE,
            self.uri,
            catalog=open_catalog(IcebergCatalogConfig(uri=SecretStr(self.database)), self.uri, storage),
            storage=storage,
            rules=rules,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
        )

    def rows(self) -> Rows:
        way_in = self.server.storage.for_iceberg(self.uri)
        catalog = SqlCatalog("penstock", uri=self.database, warehouse=self.uri, **way_in)
        return list(catalog.load_table(TABLE).scan().to_arrow().to_pylist())

    def staged(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.server.keys(self.bucket) if key.endswith(".parquet")}

    def trace(self) -> object:
        with sqlite3.connect(self.catalog) as catalog:
            names = [name for (name,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            entries = {name: catalog.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall() for name in names}
        return sorted(self.server.keys(self.bucket)), entries
