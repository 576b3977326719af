"""Kafka to Iceberg while the driver is killed: nothing lost, nothing twice, whether rows are appended or merged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.targets import ICEBERG, ICEBERG_MERGE
from tests.crash.trial import POINTS

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]


def test_iceberg_append_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(ICEBERG, rows=100_000)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())


def test_iceberg_merge_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(ICEBERG_MERGE, rows=100_000, max_offsets=2_500)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())
