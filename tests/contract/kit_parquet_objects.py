"""Parquet files in an object store, in the contract suite, read back by Arrow's own client as a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.kit_parquet import ParquetKit, read_folder
from tests.contract.kits import Evolve, Rows

from penstock.model import MergeRules
from penstock.sinks.parquet.sink import FolderSink


class ParquetObjectsKit(ParquetKit):
    commits_by = "_publish"
    settings: Mapping[str, Any] = {}

    def __init__(self, folder: Path, request: pytest.FixtureRequest, store: str) -> None:
        self.server = request.getfixturevalue(store)
        self.bucket = self.server.bucket()

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> FolderSink:
        return self.kind(
            pipeline,
            name,
            self.server.uri(self.bucket, "lake/files"),
            partition_by=partition_by,
            keep_coordinates=keep_coordinates,
            storage=self.server.storage,
            **self.settings,
        )

    def rows(self) -> Rows:
        return read_folder(f"{self.bucket}/lake/files", self.server.arrow())

    def staged(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.server.keys(self.bucket) if key.endswith(".parquet")}

    def trace(self) -> object:
        return sorted(self.server.keys(self.bucket))
