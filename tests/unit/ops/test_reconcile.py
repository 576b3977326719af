"""A checkpoint of batch 5 that is put back, against every way in which the sinks may stand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.committing import position_at

from penstock.checkpoint import Offsets
from penstock.errors import PenstockError
from penstock.model import BatchToken, Guarantee, OffsetRange, TopicPartition
from penstock.ops.checkpoint.restore import CheckpointPlace, Reconciled, reconcile
from penstock.preflight.standings import Standing

QUERY, OTHER = "query-1", "query-2"


def token(batch: int, *, query: str = QUERY, shift: int = 0, **more: int) -> BatchToken:
    """Batch N reads orders[0] from 10 N to 10 N + 10; `p1=7` adds a partition that begins at 0."""
    ranges = [OffsetRange("orders", 0, 10 * batch + shift, 10 * batch + 10)]
    ranges += [OffsetRange("orders", int(name[1:]), 0, end) for name, end in more.items()]
    return BatchToken("orders", query, batch, tuple(ranges))


def ends(batch: int) -> Offsets:
    return {TopicPartition("orders", 0): 10 * batch + 10}


def position(*, stateful: bool = False) -> CheckpointPlace:
    return CheckpointPlace("orders", QUERY, 5, ends(5), stateful)


def sink(name: str, held: BatchToken | None, **more: Any) -> Standing:
    begun = position_at(more.pop("begun", None))
    guarantee, torn = more.pop("guarantee", Guarantee.EXACTLY_ONCE), more.pop("torn", None)
    return Standing(name, guarantee, position_at(held), torn, begun=begun, **more)


@pytest.mark.parametrize(
    "sinks",
    [
        [],
        [sink("a", token(5)), sink("b", token(5))],
        [sink("a", token(5)), sink("quarantine", token(2), sparse=True)],
        [sink("a", token(5)), sink("quarantine", token(9, query=OTHER), sparse=True)],
    ],
)
def test_sinks_at_the_backup_leave_it_as_it_is(sinks: list[Standing]) -> None:
    assert reconcile(position(), sinks) == Reconciled()


@pytest.mark.parametrize("batch", [6, 9])
def test_sinks_all_ahead_bring_the_checkpoint_forward(batch: int) -> None:
    found = reconcile(position(), [sink("a", token(batch)), sink("b", token(batch))])
    assert (found.forward, found.done) == (token(batch), True)


@pytest.mark.parametrize("batch", [6, 9])
def test_sinks_one_batch_apart_have_the_newer_one_run_again(batch: int) -> None:
    found = reconcile(position(), [sink("a", token(batch)), sink("b", token(batch - 1))])
    assert (found.forward, found.done) == (token(batch), False)


def test_kafka_sink_torn_has_its_batch_run_again() -> None:
    torn = sink("out", token(8), torn="0: batch 9, 1: batch 8", begun=token(9))
    found = reconcile(position(), [torn, sink("a", token(8))])
    assert (found.forward, found.done) == (token(9), False)


def test_kafka_sink_torn_in_the_batch_that_the_others_have_is_run_again() -> None:
    torn = sink("out", token(8), torn="0: batch 9, 1: batch 8", begun=token(9))
    assert not reconcile(position(), [torn, sink("a", token(9))]).done


def test_quarantine_ahead_of_every_sink_has_its_batch_run_again() -> None:
    found = reconcile(position(), [sink("a", token(8)), sink("quarantine", token(9), sparse=True)])
    assert (found.forward, found.done) == (token(9), False)
    found = reconcile(position(), [sink("a", token(5)), sink("quarantine", token(6), sparse=True)])
    assert (found.forward, found.done) == (token(6), False)


def test_quarantine_behind_says_nothing() -> None:
    found = reconcile(position(), [sink("a", token(9)), sink("quarantine", token(7), sparse=True)])
    assert (found.forward, found.done) == (token(9), True)


def test_partition_that_is_new_in_the_batch_is_no_contradiction() -> None:
    assert reconcile(position(), [sink("a", token(6, p1=7))]).forward == token(6, p1=7)


def test_sinks_without_a_token_are_told() -> None:
    found = reconcile(
        position(), [sink("a", token(9)), sink("new", None), sink("loose", None, guarantee=Guarantee.AT_LEAST_ONCE)]
    )
    assert (found.forward, found.done) == (token(9), True)
    assert ["new" in found.notes[0], "loose" in found.notes[1]] == [True, True]


@pytest.mark.parametrize(
    ("sinks", "code"),
    [
        ([sink("a", token(4))], "TARGET_WENT_BACK"),
        ([sink("a", token(5)), sink("b", token(4))], "TARGET_WENT_BACK"),
        ([sink("a", token(9)), sink("b", token(7))], "SINKS_APART"),
        ([sink("a", token(5)), sink("quarantine", token(9), sparse=True)], "SINKS_APART"),
        ([sink("a", token(5, p1=3))], "SINK_TOKEN_MISMATCH"),
        ([sink("a", token(6, shift=3))], "SINK_TOKEN_MISMATCH"),
        ([sink("a", token(9)), sink("b", token(9, p1=3))], "SINK_TOKEN_MISMATCH"),
        ([sink("a", token(9, shift=3)), sink("b", token(8))], "SINK_TOKEN_MISMATCH"),
        ([sink("a", token(9, query=OTHER))], "SINK_HOLDS_OTHER_RUN"),
        ([sink("a", None, error="BROKER_UNREACHABLE")], "SINK_UNREACHABLE"),
    ],
)
@pytest.mark.parametrize("stateful", [False, True])
def test_sinks_that_no_checkpoint_agrees_with_are_refused(sinks: list[Standing], code: str, stateful: bool) -> None:
    with pytest.raises(PenstockError) as raised:
        reconcile(position(stateful=stateful), sinks)
    assert raised.value.code == code
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("nothing was changed")


def test_sink_that_cannot_be_asked_and_repeats_anyway_stops_nothing() -> None:
    loose = sink("loose", None, guarantee=Guarantee.AT_LEAST_ONCE, error="BROKER_UNREACHABLE")
    assert reconcile(position(), [loose]).forward is None


def test_state_one_batch_behind_is_run_again_whoever_has_it() -> None:
    found = reconcile(position(stateful=True), [sink("a", token(6))])
    assert (found.forward, found.done, found.again) == (token(6), False, (token(6),))


def test_state_further_behind_is_run_again_batch_by_batch_where_their_offsets_are_known() -> None:
    known = {6: ends(6), 7: ends(7)}
    found = reconcile(position(stateful=True), [sink("a", token(8))], known)
    assert found.again == (token(6), token(7), token(8))
    with pytest.raises(PenstockError) as raised:
        reconcile(position(stateful=True), [sink("a", token(8))], {7: ends(7)})
    assert (raised.value.code, "batch 6" in raised.value.summary) == ("RESTORE_STATE_BEHIND", True)
