from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.kits import KITS, SinkKit


@pytest.fixture(params=sorted(KITS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    return KITS[request.param](tmp_path)
