"""The state of a checkpoint: its stores, their sizes, and the versions they have."""

from __future__ import annotations

from pathlib import Path

from tests.spark_checkpoint import put, text, write_checkpoint, write_state

from penstock.checkpoint.state_stores import read_state, version_needed


def test_state_stores_are_told_with_step_partitions_and_size(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: 5}])
    write_state(root, 2)
    state = read_state(str(root))
    (store,) = state.stores
    assert (store.operator, store.step, store.name, store.partitions) == (0, "dedupeWithinWatermark", "", 2)
    assert (store.files, store.size_bytes) == (4, 4 * (len(b"\0\0changes") + 12))
    assert (state.kept, state.newest) == (True, 2)


def test_state_of_a_join_has_several_stores_and_each_must_be_whole(tmp_path: Path) -> None:
    names = ["left-keyToNumValues", "right-keyToNumValues"]
    stores = [{"storeName": name, "numColsPrefixKey": 0, "numPartitions": 1} for name in names]
    note = {"operatorInfo": {"operatorId": 0, "operatorName": "symmetricHashJoin"}, "stateStoreInfo": stores}
    put(tmp_path / "state/0/_metadata/metadata", f"v1\n{text(note)}")
    put(tmp_path / "state/0/0/left-keyToNumValues/1.changelog", b"x")
    put(tmp_path / "state/0/0/left-keyToNumValues/_metadata/schema", b"x")
    state = read_state(str(tmp_path))
    assert [store.name for store in state.stores] == ["left-keyToNumValues"]
    assert state.missing(1) == ["state/0/0/right-keyToNumValues"]
    assert state.missing(0) == []


def test_state_without_its_note_is_judged_by_its_partitions(tmp_path: Path) -> None:
    for partition in (0, 2):
        put(tmp_path / f"state/0/{partition}/1.changelog", b"x")
    assert read_state(str(tmp_path)).missing(1) == ["state/0/1"]


def test_state_none_is_not_kept(tmp_path: Path) -> None:
    assert not read_state(str(write_checkpoint(tmp_path / "cp", [{0: 5}]))).kept


def test_state_version_of_the_next_batch() -> None:
    assert [version_needed(*at) for at in ((None, None), (0, None), (0, 0), (7, 6), (7, 7))] == [0, 0, 1, 7, 8]
