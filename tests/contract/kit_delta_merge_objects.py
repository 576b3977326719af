"""Delta merge in the driver, in an object store, in the contract suite."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.kit_delta_merge import BY_ID, DeltaMergeKit
from tests.contract.kit_delta_objects import DeltaObjectsKit
from tests.contract.kits import Evolve

from penstock.model import MergeRules
from penstock.sinks.delta import DeltaMergeSink


class DeltaMergeObjectsKit(DeltaMergeKit):
    __init__ = DeltaObjectsKit.__init__  # type: ignore[assignment]
    rows = DeltaObjectsKit.rows
    staged = DeltaObjectsKit.staged
    trace = DeltaObjectsKit.trace

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
