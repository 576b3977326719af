"""Kafka to a folder of JSON lines while the driver is killed: a plain listing shows every row once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.targets import JSONL
from tests.crash.trial import POINTS

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]


def test_jsonl_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(JSONL, rows=100_000)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())
