from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import NAMES, ON_S3, SERVICES, SinkKit, make_kit


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.services] if name in SERVICES else []) for name in NAMES])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return make_kit(request.param, tmp_path, request)


_ABOUT_COMMITS = ("crash", "same_token", "two_drivers", "without_an_answer")
# What a kit that commits through Spark, or to a store, has of its own; the rest it shares with one that does not.
_THROUGH_SPARK: dict[str, set[str]] = {
    "[delta_merge_spark": set(),
    "[iceberg_merge": {"test_merges"},
    **{f"[{name}": set() for name in ON_S3},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Through Spark a commit takes seconds, and to a store a moment: by default only crashes and the merges of Iceberg
    go that way, `make long` has all."""
    for item in items:
        for kit, own in _THROUGH_SPARK.items():
            if kit in item.nodeid and item.path.stem not in own and not any(w in item.name for w in _ABOUT_COMMITS):
                item.add_marker(pytest.mark.long)
