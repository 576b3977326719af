"""Finding pipeline files, and the other files that a definition consists of.

References in it, `${env:NAME}`, `${env:NAME:-default}` and `${file:path}`, are replaced by their values. A reference
may be a whole value or a part of it. `$${` is a literal `${`. The value of a reference never appears in a position or a
message: those show the file's own text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from penstock.config.fields import FromReference, SecretKind, expand_home, is_secret, is_uri
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import Path
from penstock.config.yaml_source import MAX_BYTES, Document, put

_ENDINGS = (".yaml", ".yml")
_CASES = tuple(f".test{ending}" for ending in _ENDINGS)


def pipeline_files(paths: Iterable[FilePath]) -> list[FilePath]:
    """The pipeline files for the given paths: a folder means every `*.yaml` and `*.yml` in it except case files.

    Duplicates are removed.
    """
    found: dict[FilePath, FilePath] = {}
    for path in paths:
        for file in sorted(filter(_is_pipeline, path.iterdir())) if path.is_dir() else (path,):
            found.setdefault(file.absolute(), file)
    return list(found.values())


def _is_pipeline(file: FilePath) -> bool:
    # Files starting with a dot are temporary files of editors.
    named = file.suffix in _ENDINGS and not file.name.endswith(_CASES) and not file.name.startswith(".")
    return named and file.is_file()


def files_behind(config: PipelineConfig) -> frozenset[FilePath]:
    """The files of a definition other than code: the file itself, referenced files, schemas, certificates."""
    found = set(_files_in(config))
    if (own := config.file) is not None:
        found.add(own.absolute())
        found |= files_named(_text(own), own.absolute().parent)
    return frozenset(found)


def secret_files(config: PipelineConfig) -> frozenset[FilePath]:
    """The files of a definition that contain secrets: those that it refers to, and private keys."""
    found = set(_files_in(config, ("key_file",)))
    if (own := config.file) is not None:
        found |= files_named(_text(own), own.absolute().parent)
    return frozenset(found)


def referred_to_in(folder: FilePath) -> frozenset[FilePath]:
    """The files that any YAML file in a folder refers to: each may contain a secret of any pipeline."""
    texts = (_text(file) for file in folder.iterdir() if file.suffix in _ENDINGS and file.is_file())
    return frozenset(name for text in texts for name in files_named(text, folder))


def _text(file: FilePath) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(MAX_BYTES)
    except OSError:
        return ""


def _files_in(value: object, endings: tuple[str, ...] = ("_file", "_files")) -> Iterator[FilePath]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            inner = getattr(value, name)
            if name.endswith(endings):
                named = (inner,) if isinstance(inner, str) else inner or ()
                yield from (FilePath(one) for one in named if isinstance(one, str) and not is_uri(one))
            else:
                yield from _files_in(inner, endings)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _files_in(inner, endings)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _files_in(inner, endings)


_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_SETTINGS = ("spark", "options", "properties")
_MAX_FILE_BYTES = 1024 * 1024


class _UnresolvedError(Exception):
    """A reference that cannot be resolved."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def fill_references(file: Document, folder: FilePath) -> None:
    """Fill every reference in place. Unresolved ones become problems."""
    for path, text in list(_texts(file.data, ())):
        if "${" not in text:
            continue
        try:
            value, count = _fill(text, folder)
        except _UnresolvedError as error:
            file.report(path, error.message, hint=error.hint)
            file.broken.add(path)
            continue
        # For other keys the models say whether they are secrets; for a free-form setting only the user knows.
        setting = count and len(path) > 1 and path[-2] in _SETTINGS
        put(file.data, path, FromReference(value) if setting else value)
        if count:
            file.filled.add(path)


def literal_part(text: str) -> str:
    """The text of the file with every reference reduced to its default."""
    return _REFERENCE.sub(lambda m: "" if m[1] is None else m[1].partition(":-")[2], text)


def files_named(text: str, folder: FilePath) -> set[FilePath]:
    """The files that a text refers to."""
    bodies = (match[1] for match in _REFERENCE.finditer(text) if match[1] is not None)
    return {folder / expand_home(body.removeprefix("file:")) for body in bodies if body.startswith("file:")}


def variables_named(text: str) -> dict[str, bool]:
    """The environment variables that a text refers to; true for one without a default somewhere."""
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
            raise _UnresolvedError("the reference does not name a variable", "write ${env:NAME}")
        value = os.environ.get(name)
        # As in a shell: `:-` also applies to a variable that is set but empty.
        if has_default and not value:
            return default
        if value is None:
            raise _UnresolvedError(f"the environment variable {name} is not set", f"set it: export {name}=...")
        return value
    if kind == "file":
        return _file_text(rest, folder)
    raise _UnresolvedError(
        f"unknown reference ${{{body}}}",
        "write ${env:NAME}, ${env:NAME:-default} or ${file:path}; write a literal ${ as $${",
    )


def _file_text(name: str, folder: FilePath) -> str:
    file = folder / expand_home(name)
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _UnresolvedError(f"the file {name} does not exist", "the path is relative to the pipeline file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise _UnresolvedError(f"reading the file {name}: {reason}") from None
    if len(text) > _MAX_FILE_BYTES:
        raise _UnresolvedError(f"the file {name} is larger than {_MAX_FILE_BYTES:,} bytes")
    if "\0" in text:
        raise _UnresolvedError(f"the file {name} contains a zero byte, which is not allowed in a value")
    return text.rstrip("\r\n")


_ASSIGNED = re.compile(
    r"(password|passwd|secret|token|accountkey|accesskey|signature|[;?&]sig)\s*=\s*[\"']?[^\s\"';&]", re.IGNORECASE
)
_CREDENTIALS = re.compile(r"authorization|cookie|api-?key|auth-?key", re.IGNORECASE)
_SCHEMES = ("", "bearer", "basic", "digest", "token", "apikey", "geniekey")
"""What comes before the secret in a header of HTTP."""


def check_secret(file: Document, path: Path, kind: SecretKind) -> None:
    """Report a secret that is written out in the file. It is never repeated."""
    text, name = file.positions.values[path].text, str(path[-1])
    literal = literal_part(text)
    assigned, bare = bool(_ASSIGNED.search(literal)), literal.strip().lower() not in _SCHEMES
    match kind:
        case SecretKind.URL:
            exposed = assigned or _has_password(literal)
        case SecretKind.WEBHOOK:
            exposed = _has_password(literal)
        case SecretKind.HEADER:
            exposed = bare and (is_secret(name) or _CREDENTIALS.search(name) is not None)
        case SecretKind.SETTING if not is_secret(name):
            exposed = assigned
        case _:
            # A composed setting (JAAS) has harmless text around its references; a plain one has nothing else.
            exposed = assigned if path in file.filled and "=" in text else bare
    if exposed:
        file.report(path, "the file contains a secret in plain text", hint="write it as ${env:NAME} or ${file:path}")
    elif kind is SecretKind.SETTING and path in file.filled and name.endswith("JavaOptions"):
        message = "these options are visible on the command line to every user of the machine: not for a reference"
        file.report(path, message, hint="write them out, and pass secrets through a setting or a file")


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False
