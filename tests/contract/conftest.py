from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import ELSEWHERE, NAMES, SERVICES, SinkKit, kit_class, make_kit


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.services] if name in SERVICES else []) for name in NAMES])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return make_kit(request.param, tmp_path, request)


# What a kit that commits through Spark, or to a store, has of its own; the rest it shares with one that does not.
_COMMITS = ("crash_inside", "without_an_answer", "two_drivers_with_one_token")
_SHORT: dict[str, tuple[str, ...]] = {
    "[delta_merge_spark": (),
    "[iceberg_merge": (),
    "[delta_s3": _COMMITS,
    "[delta_merge_s3": ("crash_inside",),
    "[iceberg_s3": ("crash_inside", "landed_without_an_answer"),
    "[parquet_s3": _COMMITS,
    "[jsonl_s3": ("crash_inside",),
    **{f"[{name}": () for name in ELSEWHERE},
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_where: a case for the kits to which it applies")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Through Spark a commit takes seconds, and to a store a moment: `make long` has all."""
    items[:] = [item for item in items if _applies(item)]
    for item in items:
        for kit, short in _SHORT.items():
            if kit in item.nodeid and not any(words in item.name for words in short):
                item.add_marker(pytest.mark.long)


def _applies(item: pytest.Item) -> bool:
    conditions = [mark.args[0] for mark in item.iter_markers("only_where")]
    return not conditions or all(applies(kit_class(item.callspec.params["kit"])) for applies in conditions)  # type: ignore[attr-defined]
