"""`check` says what `prepare` would say, and leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.kits import SinkKit
from tests.contract.rows import SCHEMA, land, token
from tests.contract.test_shapes import WIDER

from penstock.errors import MissingError


def everything(folder: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_check_without_a_target_passes_and_makes_none(kit: SinkKit, tmp_path: Path) -> None:
    kit.sink().check(SCHEMA)
    assert everything(tmp_path) == set()


def test_check_of_a_target_that_fits_passes_and_changes_nothing(kit: SinkKit, tmp_path: Path) -> None:
    sink = kit.sink()
    sink.prepare(SCHEMA)
    land(sink, token(0, 0, 1))
    before = everything(tmp_path)
    kit.sink().check(SCHEMA)
    kit.sink(evolve="add_columns").check(WIDER)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (WIDER, {}),
        (pa.schema([pa.field("id", pa.string()), *list(SCHEMA)[1:]]), {"evolve": "add_columns"}),
        (SCHEMA, {"partition_by": ["note"]}),
        (SCHEMA, {"partition_by": ["absent"]}),
    ],
    ids=["new columns", "another type", "other partitions", "no such column"],
)
def test_check_of_a_target_that_does_not_fit_says_what_prepare_says(
    kit: SinkKit, schema: pa.Schema, settings: dict[str, Any]
) -> None:
    kit.sink().prepare(SCHEMA)
    told = []
    for look in (kit.sink(**settings).check, kit.sink(**settings).prepare):
        with pytest.raises(MissingError) as refused:
            look(schema)
        told.append(str(refused.value))
    assert told[0] == told[1]
