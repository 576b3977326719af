"""Steps with state into all five sinks while the driver is killed and events keep coming: what comes out is exact.

The rows are computed in plain Python from the same events. A batch that is run again begins from the state before it,
also where some sinks have it already and others have not.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.state_cases import CASES, WINDOWS, StateCase

pytestmark = [pytest.mark.services, pytest.mark.crash]


@pytest.mark.long
def test_windows_killed_in_the_first_batch_are_exact(state_trial: Any) -> None:
    """The slots of the topic have it, or some of them; no table has."""
    run = state_trial(WINDOWS)
    run.kill(["finished"], rows=1_200)
    run.prove(run.crashes.finish())


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_state_killed_again_and_again_gives_exact_tables(case: StateCase, state_trial: Any) -> None:
    """From within the first batch of all to the one without new records in which the last rows come out."""
    run = state_trial(case)
    run.kill(["offsets", "finished", "random", "committed", "random"], rows=600)
    run.end()
    run.crashes.kill_at("between@pg", visit=2, whom="all")
    run.prove(run.crashes.finish())
