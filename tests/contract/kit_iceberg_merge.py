"""Iceberg merge in the contract suite: written by Spark, read by pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.kit_iceberg import IcebergKit

from penstock.contracts import SqlEngine
from penstock.model import MergeRules
from penstock.sinks.iceberg import IcebergSink
from penstock.spark.sql import SparkSql

BY_ID = MergeRules(keys=("id",))


class IcebergMergeKit(IcebergKit):
    merges = True
    replaces = False

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.engine: SqlEngine = SparkSql(request.getfixturevalue("spark"))

    def sink(self, *given: Any, rules: MergeRules | None = None, **named: Any) -> IcebergSink:
        sink = super().sink(*given, rules=rules or BY_ID, **named)
        sink.use(self.engine)
        return sink
