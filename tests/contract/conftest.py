from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import NAMES, SERVICES, SinkKit, make_kit


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.services] if name in SERVICES else []) for name in NAMES])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return make_kit(request.param, tmp_path, request)


_ABOUT_COMMITS = ("crash", "same_token", "two_drivers", "without_an_answer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Through Spark a commit takes seconds: by default only merges and crashes go that way, `-m long` has all."""
    for item in items:
        through_spark = "[delta_merge_spark" in item.nodeid and item.path.stem != "test_merges"
        if through_spark and not any(word in item.name for word in _ABOUT_COMMITS):
            item.add_marker(pytest.mark.long)
