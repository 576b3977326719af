from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import NAMES, SERVICES, SinkKit, make_kit


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.services] if name in SERVICES else []) for name in NAMES])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return make_kit(request.param, tmp_path, request)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Through Spark a commit takes seconds: by default only what is about commits goes that way, `-m long` has all."""
    for item in items:
        if "[delta_merge_spark" in item.nodeid and not item.path.stem.endswith(("tokens", "merges")):
            item.add_marker(pytest.mark.long)
