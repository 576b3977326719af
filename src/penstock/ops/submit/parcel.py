"""What a pipeline file takes along: itself, what it refers to, the Python that its steps import, what it lists.

Enters: a pipeline. Leaves: the files by their names beside the pipeline file, told apart into what anyone may read and
what is a secret, and the names of the environment variables that the file refers to. No secret is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.assembly.user_code import code_to_ship, folder_of, name_below
from penstock.config import PipelineConfig
from penstock.config.files import files_behind, secret_files
from penstock.config.references import variables_named
from penstock.errors import MissingError


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
    secret = {name_below(folder, one) for one in secret_files(config)}
    plain = {name_below(folder, one) for one in files_behind(config)} - secret
    if (code := code_to_ship(config)) is not None:
        plain |= set(code.files)
    return Parcel(folder, file.name, tuple(sorted(plain)), tuple(sorted(secret)), variables_named(text))
