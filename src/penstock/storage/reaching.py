"""Checks before a run: do the stores respond, accept these credentials, and honour conditional writes?"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress

from penstock.errors import MissingError, PenstockError, transient_is_fatal
from penstock.storage.objects import ChangedError, ObjectFileSystem
from penstock.storage.storage import Storage, bucket_of, is_hdfs_uri, is_object_uri, is_s3_uri
from penstock.storage.stores import SHORT

_refusing: set[tuple[Storage, str]] = set()
"""The buckets whose store is known, in this process, to honour conditional writes."""


def check_reachable(storage: Storage, places: Iterable[str]) -> None:
    """Read from each bucket once. Raises what is wrong: the bucket, the key, the region, the endpoint."""
    for bucket in dict.fromkeys(bucket_of(place) for place in places if is_object_uri(place)):
        filesystem, root = storage.filesystem(bucket, SHORT)
        with transient_is_fatal():
            filesystem.look_into(root)


def check_conditional_writes(storage: Storage, places: Iterable[str]) -> list[str]:
    """Write a small object twice in each bucket: the second write must be refused, or commits overwrite each other.

    Done once per bucket and process, at the first of its places. Returns the buckets. HDFS is not checked: its name
    node refuses a rename onto an existing file.
    """
    found: dict[str, str] = {}
    for place in places:
        if is_object_uri(place) and not is_hdfs_uri(place):
            found.setdefault(bucket_of(place), place)
    for bucket, place in found.items():
        if (storage, bucket) not in _refusing:
            ignored = _ignored_condition(storage, place)
            if ignored is not None:
                raise MissingError(
                    "STORAGE_NOT_SAFE",
                    f"{bucket}: the store ignores the condition of a write: two commits would overwrite each other",
                    context={"store": storage.endpoint or bucket, "place": place, "ignored": ignored},
                    hint="use a store that supports `If-None-Match` and `If-Match` on a put, such as S3 or "
                    "MinIO\n"
                    "if there is a proxy in between, let it pass these headers\n"
                    "or keep the checkpoint and the tables on a local path or on hdfs://",
                )
            _refusing.add((storage, bucket))
    return list(found)


def _ignored_condition(storage: Storage, place: str) -> str | None:
    """The header that the store ignores."""
    filesystem, root = storage.filesystem(place, SHORT)
    path = f"{root}/.penstock-probe-{secrets.token_hex(8)}"
    try:
        with transient_is_fatal():
            if not _refuses_second(filesystem, path):
                return "If-None-Match"
            return None if not is_s3_uri(place) or _refuses_changed(filesystem, path) else "If-Match"
    finally:
        with suppress(PenstockError):
            filesystem.rm_file(path)


def _refuses_second(filesystem: ObjectFileSystem, path: str) -> bool:
    """Whether creating an object that exists is refused."""
    filesystem.put_new(path, b"first")
    try:
        filesystem.put_new(path, b"second")
    except FileExistsError:
        return True
    return False


def _refuses_changed(filesystem: ObjectFileSystem, path: str) -> bool:
    """Whether replacing an object that changed meanwhile is refused."""
    held = filesystem.read(path)
    assert held is not None
    filesystem.put_over(path, b"third", held.mark)
    try:
        filesystem.put_over(path, b"fourth", held.mark)
    except ChangedError:
        return True
    return False
