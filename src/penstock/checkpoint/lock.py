"""One run at a time on a checkpoint: a lock that dies with its process, or in an object store a lease that runs out.

The lease, `.penstock.lease`, is made by a put that succeeds only where no object is, renewed and taken over by puts
that succeed only over the very object that was seen: of two who want it one has it. It runs out by the store's own
clock, which dates every object; the clocks of the machines do not have to agree. A holder that ends in order gives it
back at once. One that was killed is known to be dead on the machine where it ran; elsewhere its lease has to run out.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import psutil

from penstock.background import Repeating
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError, transient_is_fatal
from penstock.storage import ChangedError, Storage, is_object_uri, local_path
from penstock.storage.objects import StoredObject
from penstock.storage.stores import SHORT

LEASE_NOTE = ".penstock.lease"
_CLOCK_NOTE = ".penstock.clock"
LEASE_SECONDS = 30.0
"""How long a holder that does not renew its lease keeps the checkpoint."""
RENEW_SECONDS = 5.0
_MARGIN_SECONDS = 8.0
"""A holder stops committing this long before others may take its lease: longer than one request of a commit takes."""
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Claim:
    """What a lease says of its holder."""

    who: str
    """For people: `process 12 on host`."""
    run: str
    """Of this claim alone."""
    host: str
    pid: int
    began: float
    """When the process began: a number of a process is used again."""
    beat: int = 0
    released: bool = False

    @classmethod
    def mine(cls) -> Claim:
        """A new claim of this process."""
        pid = os.getpid()
        who = f"process {pid} on {socket.gethostname()}"
        return cls(who, secrets.token_hex(8), _this_system(), pid, psutil.Process(pid).create_time())

    def to_bytes(self) -> bytes:
        """As the object holds it."""
        return json.dumps(asdict(self)).encode()

    @property
    def ended(self) -> bool:
        """Whether the holder is known to have ended: it said so, or it was a process on this machine that is gone."""
        return self.released or (self.host == _this_system() and not _lives(self.pid, self.began))


class CheckpointLock:
    """A checkpoint that this process holds. On a local disk the kernel holds the lock: it cannot be taken away."""

    def check(self) -> None:
        """Before anything is committed: raise unless the checkpoint is still this run's."""

    def lost(self) -> PenstockError | None:
        """The error for a checkpoint that another run has taken over."""
        return None


class Lease(CheckpointLock):
    """A lease on a checkpoint, renewed in the background until it is closed."""

    def __init__(self, checkpoint: str, filesystem: Any, note: str, claim: Claim, mark: str, renewed: float) -> None:
        self._checkpoint = checkpoint
        self._filesystem, self._note = filesystem, note
        self._claim, self._mark = claim, mark
        self._renewed = renewed
        self._taken: str | None = None
        self._renewing = Repeating("lease", self._renew, RENEW_SECONDS)

    def lost(self) -> PenstockError | None:
        """The error for a lease that another run has taken over; None while it is ours."""
        if self._taken is None:
            return None
        return TerminalError(
            "CHECKPOINT_LOST",
            f"another run took the checkpoint {self._checkpoint} over, because this one was not heard of in time",
            context={"taken by": self._taken, "a lease lasts": f"{LEASE_SECONDS:.0f} s"},
            hint="nothing more was written; the other run continues with the open batch",
        )

    def check(self) -> None:
        """Before anything is committed: raise unless the checkpoint is surely this run's for a while yet."""
        lost = self.lost()
        if lost is not None:
            raise lost
        age = time.monotonic() - self._renewed
        if age > LEASE_SECONDS - _MARGIN_SECONDS:
            raise TransientError(
                "CHECKPOINT_LEASE_LATE",
                f"the lease of the checkpoint {self._checkpoint} could not be renewed for {age:.0f} s",
                context={"a lease lasts": f"{LEASE_SECONDS:.0f} s"},
                hint="nothing is committed until the store answers again",
            )

    def close(self) -> None:
        """Give it back."""
        self._renewing.close(2 * SHORT.in_all)
        if self._taken is None:
            released = replace(self._claim, beat=self._claim.beat + 1, released=True)
            with suppress(ChangedError, PenstockError, OSError):
                self._filesystem.put_over(self._note, released.to_bytes(), self._mark)

    def _renew(self) -> float | None:
        began, claim = time.monotonic(), replace(self._claim, beat=self._claim.beat + 1)
        # If the store is unavailable for too long, `check` refuses to commit.
        with suppress(PenstockError, OSError):
            try:
                self._mark = self._filesystem.put_over(self._note, claim.to_bytes(), self._mark)
                self._claim, self._renewed = claim, began
            except ChangedError:
                held = self._filesystem.read(self._note)
                found = _claim_in(held) if held is not None else None
                if found is None or found.run != self._claim.run:
                    self._taken = found.who if found is not None else "somebody who removed the lease"
                    return None
                # A response was lost: the stored claim is ours.
                self._mark, self._claim, self._renewed = held.mark, found, began
        return RENEW_SECONDS


@contextmanager
def _leased(checkpoint: str, storage: Storage, tell: Callable[[str], None]) -> Iterator[Lease]:
    """Lease a checkpoint in an object store. Refused while its holder lives; the lease of a dead one has to expire."""
    filesystem, root = storage.filesystem(checkpoint, SHORT)
    note = f"{root}/{LEASE_NOTE}"
    with transient_is_fatal():
        claim, mark, since = _acquire(checkpoint, filesystem, root, note, tell)
    lease = Lease(checkpoint, filesystem, note, claim, mark, since)
    try:
        yield lease
    finally:
        lease.close()


def _lease_holder(checkpoint: str, storage: Storage) -> str | None:
    """Who holds a checkpoint in an object store, by this machine's clock."""
    filesystem, root = storage.filesystem(checkpoint, SHORT)
    held = filesystem.read(f"{root}/{LEASE_NOTE}")
    claim = _claim_in(held) if held is not None else None
    if held is None or claim is None or claim.ended:
        return None
    return claim.who if datetime.now(UTC) - held.at < timedelta(seconds=LEASE_SECONDS) else None


def _acquire(
    checkpoint: str, filesystem: Any, root: str, note: str, tell: Callable[[str], None]
) -> tuple[Claim, str, float]:
    claim, first, notified = Claim.mine(), "", False
    while True:
        began = time.monotonic()
        held: StoredObject | None = filesystem.read(note)
        other = _claim_in(held) if held is not None else None
        with suppress(FileExistsError, ChangedError):
            if held is None:
                return claim, filesystem.put_new(note, claim.to_bytes()), began
            if other is None or other.ended or _now(filesystem, root) - held.at > timedelta(seconds=LEASE_SECONDS):
                return claim, filesystem.put_over(note, claim.to_bytes(), held.mark), began
        if held is None or other is None:
            continue
        first = first or held.mark
        if held.mark != first or other.host == _this_system():
            raise _in_use(checkpoint, other.who)
        if not notified:
            notified = True
            tell(f"the checkpoint is held by {other.who}: looking whether it lives, for at most {LEASE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _in_use(checkpoint: str, holder: str) -> MissingError:
    return MissingError(
        "CHECKPOINT_IN_USE",
        f"another run holds the checkpoint {checkpoint}",
        context={"held by": holder},
        hint="stop that run first; two runs on one checkpoint would work against each other",
    )


def _now(filesystem: Any, root: str) -> datetime:
    """The time by the store's own clock: that of an object just written."""
    filesystem.pipe_file(f"{root}/{_CLOCK_NOTE}", b"")
    at: datetime = filesystem.modified(f"{root}/{_CLOCK_NOTE}")
    return at


def _claim_in(held: StoredObject) -> Claim | None:
    try:
        return Claim(**json.loads(held.body))
    except (ValueError, TypeError):
        return None


def _this_system() -> str:
    """This machine since its last start, and the processes that this one can see: a container has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


def _lives(pid: int, began: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - began) < 1.0
    except psutil.NoSuchProcess:
        return False


_LOCK = ".penstock.lock"
_PATIENCE_SECONDS = 0.2
"""Longer than a check whether the lock is held takes: the check refuses the lock for that moment."""


@contextmanager
def checkpoint_lock(
    path: str, storage: Storage = Storage(), tell: Callable[[str], None] = lambda text: None
) -> Iterator[CheckpointLock]:
    """Hold the checkpoint; a second holder is refused. At a crash the kernel frees it, or its lease runs out."""
    if is_object_uri(path):
        with _leased(path, storage, tell) as lease:
            yield lease
        return
    folder = local_path(path)
    if folder is None:
        raise MissingError(
            "CHECKPOINT_NOT_LOCKABLE",
            f"checkpoint {path}: nothing there keeps two runs apart",
            hint="point `checkpoint:` at a local folder, or at s3://, gs://, abfss:// or hdfs://",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+") as file:
        if not _taken(file):
            raise _in_use(path, _holder(file))
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield CheckpointLock()


def held_by(path: str, storage: Storage = Storage()) -> str | None:
    """Who holds the checkpoint now, without taking it; None if it is free, or cannot be locked here."""
    if is_object_uri(path):
        return _lease_holder(path, storage)
    folder = local_path(path)
    if folder is None:
        return None
    try:
        with (folder / _LOCK).open() as file:
            try:
                # Shared, so that two checks at once do not take each other for a holder.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _taken(file: TextIO) -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


def _holder(file: TextIO) -> str:
    file.seek(0)
    return file.read().strip() or "an unknown process"
