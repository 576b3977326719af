from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import ELSEWHERE, NAMES, ON_S3, SERVICES, SinkKit, make_kit


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.services] if name in SERVICES else []) for name in NAMES])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return make_kit(request.param, tmp_path, request)


# What a kit that commits through Spark, or to a store, has of its own; the rest it shares with one that does not.
_SHORT: dict[str, tuple[str, ...]] = {
    "[delta_merge_spark": ("crash_after", "without_an_answer"),
    "[iceberg_merge": ("crash_after", "without_an_answer", "update_it_and_others", "when_newer", "tombstones_alone"),
    **{f"[{name}": ("crash", "same_token", "two_drivers", "without_an_answer") for name in ON_S3},
    **{f"[{name}": () for name in ELSEWHERE},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Through Spark a commit takes seconds, and to a store a moment: `make long` has all."""
    for item in items:
        for kit, short in _SHORT.items():
            if kit in item.nodeid and not any(words in item.name for words in short):
                item.add_marker(pytest.mark.long)
