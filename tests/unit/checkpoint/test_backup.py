"""Copies of a checkpoint: what is in them, which are whole, which are kept."""

from __future__ import annotations

import json
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint import backup as module
from penstock.checkpoint.backup import (
    backups_of,
    belongs,
    check_files,
    clear_parts,
    list_backups,
    make_backup,
    read_backup,
    save_aside,
)
from penstock.checkpoint.state_stores import missing_state, state_version
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model import TopicPartition

PLACE = TopicPartition("orders", 0)


def write_checkpoint(root: Path | str, batches: int, *, committed: int | None = None) -> None:
    SparkCheckpoint(str(root)).put_initial([{PLACE: 0}])
    for batch in range(batches):
        SparkCheckpoint(str(root)).put_offsets(batch, {PLACE: 10 * (batch + 1)})
        if committed is None or batch < committed:
            SparkCheckpoint(str(root)).put_commit(batch)
    SparkCheckpoint(str(root)).put_metadata("query-1")


def write_state(root: Path, versions: int, *, snapshot: int | None = None) -> None:
    store = root / "state/0/0"
    (store / "SSTs").mkdir(parents=True)
    for version in range(1, versions + 1):
        (store / f"{version}.changelog").write_bytes(b"changes")
        (store / f".{version}.changelog.crc").write_bytes(b"crc")
    if snapshot is not None:
        (store / "SSTs/000008-a.sst").write_bytes(b"rows")
        with zipfile.ZipFile(store / f"{snapshot}.zip", "w") as packed:
            files = [{"localFileName": "000008.sst", "dfsSstFileName": "000008-a.sst", "sizeBytes": 4}]
            packed.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": 1}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "orders", 3)
    return tmp_path / "orders"


def test_backup_has_the_batches_up_to_the_newest_committed_and_no_more(root: Path) -> None:
    SparkCheckpoint(str(root)).put_offsets(3, {PLACE: 99})
    (root / "offsets/.2.crc").write_bytes(b"crc")
    (root / "offsets/.3.crc").write_bytes(b"crc")
    (root / "offsets/.4.7f1.tmp").write_bytes(b"half")
    for note in (".penstock.start", ".penstock.topics", ".penstock.lock", ".penstock.run", ".penstock.stop"):
        (root / note).write_text("{}")
    made = make_backup(SparkCheckpoint(str(root)), backups_of(str(root)), "orders")
    assert made.name.endswith("-batch-2")
    assert [file.name for file in made.files] == [
        ".penstock.start", ".penstock.topics", "commits/0", "commits/1", "commits/2", "metadata", "offsets/.2.crc",
        "offsets/0", "offsets/1", "offsets/2", "sources/0/0",
    ]  # fmt: skip
    assert (made.pipeline, made.query_id, made.batch, made.checkpoint) == ("orders", "query-1", 2, str(root))
    assert list_backups(backups_of(str(root))) == [made]
    copy = SparkCheckpoint(made.path)
    assert (copy.last_begun(), copy.last_committed(), copy.query_id()) == (2, 2, "query-1")


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("state/0/0/4.changelog", True),
        ("state/0/0/5.changelog", False),
        ("state/0/0/.5.changelog.crc", False),
        ("state/0/0/right-keyToNumValues/4.zip", True),
        ("state/0/0/5_0fe1.zip", False),
        ("state/0/0/.5.zip.crc.crc", False),
        ("state/0/0/5.delta", False),
        ("state/0/0/SSTs/000009-x.sst", True),
        ("state/0/0/_metadata/schema", True),
        ("state/0/_metadata/v2/3", True),
        ("state/0/_metadata/v2/4", False),
        ("state/0/_stateSchema/default/0_02b7ed35", True),
        ("state/0/0/.4.changelog.0f.tmp", False),
        ("sources/0/0", True),
        ("commits/4", False),
        ("something/else", False),
    ],
)
def test_backup_of_batch_three_takes_its_state_and_no_later_one(name: str, within: bool) -> None:
    assert belongs(name, 3) == within


def test_state_version_of_what_belongs_to_all_is_none() -> None:
    assert state_version("state/0/0/7.zip") == 7
    assert state_version("state/0/0/SSTs/000009-x.sst") is None


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["state/0/0/1.changelog", "state/0/0/2.changelog", "state/0/0/3.changelog"], []),
        (["state/0/0/1.changelog", "state/0/0/3.changelog"], ["state/0/0/2"]),
        (["state/0/0/2.snapshot", "state/0/0/3.delta"], []),
        (["state/0/0/2.snapshot", "state/0/0/4.delta"], ["state/0/0/3"]),
        (["state/0/0/4.snapshot", "state/0/0/2.snapshot"], ["state/0/0/3"]),
        ([], []),
    ],
)
def test_state_of_version_three_needs_a_snapshot_and_every_change_after_it(
    names: list[str], missing: list[str]
) -> None:
    assert missing_state(names, 3, lambda name: b"") == missing


def test_backup_of_state_without_a_file_that_the_snapshot_names_is_refused(root: Path) -> None:
    write_state(root, 3, snapshot=2)
    assert any(
        file.name.endswith("000008-a.sst")
        for file in make_backup(SparkCheckpoint(str(root)), f"{root}-b", "orders").files
    )
    (root / "state/0/0/SSTs/000008-a.sst").unlink()
    with pytest.raises(TransientError) as raised:
        make_backup(SparkCheckpoint(str(root)), f"{root}-b", "orders")
    assert raised.value.code == "BACKUP_NOT_WHOLE"
    assert "state/0/0/SSTs/000008-a.sst" in raised.value.context["missing"]
    assert len(list(Path(f"{root}-b").iterdir())) == 1


def test_backup_where_the_batch_is_purged_while_it_is_copied_begins_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = module.copy_files

    def purged(*parts: object) -> None:
        monkeypatch.setattr(module, "copy_files", whole)
        SparkCheckpoint(str(root)).put_offsets(3, {PLACE: 40})
        SparkCheckpoint(str(root)).put_commit(3)
        (root / "offsets/1").unlink()
        whole(*parts)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "copy_files", purged)
    assert make_backup(SparkCheckpoint(str(root)), f"{root}-b", "orders").batch == 3


def test_backup_without_a_committed_batch_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "new", 1, committed=0)
    with pytest.raises(MissingError) as raised:
        make_backup(SparkCheckpoint(str(tmp_path / "new")), str(tmp_path / "b"), "orders")
    assert raised.value.code == "BACKUP_NOTHING_YET"


def test_backup_keeps_the_newest_of_this_checkpoint_and_all_of_others(root: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "shared")
    write_checkpoint(tmp_path / "other", 1)
    other = make_backup(SparkCheckpoint(str(tmp_path / "other")), place, "other")
    aside = save_aside(SparkCheckpoint(str(root)), place, "orders")
    assert aside is not None
    made = [make_backup(SparkCheckpoint(str(root)), place, "orders", keep=2) for _ in range(4)]
    assert list_backups(place) == [other, aside, made[2], made[3]]


def test_backup_begun_and_not_whole_is_none_and_is_cleared_a_day_later(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "b"
    made = make_backup(SparkCheckpoint(str(root)), str(place), "orders")
    for name in (".20200101T000000.000000Z-batch-1.part", ".29990101T000000.000000Z-batch-1.part"):
        shutil.copytree(made.path, place / name)
    (place / "20200101T000000.000000Z-batch-1").mkdir()
    assert list_backups(str(place)) == [made]
    clear_parts(str(place))
    assert not (place / ".20200101T000000.000000Z-batch-1.part").exists()
    assert (place / ".29990101T000000.000000Z-batch-1.part").exists()


def test_backup_interrupted_leaves_nothing(root: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_backup(SparkCheckpoint(str(root)), str(tmp_path / "b"), "orders", progress=stop)
    assert not list((tmp_path / "b").iterdir())


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_backup_whose_file_is_not_what_was_copied_is_told_by_its_name(root: Path, damage: str) -> None:
    made = make_backup(SparkCheckpoint(str(root)), f"{root}-b", "orders")
    check_files(made)
    file = Path(made.path, "offsets/1")
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b"20", b"21"))
    with pytest.raises(TerminalError) as raised:
        check_files(read_backup(made.path))
    assert (raised.value.code, list(raised.value.context)) == ("BACKUP_DAMAGED", ["offsets/1"])


@pytest.mark.parametrize(
    ("text", "code"),
    [(None, "BACKUP_MISSING"), ("{", "BACKUP_DAMAGED"), ('{"format": 9}', "BACKUP_UNKNOWN_FORMAT")],
)
def test_folder_that_is_no_backup_is_refused(tmp_path: Path, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(PenstockError) as raised:
        read_backup(str(tmp_path))
    assert raised.value.code == code


def test_copy_aside_takes_a_damaged_checkpoint_as_it_is(root: Path) -> None:
    (root / "metadata").unlink()
    (root / "offsets/9").write_bytes(b"\xff")
    aside = save_aside(SparkCheckpoint(str(root)), f"{root}-b", "orders")
    assert aside is not None
    assert aside.name.endswith("-before-restore")
    assert Path(aside.path, "offsets/9").read_bytes() == b"\xff"
    assert save_aside(SparkCheckpoint(str(root.parent / "none")), f"{root}-b", "orders") is None


def test_backup_in_another_file_system_is_the_same(root: Path) -> None:
    place = "memory://backups/orders"
    first = make_backup(SparkCheckpoint(str(root)), place, "orders", keep=1)
    second = make_backup(SparkCheckpoint(str(root)), place, "orders", keep=1)
    assert (first.batch, list_backups(place)) == (2, [second])
    check_files(second)
    write_checkpoint("memory://checkpoints/orders", 2)
    third = make_backup(SparkCheckpoint("memory://checkpoints/orders"), place, "orders")
    assert SparkCheckpoint(third.path).last_committed() == 1


def test_backup_under_writing_is_whole_every_time(root: Path, tmp_path: Path) -> None:
    """Batches are written and purged as Spark does it, with files that come and go beside them."""
    stop = threading.Event()

    def write() -> None:
        batch = 3
        while not stop.is_set():
            half = root / f"offsets/.{batch}.0f.tmp"
            half.write_bytes(b"half")
            SparkCheckpoint(str(root)).put_offsets(batch, {PLACE: batch})
            half.unlink()
            SparkCheckpoint(str(root)).put_commit(batch)
            for log in ("offsets", "commits"):
                (root / log / str(batch - 5)).unlink(missing_ok=True)
            batch += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            made = make_backup(SparkCheckpoint(str(root)), str(tmp_path / "b"), "orders", keep=3)
            copy = SparkCheckpoint(made.path)
            assert copy.last_begun() == copy.last_committed() == made.batch
            check_files(made)
            assert made.batch is not None
            assert copy.ends(made.batch - 1)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    "name", ["../outside", "sources/../../outside", "/etc/outside", "state\\..\\..\\outside", "..", "sources/0\x00"]
)
def test_backup_whose_manifest_names_a_file_outside_of_it_is_refused(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "checkpoint", 2)
    made = make_backup(SparkCheckpoint(str(tmp_path / "checkpoint")), str(tmp_path / "backups"), "orders")
    manifest = next((tmp_path / "backups").glob("*/*.json"), None) or next((tmp_path / "backups").rglob("*manifest*"))
    body = json.loads(manifest.read_text())
    body["files"][0]["name"] = name
    manifest.write_text(json.dumps(body))
    with pytest.raises(TerminalError) as raised:
        read_backup(made.path)
    assert raised.value.code == "BACKUP_DAMAGED"
    assert "leads out of the folder" in raised.value.context["found"]
    assert list_backups(str(tmp_path / "backups")) == []
