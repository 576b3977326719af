"""What the contract suite needs to know of a sink: how to make one, read it back, and break it.

A sink joins the suite by a kit of its own, in `kit_<name>.py`, and by its name in `NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import pytest

from penstock.contracts import Sink
from penstock.model import MergeRules

Rows = list[dict[str, Any]]
Evolve = Literal["fail", "ignore", "add_columns", "widen"]


class SinkKit(Protocol):
    """One target, fresh for each test; every sink that it makes writes there. Made of a folder and the test."""

    commits_in_task: bool
    """What a slot stages is committed when its stage is finished."""
    partitions: bool
    """Takes `partition_by`."""
    evolves: bool
    """Takes `evolve`."""
    widens: bool
    """With `evolve: widen` its table is given wider types."""
    merges: bool
    """Takes `rules`. Without them its sinks merge by `id`, or append."""
    replaces: bool
    """Its sinks can replace the rows of a range by their coordinates, where they do not merge."""

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> Sink:
        """A sink that is not prepared yet; one that commits through SQL has its engine."""
        ...

    def sink_losing_answer(self, *, landed: bool) -> Sink:
        """A sink whose first commit ends in an error: after it landed, or before."""
        ...

    def sink_overtaken(self, overtake: Callable[[], None]) -> Sink:
        """A sink that calls `overtake` between its look at the target and its first commit."""
        ...

    def rows(self) -> Rows:
        """What a reader that shares no code with the sink sees. `id`, `note` and `item` must be there."""
        ...

    def staged(self) -> set[str]:
        """Names of everything that lies staged or committed at the target; empty where nothing has a name."""
        ...

    def trace(self) -> object:
        """All that is there, equal to an earlier answer only where nothing was made or changed since."""
        ...


STORES = ("s3", "azure", "hdfs")
"""The fixtures of object stores. Each kit of a table in one is there for all of them: `delta_s3`, `delta_azure`."""

ON_S3 = ("delta_s3", "delta_merge_s3", "iceberg_s3", "parquet_s3", "jsonl_s3")
ELSEWHERE = tuple(name.replace("_s3", f"_{store}") for name in ON_S3 for store in STORES[1:])

SERVICES = frozenset({"delta_merge_spark", "iceberg_merge", "kafka", "postgres", *ON_S3, *ELSEWHERE})
"""The kits that need Spark, a broker, a database or a store."""

NAMES = (
    "delta",
    "delta_merge",
    "delta_merge_spark",
    "iceberg",
    "iceberg_merge",
    "jsonl",
    "kafka",
    "parquet",
    "postgres",
    *ON_S3,
    *ELSEWHERE,
)


def kit_class(name: str) -> type[SinkKit]:
    """The kit `delta_merge` is the class `DeltaMergeKit` of the module `kit_delta_merge`; `delta_s3` is
    `DeltaObjectsKit` with the store `s3`."""
    begin, _, store = name.rpartition("_")
    name = f"{begin}_objects" if store in STORES else name
    module = import_module(f"tests.contract.kit_{name}")
    return cast(type[SinkKit], getattr(module, f"{name.title().replace('_', '')}Kit"))


def make_kit(name: str, folder: Path, request: pytest.FixtureRequest) -> SinkKit:
    """A kit by its name, for one test."""
    store = name.rpartition("_")[2]
    kind: Any = kit_class(name)
    return cast(SinkKit, kind(folder, request, *((store,) if store in STORES else ())))


def has_schema(kit: SinkKit | type[SinkKit]) -> bool:
    """Whether the target knows its columns. A topic, which alone is committed in tasks, takes any record."""
    return not kit.commits_in_task


def only_where(applies: Callable[[type[SinkKit]], bool]) -> pytest.MarkDecorator:
    """Marks a case, or a module's, as one for the kits to which it applies. For others it is not collected."""
    return pytest.mark.only_where.with_args(applies)


def files_below(folder: Path) -> set[tuple[str, int]]:
    """Every file and folder, with when it was changed."""
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")}
