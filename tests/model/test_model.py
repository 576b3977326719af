"""The commit protocol, explored with the product's own `decide` and `Position.after`.

A failure prints the shortest path that leads to it.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.model.explore import explore
from tests.model.mutations import MUTATIONS
from tests.model.operators import WAYS
from tests.model.runs import DONE
from tests.model.scenarios import DEEP, DEFAULT
from tests.model.world import Rules

from penstock.model import Verdict

_events: Counter[str] = Counter()


@pytest.mark.parametrize("name", DEFAULT)
def test_records_whatever_happens_are_once_in_a_target_or_in_the_quarantine(name: str) -> None:
    found = explore(DEFAULT[name])
    _events.update(found.events)
    assert found.violation is None, str(found)
    assert found.events[DONE]


@pytest.mark.long
@pytest.mark.parametrize("name", DEEP)
def test_records_whatever_happens_more_often_are_once_in_a_target_or_in_the_quarantine(name: str) -> None:
    found = explore(DEEP[name])
    assert found.violation is None, str(found)


@pytest.mark.parametrize("name", MUTATIONS)
def test_rule_that_is_broken_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    assert explore(DEFAULT[mutation.scenario], mutation.rules).violation is not None


def test_rules_of_the_protocol_each_have_a_mutation() -> None:
    correct = Rules()
    switches = {name for name, value in vars(correct).items() if isinstance(value, bool)}
    broken = {name for one in MUTATIONS.values() for name in switches if getattr(one.rules, name) is False}
    assert broken == switches


def test_error_codes_are_all_met_and_have_ways_out() -> None:
    if not _events:
        pytest.skip("needs the explorations of this file")
    codes = set(_events) - {DONE}
    assert codes == set(WAYS)
    contradictions = {verdict.value for verdict in Verdict if verdict not in (Verdict.NEXT, Verdict.COMMITTED)}
    assert contradictions <= codes
