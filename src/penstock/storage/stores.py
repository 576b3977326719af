"""The clients of object stores, one per bucket and kept in the process, and their errors as Penstock's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from penstock.errors import MissingError, PenstockError, TransientError

Options = tuple[tuple[str, str], ...]

_MISSING_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound", re.IGNORECASE)
_REFUSED = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|ExpiredToken|InvalidToken|status code: 40[13]"
    r"|169\.254\.169\.254|CredentialsNotLoaded|no credentials|AccessControlException",
    re.IGNORECASE,
)
_REGION = re.compile(r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint|status code: 30\d")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request may take, and how long it is tried again, in seconds."""

    request: float = 30.0
    retries: int = 12
    in_all: float = 60.0


SHORT = Patience(request=5.0, retries=12, in_all=5.0)
"""For checks at a start, and for calls that must not block anybody."""


def store_of(scheme: str, bucket: str, options: Options, patience: Patience) -> Any:
    """The client of one bucket. A forked process makes its own."""
    return _store(scheme, bucket, options, patience, os.getpid())


@lru_cache(maxsize=64)
def _store(scheme: str, bucket: str, options: Options, patience: Patience, process: int) -> Any:
    from obstore import store as stores

    mine = {name: value for name, value in options if _applies_to(scheme, name)}
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=patience.request),
        "connect_timeout": timedelta(seconds=min(5.0, patience.request)),
        "user_agent": "penstock",
    }
    if mine.pop("allow_http", "false") == "true":
        client["allow_http"] = True
    retry = {
        "max_retries": patience.retries,
        "retry_timeout": timedelta(seconds=patience.in_all),
        "backoff": {
            "base": 2,
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=3),
        },
    }
    plain = {"s3n": "s3", "s3a": "s3", "gcs": "gs", "abfs": "abfss"}.get(scheme, scheme)
    make: Any = stores.from_url  # its overloads depend on the kind of store
    return make(f"{plain}://{bucket}", config=mine, client_options=client, retry_config=retry)


def _applies_to(scheme: str, option: str) -> bool:
    """Whether an option is for this kind of store: clients reject those of others."""
    other = {"aws_": ("s3", "s3a", "s3n"), "google_": ("gs", "gcs"), "azure_": ("abfs", "abfss")}
    fits = all(scheme in own for begin, own in other.items() if option.lower().startswith(begin))
    return fits and not is_hadoop_option(option)


def is_hadoop_option(name: str) -> bool:
    """Whether an option is one of Hadoop's own settings, which HDFS is reached by."""
    return name.startswith(("dfs.", "fs.", "hadoop."))


@contextmanager
def translated_errors(doing: str, place: str) -> Iterator[None]:
    """Raise errors of a client as Penstock's own; missing and existing files stay built-in exceptions."""
    try:
        yield
    except (PenstockError, FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        raise translate_error(doing, place, error) from error


def translate_error(doing: str, place: str, error: BaseException) -> Exception:
    """An error of a client as one of Penstock's, by what went wrong."""
    context = {"place": place, "cause": first_line(error)}
    summary = f"{doing} {place}"
    if _MISSING_BUCKET.search(str(error)):
        return MissingError(
            "STORAGE_BUCKET_MISSING",
            f"{summary}: there is no such bucket",
            context={"place": place},
            hint="make the bucket, or correct the path in the file",
        )
    if _REFUSED.search(str(error)) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return MissingError(
            "STORAGE_REFUSED",
            f"{summary}: the store refuses these credentials",
            context=context,
            hint="check `storage` in the file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the rights on the "
            "bucket",
        )
    if _REGION.search(str(error)):
        return MissingError(
            "STORAGE_WRONG_REGION",
            f"{summary}: the bucket is in another region than requested",
            context=context,
            hint="set `storage: {region: ...}`, or AWS_REGION, to the bucket's own",
        )
    return TransientError(
        "STORAGE_UNAVAILABLE",
        f"{summary}: the store does not respond as expected",
        context=context,
        hint="is the endpoint right, and can this machine reach it?",
    )


def first_line(error: BaseException) -> str:
    """The cause in one line: the status and the store's own code, or what happened to the connection."""
    # The trace of a name node is of no use here.
    head, _, tree = re.split(r"\n\s+at ", str(error).strip())[0].partition("\n\nDebug source")
    status = re.search(r"status code: (\d+ [A-Za-z ]+)", head)
    code = re.search(r"<Code>(\w+)</Code>", head)
    met = re.findall(r'message: "([^"]+)"', tree)
    if status is not None:
        return f"{status[1].strip()}{f', {code[1]}' if code is not None else ''}"
    text = re.sub(r"\s+", " ", head.rpartition(" - ")[2] or type(error).__name__)[:300]
    return f"{text}: {met[-1]}" if met else text
