"""Delta merge in the driver, by delta-rs, in the contract suite. It needs no Spark: it is given none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.contract.faults import lose_answer, overtake
from tests.contract.kit_delta import DeltaKit
from tests.contract.kits import Evolve

from penstock.model import MergeRules
from penstock.sinks.delta import DeltaMergeSink

BY_ID = MergeRules(keys=("id",))


class DeltaMergeKit(DeltaKit):
    merges = True
    replaces = False
    settings: dict[str, int] = {}

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
            str(self.path),
            rules or BY_ID,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
            **self.settings,
        )

    def sink_losing_answer(self, *, landed: bool) -> DeltaMergeSink:
        sink = self.sink()
        lose_answer(sink, "_merge", landed=landed)
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> DeltaMergeSink:
        sink = self.sink()
        overtake(sink, "_merge", overtaking)
        return sink
