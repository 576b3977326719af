"""Bounded runs: how ranges become batches, and where a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.committing import commit
from tests.unit.ops.quarantines import pipeline
from tests.unit.ops.test_redrive import hold

from penstock.assembly.build import build
from penstock.model import BatchToken, OffsetRange, Rule
from penstock.sinks import DeltaSink
from penstock.supervision.bounded import BoundedRun, _attempt, _start_again, batches_done, cut, is_done

A, B = OffsetRange("a", 0, 10, 25), OffsetRange("b", 1, 0, 5)


@pytest.mark.parametrize("most", [1, 3, 7, 15, 20, 100])
def test_cut_ranges_into_batches_covers_every_offset_once_in_order(most: int) -> None:
    batches = cut([A, B], most)
    offsets = [(r.topic, at) for batch in batches for r in batch for at in range(r.start, r.end)]
    assert offsets == [("a", at) for at in range(10, 25)] + [("b", at) for at in range(5)]
    assert all(sum(len(r) for r in batch) == most for batch in batches[:-1])
    assert 0 < sum(len(r) for r in batches[-1]) <= most


def test_cut_nothing_gives_no_batch() -> None:
    assert cut([OffsetRange("a", 0, 3, 3)], 10) == ()


def bounded(folder: Path, name: str, rule: Rule = Rule.FOLLOWS) -> BoundedRun:
    """A run of three batches into the table `lake/out`."""
    config = pipeline(folder).model_copy(update={"name": name})
    (folder / "run").mkdir(exist_ok=True)
    return BoundedRun(build(config), "query", cut([OffsetRange("orders", 0, 10, 40)], 10), folder / "run", rule=rule)


def test_bounded_run_goes_on_after_the_last_batch_that_its_target_holds(tmp_path: Path) -> None:
    run = bounded(tmp_path, "orders.replay-x")
    assert (batches_done(run), is_done(run)) == (0, False)
    (run.folder / "progress.json").write_text('{"done": 3, "finished": true}')
    assert batches_done(run) == 0, "the note is a hint"
    for number, done in ((0, 1), (1, 2), (2, 3)):
        hold(tmp_path, [], name="other", query=str(number))
        [sink] = run.pipeline.sinks
        commit(sink, BatchToken("orders.replay-x", "query", number, run.batches[number]), [])
        assert (batches_done(bounded(tmp_path, "orders.replay-x")), is_done(run)) == (done, done == 3)


def test_bounded_run_whose_target_was_restored_to_before_it_begins_again(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    run = bounded(tmp_path, "orders.replay-x")
    hold(tmp_path, [], name="other")
    [sink] = run.pipeline.sinks
    before = DeltaTable(tmp_path / "lake/out").version()
    commit(sink, BatchToken("orders.replay-x", "query", 0, run.batches[0]), [])
    DeltaTable(tmp_path / "lake/out").restore(before)
    again = bounded(tmp_path, "orders.replay-x")
    _start_again(again)
    assert batches_done(again) == 0
    [sink] = again.pipeline.sinks
    commit(sink, BatchToken("orders.replay-x", "query", 0, run.batches[0]), [])
    assert batches_done(again) == 1


def test_redrive_goes_on_under_its_query_id_until_something_was_committed(tmp_path: Path) -> None:
    run = bounded(tmp_path, "orders.redrive", Rule.RECORDS)
    hold(tmp_path, [], name="orders.redrive", query="earlier")
    first = _attempt(run).run_id
    assert first not in ("query", "earlier")
    assert _attempt(run).run_id == first, "nothing was committed"
    hold(tmp_path, [1], name="orders.redrive", query=first)
    second = _attempt(run).run_id
    assert second != first, "each target is asked which of the records it holds"
    hold(tmp_path, [2], name="orders.redrive", query="another")
    third = _attempt(run).run_id
    assert third not in (first, second, "another")
    assert _attempt(run).run_id == third


def test_redrive_that_version_0_7_began_is_asked_for_record_by_record(tmp_path: Path) -> None:
    run = bounded(tmp_path, "orders.redrive", Rule.RECORDS)
    hold(tmp_path, [1], name="orders.redrive", query="query")
    assert _attempt(run).run_id != "query"


def test_redrive_into_a_target_that_cannot_tell_its_records_goes_on_under_its_query_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bounded(tmp_path, "orders.redrive", Rule.RECORDS)
    hold(tmp_path, [1], name="orders.redrive", query="query")
    monkeypatch.setattr(DeltaSink, "records_held", lambda sink, ranges: None)
    assert _attempt(run).run_id == "query"
