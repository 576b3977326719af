"""What a pipeline file takes along to another machine: itself, what it refers to, the user's own Python; never data.

Enters: a pipeline. Leaves: the files by their names beside the pipeline file, told apart into what anyone may read and
what is a secret, and the names of the environment variables that the file refers to. No secret is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.config import PipelineConfig
from penstock.config.files import files_behind
from penstock.config.references import files_named, variables_named
from penstock.errors import MissingError
from penstock.runtime.reaching import places_of
from penstock.runtime.user_code import folder_of, uses_code
from penstock.spark.shipping import code_in

_KEYS = ("key_file",)


@dataclass(frozen=True, slots=True)
class Parcel:
    """The files of a pipeline, by their names relative to its folder."""

    folder: Path
    pipeline: str
    """The name of the pipeline file itself."""
    files: tuple[str, ...]
    """What anyone may read, the pipeline file among them."""
    secret_files: tuple[str, ...]
    variables: Mapping[str, bool]
    """The environment variables that the file refers to; each may be a secret. False where there is a default."""


def parcel_of(config: PipelineConfig) -> Parcel:
    """What the pipeline takes along. Raises where a file lies outside its folder."""
    file = config.file
    if file is None:
        raise MissingError("FILE_UNUSABLE", f"pipeline {config.name} was not loaded from a file")
    folder, text = folder_of(config), file.read_text(encoding="utf-8", errors="replace")
    secret = {_beside(folder, one) for one in (*files_named(text, folder), *_key_files(config))}
    plain = {_beside(folder, one) for one in files_behind(config)} - secret
    if uses_code(config):
        plain |= set(code_in(folder, frozenset(places_of(config)))) - secret
    return Parcel(folder, file.name, tuple(sorted(plain)), tuple(sorted(secret)), variables_named(text))


def _beside(folder: Path, file: Path) -> str:
    try:
        return str(file.absolute().resolve().relative_to(folder.resolve()))
    except ValueError:
        raise MissingError(
            "FILE_OUTSIDE_FOLDER",
            "packing the pipeline: a file that it refers to is not below its folder",
            context={"file": file, "folder": folder},
            hint="put it beside the pipeline file, and refer to it from there",
        ) from None


def _key_files(value: object) -> Iterator[Path]:
    """The files of private keys that some section of the file names."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            inner = getattr(value, name)
            if name in _KEYS and isinstance(inner, str):
                yield Path(inner)
            else:
                yield from _key_files(inner)
    elif isinstance(value, dict | tuple | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _key_files(inner)
