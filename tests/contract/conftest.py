from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import NAMES, SERVICES, SinkKit, make_kit


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.services] if name in SERVICES else []) for name in NAMES])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return make_kit(request.param, tmp_path, request)
