"""The loop of all formats, over one made up: each value comes out once, in its order, as it deserves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.decoders.batch import BlockError, Format, decode_batch
from penstock.decoders.refusal import RefusedError
from penstock.model import COORDINATES, COORDINATES_FIELD

SCHEMA = pa.schema([pa.field("value", pa.binary()), COORDINATES_FIELD])


class MadeUpFormat(Format):
    """A value is `good`, `bad`, `odd` (no block takes it, and alone it is right) or `doubtful` (a block gets it wrong).

    `hint` is what a refused block says of the bad values in it; with `checks` the careful reader gives no values.
    """

    schema = pa.schema(list(SCHEMA)[:1])
    block_rows = 512
    block_bytes = 4096

    def __init__(self, hint: str, checks: bool) -> None:
        self._hint = hint
        self._checks = checks
        self.block_sizes: list[int] = []
        self.singles = 0

    def read_block(self, values: pa.Array) -> tuple[list[pa.Array], Sequence[int]]:
        self.block_sizes.append(len(values))
        given = values.to_pylist()
        bad = [at for at, value in enumerate(given) if value in (b"bad", b"odd")]
        if bad and self._hint == "first":
            raise BlockError("BLOCK", "refused", bad[:1], bad[0] + 1)
        if bad and self._hint == "all":
            raise BlockError("BLOCK", "refused", bad, len(given))
        if bad and self._hint == "wrong":
            raise BlockError("BLOCK", "refused", [len(given) - 1], len(given))
        if bad:
            raise BlockError("BLOCK", "refused")
        wrong = pa.array([b"wrong" if value == b"doubtful" else value for value in given], pa.binary())
        return [wrong], [at for at, value in enumerate(given) if value == b"doubtful"]

    def read_single(self, value: Any) -> Sequence[Any] | None:
        self.singles += 1
        if value == b"bad":
            raise RefusedError("SINGLE", "refused")
        return None if self._checks else [value]


@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("hint", ["none", "first", "all", "wrong"])
def test_every_value_comes_out_once_and_in_its_order(raw_batch: Any, hint: str, checks: bool, share: float) -> None:
    chance = random.Random(hint + str(share))
    kinds = [b"bad", b"odd"] if checks else [b"bad", b"odd", b"doubtful"]
    values = [chance.choice(kinds) if chance.random() < share else b"good" for _ in range(3000)]
    made_up = MadeUpFormat(hint, checks and hint != "wrong")

    split = decode_batch(
        raw_batch(values), SCHEMA, "quarantine", 99, lambda found: [(made_up, found.values, found.rows)]
    )

    codes = [{b"bad": "SINGLE", b"odd": "BLOCK" if made_up._checks else ""}.get(value, "") for value in values]
    assert split.good.column("value").to_pylist() == [v for v, code in zip(values, codes, strict=True) if not code]
    assert [at["offset"] for at in split.good.column(COORDINATES).to_pylist()] == [
        1000 + row for row, code in enumerate(codes) if not code
    ]
    found = zip(split.bad.column("offset").to_pylist(), split.bad.column("code").to_pylist(), strict=True)
    assert list(found) == [(1000 + row, code) for row, code in enumerate(codes) if code]


def test_blocks_keep_to_their_bounds(raw_batch: Any) -> None:
    made_up = MadeUpFormat("none", False)
    decode_batch(raw_batch([b"x" * 50] * 1000), SCHEMA, "quarantine", 99, lambda s: [(made_up, s.values, s.rows)])
    assert sum(made_up.block_sizes) == 1000
    assert max(made_up.block_sizes) * 50 <= made_up.block_bytes


@pytest.mark.parametrize("hint", ["none", "first", "all"])
def test_bad_values_cost_work_in_proportion(raw_batch: Any, hint: str) -> None:
    values = [b"bad" if at % 3 == 0 else b"good" for at in range(6000)]
    made_up = MadeUpFormat(hint, False)
    decode_batch(raw_batch(values), SCHEMA, "quarantine", 99, lambda s: [(made_up, s.values, s.rows)])
    assert made_up.singles <= 6000
    assert sum(made_up.block_sizes) <= 2 * 6000


def test_format_without_a_fast_reader_reads_all_values_one_by_one(raw_batch: Any) -> None:
    made_up = MadeUpFormat("none", False)
    made_up.is_fast = False
    split = decode_batch(
        raw_batch([b"good", None, b"bad", b"doubtful"]), SCHEMA, "pass", 99, lambda s: [(made_up, s.values, s.rows)]
    )
    assert made_up.block_sizes == []
    assert split.good.column("value").to_pylist() == [b"good", None, b"doubtful"]
