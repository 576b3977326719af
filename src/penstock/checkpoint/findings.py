"""What is wrong with a checkpoint: findings, not exceptions, each with what it means and the way out of it.

`file_findings` looks at the files alone: no broker, no sink. What Spark does with each damage was tried with Spark 4.1;
the tests keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.checkpoint.files import SparkCheckpoint
from penstock.checkpoint.logs import AGAIN_NOTE, STATE_NOTE, TOPICS_NOTE, CheckpointFiles, LogFile, read_files
from penstock.checkpoint.state_stores import StateFiles, read_state, version_needed
from penstock.errors import PenstockError, TerminalError
from penstock.wording import some

REPAIR = "penstock checkpoint repair FILE    (with --dry-run: what it would change, or why it must not)"
RESTORE = "penstock checkpoint restore FILE    (the newest backup, brought to where the sinks are)"
AFRESH = "without a backup: point `checkpoint:` at a new folder, then: penstock run FILE --resume-from-table"
AFRESH_STATE = "without a backup: start over with a new checkpoint and new tables; the state is in no other place"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    code: str
    blocks: bool
    """Whether a run must not start."""
    summary: str
    context: Mapping[str, str] = field(default_factory=dict)
    means: str = ""
    way_out: str = ""
    """The exact commands, FILE standing for the pipeline file."""

    def as_error(self) -> TerminalError:
        """For a run, which stops at the first that blocks."""
        return TerminalError(
            self.code, self.summary, context=self.context, hint=f"{self.means}\n{self.way_out}".strip()
        )


def from_error(error: PenstockError, *, blocks: bool = True, means: str = "A run would stop at it.") -> Finding:
    """What a check of a run raises, as a finding."""
    return Finding(error.code, blocks, error.summary, error.context, means, error.hint or "")


def file_findings(checkpoint: SparkCheckpoint, *, live: bool = False) -> list[Finding]:
    """What the files alone show. A run that is `live` leaves files of its own that are no findings."""
    path, storage = checkpoint.path, checkpoint.storage
    return findings_in(path, read_files(path, storage), read_state(path, storage), live=live)


def findings_in(path: str, files: CheckpointFiles, state: StateFiles, *, live: bool = False) -> list[Finding]:
    """The same for files that were looked at already."""
    there = files.restoring is not None or files.all or files.notes
    return [*_findings(path, files, state, live)] if there else []


def _findings(path: str, files: CheckpointFiles, state: StateFiles, live: bool) -> Iterator[Finding]:
    if files.restoring is not None:
        yield _unfinished(path, files.restoring)
    yield from _metadata(path, files, state)
    yield from _broken(path, files, state)
    yield from _notes(path, files, state)
    yield from _gaps(path, files, state)
    yield from _checksums(path, files, state)
    if files.strays and not live:
        yield _strays(path, files.strays)
    yield from _state(path, files, state)


def ways(state: StateFiles) -> str:
    """Out of a damage: from the cheapest way to the last."""
    return "\n".join((REPAIR, RESTORE, AFRESH_STATE if state.kept else AFRESH))


def _unfinished(path: str, note: str) -> Finding:
    repairing = note.startswith("repair")
    return Finding(
        "RESTORE_UNFINISHED",
        True,
        f"checkpoint {path}: {'a repair' if repairing else 'a restore'} did not finish",
        {"begun": note},
        "The folder is only partly written, so nothing can be concluded from it. What was there before was copied "
        "first.",
        "penstock checkpoint repair FILE    (again: it goes on)"
        if repairing
        else "run the same command again: penstock checkpoint restore FILE",
    )


def _metadata(path: str, files: CheckpointFiles, state: StateFiles) -> Iterator[Finding]:
    if files.metadata is None and (files.begun is not None or files.committed is not None):
        begun = files.begun if files.begun is not None else "none"
        yield Finding(
            "CHECKPOINT_METADATA_LOST",
            True,
            f"checkpoint {path}: the metadata file is gone, and with it the query id",
            {"last batch begun": str(begun)},
            "Spark would make up a new query id, and no sink would recognise its batches: rows would come twice.",
            ways(state),
        )


def _broken(path: str, files: CheckpointFiles, state: StateFiles) -> Iterator[Finding]:
    wanted = files.needed
    for file in files.all:
        problem = files.problem_of(file)
        if problem is None:
            continue
        blocks = file.name in wanted
        means = (
            "Spark reads this file when it starts, and stops at it."
            if blocks
            else ("It is history: Spark no longer reads it, and removes it in time. Nothing has to be done.")
        )
        yield Finding(
            "CHECKPOINT_FILE_BROKEN",
            blocks,
            f"checkpoint {path}: {file.name} cannot be used",
            {"found": problem},
            means,
            ways(state) if blocks else "",
        )


def _notes(path: str, files: CheckpointFiles, state: StateFiles) -> Iterator[Finding]:
    for note in files.notes.values():
        if note.problem is not None:
            yield Finding(
                "CHECKPOINT_FILE_BROKEN",
                True,
                f"checkpoint {path}: {note.name} cannot be used",
                {"found": note.problem},
                f"{_NOTED[note.name]} That is stored nowhere else.",
                f"{RESTORE}\n{AFRESH_STATE if state.kept else AFRESH}",
            )


_NOTED = {
    AGAIN_NOTE: "It names the batches that are to be run again since the checkpoint was restored.",
    TOPICS_NOTE: "It distinguishes a topic from a later one of the same name: without it records may be skipped.",
    STATE_NOTE: "It says which steps the state belongs to.",
}


def _gaps(path: str, files: CheckpointFiles, state: StateFiles) -> Iterator[Finding]:
    begun, committed = files.begun, files.committed
    if committed is not None and (begun is None or committed > begun):
        yield Finding(
            "CHECKPOINT_GAP",
            True,
            f"checkpoint {path}: batch {committed} is committed, and its offsets are gone",
            {
                "newest offsets": f"offsets/{begun}" if begun is not None else "none",
                "newest commit": f"commits/{committed}",
            },
            f"Spark would start batch {committed} again with other offsets. The sinks have a batch of that number, and "
            "would skip it: its rows would be lost.",
            ways(state),
        )
    if begun is not None and begun > 0 and begun - 1 not in files.offsets:
        yield Finding(
            "CHECKPOINT_GAP",
            True,
            f"checkpoint {path}: the offsets of batch {begun - 1} are gone, and batch {begun} begins where it ended",
            {"newest offsets": f"offsets/{begun}", "missing": f"offsets/{begun - 1}"},
            f'Spark stops at it: "batch {begun - 1} doesn\'t exist".',
            ways(state),
        )
    if begun == 0 and committed is None and not files.sources:
        yield Finding(
            "CHECKPOINT_GAP",
            True,
            f"checkpoint {path}: batch 0 has begun, and where it begins is gone",
            {"there": "offsets/0", "missing": "sources/0/0"},
            "Where batch 0 begins is unknown: what `start` meant then may be something else now.",
            f"{REPAIR}\nas no batch was ever committed: point `checkpoint:` at a new folder, then: penstock run FILE",
        )
    missing = [*_holes("offsets", files.offsets, begun), *_holes("commits", files.commits, begun)]
    if missing:
        yield Finding(
            "CHECKPOINT_GAP",
            False,
            f"checkpoint {path}: {len(missing)} older files are gone",
            {"missing": ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")},
            "They are history: Spark does not read them. A batch whose offsets are there and that is followed by "
            "another was done. Nothing has to be done.",
        )


def _holes(folder: str, there: Mapping[int, LogFile], begun: int | None) -> list[str]:
    """What is missing between the oldest file and the newest, which have findings of their own."""
    if not there or begun is None:
        return []
    last = begun - 1 if folder == "offsets" else begun
    return [f"{folder}/{batch}" for batch in range(min(there), last) if batch not in there]


def _checksums(path: str, files: CheckpointFiles, state: StateFiles) -> Iterator[Finding]:
    wanted = files.needed
    for file in files.all:
        if file.problem is not None or file.checksum in ("none", "right"):
            continue
        wrong = file.checksum == "wrong"
        blocks = wrong and file.name in wanted
        yield Finding(
            "CHECKPOINT_CHECKSUM_WRONG",
            blocks,
            f"checkpoint {path}: {file.name} is not what Spark wrote"
            if wrong
            else f"checkpoint {path}: the checksum of {file.name} cannot be read",
            {"file": file.name, "checksum": f"{file.checksum}"},
            "The file was edited, or the disk is damaged. Spark ignores the checksum and would continue from what "
            "the file says now."
            if wrong
            else "The file itself can be read; Spark ignores the checksum.",
            ways(state) if blocks else REPAIR,
        )


def _strays(path: str, strays: tuple[str, ...]) -> Finding:
    shown = ", ".join(strays[:8]) + (" ..." if len(strays) > 8 else "")
    return Finding(
        "CHECKPOINT_STRAY_FILES",
        False,
        f"checkpoint {path}: {len(strays)} files are left over from writes that did not finish",
        {"files": shown},
        "A process was killed while it was writing. Spark does not read them; they only take up space.",
        "penstock checkpoint repair FILE",
    )


def _state(path: str, files: CheckpointFiles, state: StateFiles) -> Iterator[Finding]:
    version = version_needed(files.begun, files.committed)
    missing = state.missing(version) if state.kept else []
    if missing:
        yield Finding(
            "STATE_MISSING",
            True,
            f"checkpoint {path}: the state that the next batch needs is incomplete",
            {
                "needed": f"version {version}, of batch {version - 1}",
                "missing": some(missing),
            },
            "The steps of this pipeline keep state, and a part of it is gone. Spark would fail in the middle of the "
            "batch.",
            f"put the files back from a copy, or:\n{RESTORE}\n{AFRESH_STATE}",
        )
