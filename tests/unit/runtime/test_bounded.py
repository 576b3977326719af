"""Bounded runs: how ranges become batches."""

from __future__ import annotations

import pytest

from penstock.model import OffsetRange
from penstock.runtime.bounded import cut

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
