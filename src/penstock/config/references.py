"""References: `${env:NAME}`, `${env:NAME:-default}` and `${file:path}` become the values they stand for.

A reference may be all of a value or a part of it. `$${` is a plain `${`. What a reference gives is never kept
in a position or a message: those show the file's own text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from penstock.config.fields import FromReference, expand_home
from penstock.config.problems import Path
from penstock.config.yaml_source import Source, put

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_SETTINGS = ("spark", "options", "properties")
_MAX_FILE_BYTES = 1024 * 1024


class _UnresolvedError(Exception):
    """A reference that stands for nothing."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def fill_references(source: Source, folder: FilePath) -> frozenset[Path]:
    """Fill every reference in place and return the paths that had one. Unresolved ones become problems."""
    filled = set()
    for path, text in list(_texts(source.data, ())):
        if "${" not in text:
            continue
        try:
            value, count = _fill(text, folder)
        except _UnresolvedError as error:
            source.problems.append(source.positions.problem(path, error.message, hint=error.hint))
            source.broken.add(path)
            continue
        # Of other keys the models know whether they hold a secret; of a free-form setting nobody but the user does.
        setting = count and len(path) > 1 and path[-2] in _SETTINGS
        put(source.data, path, FromReference(value) if setting else value)
        if count:
            filled.add(path)
    return frozenset(filled)


def literal_part(text: str) -> str:
    """What the file itself says: the text with every reference cut down to its default."""
    return _REFERENCE.sub(lambda m: "" if m[1] is None else m[1].partition(":-")[2], text)


def files_named(text: str, folder: FilePath) -> set[FilePath]:
    """The files whose contents stand in a text by reference."""
    bodies = (match[1] for match in _REFERENCE.finditer(text) if match[1] is not None)
    return {folder / expand_home(body.removeprefix("file:")) for body in bodies if body.startswith("file:")}


def variables_named(text: str) -> dict[str, bool]:
    """The environment variables that stand in a text by reference; true for one without a default somewhere."""
    found: dict[str, bool] = {}
    for match in _REFERENCE.finditer(text):
        if match[1] is not None and match[1].startswith("env:"):
            name, has_default, _ = match[1].removeprefix("env:").partition(":-")
            found[name] = found.get(name, False) or not has_default
    return found


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*path, key))


def _fill(text: str, folder: FilePath) -> tuple[str, int]:
    count = 0

    def resolve(match: re.Match[str]) -> str:
        nonlocal count
        if match[1] is None:
            return "${"
        count += 1
        if not match[0].endswith("}"):
            raise _UnresolvedError(f"the reference {match[0]} has no closing brace")
        return _resolve(match[1], folder)

    return _REFERENCE.sub(resolve, text), count


def _resolve(body: str, folder: FilePath) -> str:
    kind, _, rest = body.partition(":")
    if kind == "env":
        name, has_default, default = rest.partition(":-")
        if not name:
            raise _UnresolvedError("the reference names no variable", "write ${env:NAME}")
        value = os.environ.get(name)
        # As in a shell: `:-` also stands in for a variable that is set and empty.
        if has_default and not value:
            return default
        if value is None:
            raise _UnresolvedError(f"the environment variable {name} is not set", f"set it: export {name}=...")
        return value
    if kind == "file":
        return _file_text(rest, folder)
    raise _UnresolvedError(
        f"the reference ${{{body}}} is of no known kind",
        "write ${env:NAME}, ${env:NAME:-default} or ${file:path}; a plain ${ is written $${",
    )


def _file_text(name: str, folder: FilePath) -> str:
    file = folder / expand_home(name)
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _UnresolvedError(f"the file {name} is not there", "the path is relative to the pipeline file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _UnresolvedError(f"reading the file {name}: {reason}") from None
    if len(text) > _MAX_FILE_BYTES:
        raise _UnresolvedError(f"the file {name} is larger than {_MAX_FILE_BYTES:,} bytes")
    if "\0" in text:
        raise _UnresolvedError(f"the file {name} holds a zero byte, which no value may have")
    return text.rstrip("\r\n")
