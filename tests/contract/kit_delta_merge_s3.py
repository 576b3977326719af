"""Delta merge in the driver, on S3, in the contract suite."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.kit_delta_merge import BY_ID, DeltaMergeKit
from tests.contract.kit_delta_s3 import DeltaS3Kit
from tests.contract.kits import Evolve

from penstock.model import MergeRules
from penstock.sinks.delta import DeltaMergeSink


class DeltaMergeS3Kit(DeltaMergeKit):
    __init__ = DeltaS3Kit.__init__  # type: ignore[assignment]
    rows = DeltaS3Kit.rows
    staged = DeltaS3Kit.staged

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> DeltaMergeSink:
        return DeltaMergeSink(
            pipeline,
            name,
            self.uri,  # type: ignore[attr-defined]
            rules or BY_ID,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
            storage=self.server.storage,  # type: ignore[attr-defined]
        )
