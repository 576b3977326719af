"""Before anything begins: do the stores that a pipeline needs answer, and take these credentials?"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import MissingError, TransientError
from penstock.storage.storage import Storage, bucket_of, is_object_uri
from penstock.storage.stores import SHORT


def check_reachable(storage: Storage, places: Iterable[str]) -> None:
    """Look into each bucket once. Raises in words what is wrong: a bucket, a key, a region, an endpoint."""
    for bucket in dict.fromkeys(bucket_of(place) for place in places if is_object_uri(place)):
        filesystem, root = storage.filesystem(bucket, SHORT)
        try:
            filesystem.look_into(root)
        except TransientError as error:
            raise MissingError(error.code, error.summary, context=error.context, hint=error.hint) from None
