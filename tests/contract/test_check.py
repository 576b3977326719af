"""`check` says what `prepare` would say, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.committing import last_commit
from tests.contract.kits import SinkKit, has_schema, only_where
from tests.contract.rows import SCHEMA, ids, land, prepared, token
from tests.contract.test_shapes import WIDER

from penstock.errors import MissingError

OTHER_TYPE = pa.schema([pa.field("id", pa.string()), *list(SCHEMA)[1:]])


def refusal(look: Callable[[pa.Schema], None], schema: pa.Schema) -> str | None:
    """What the sink says against these columns."""
    try:
        look(schema)
    except MissingError as error:
        return str(error)
    return None


def test_check_without_a_target_passes_and_makes_none(kit: SinkKit) -> None:
    before = kit.trace()
    kit.sink().check(SCHEMA)
    assert kit.trace() == before
    assert last_commit(kit.sink()) is None


def test_check_of_a_target_that_fits_passes_and_changes_nothing(kit: SinkKit) -> None:
    land(prepared(kit.sink()), token(0, 0, 1))
    before = kit.trace()
    kit.sink().check(SCHEMA)
    if kit.evolves:
        kit.sink(evolve="add_columns").check(WIDER)
    assert kit.trace() == before
    assert ids(kit) == [0]


def test_check_of_new_columns_says_what_prepare_says(kit: SinkKit) -> None:
    kit.sink().prepare(SCHEMA)
    told = refusal(kit.sink().check, WIDER)
    assert told is not None or not kit.evolves
    assert refusal(kit.sink().prepare, WIDER) == told


@only_where(has_schema)
def test_check_of_another_type_says_what_prepare_says(kit: SinkKit) -> None:
    kit.sink().prepare(SCHEMA)
    told = refusal(kit.sink(evolve="add_columns").check, OTHER_TYPE)
    assert told is not None
    assert refusal(kit.sink(evolve="add_columns").prepare, OTHER_TYPE) == told


@only_where(lambda kit: kit.partitions)
@pytest.mark.parametrize("partition_by", [["note"], ["absent"]], ids=["other partitions", "no such column"])
def test_check_of_other_partitions_says_what_prepare_says(kit: SinkKit, partition_by: Any) -> None:
    kit.sink().prepare(SCHEMA)
    told = refusal(kit.sink(partition_by=partition_by).check, SCHEMA)
    assert told is not None
    assert refusal(kit.sink(partition_by=partition_by).prepare, SCHEMA) == told
