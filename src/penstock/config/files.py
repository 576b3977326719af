"""Pipeline files as files: which ones a person means, and which others a definition is made of.

Enters: paths, or a pipeline that was loaded. Leaves: files. Nothing is opened but the pipeline file itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from penstock.config.fields import is_uri
from penstock.config.pipeline import PipelineConfig
from penstock.config.references import files_named
from penstock.config.yaml_source import MAX_BYTES

_ENDINGS = (".yaml", ".yml")
_CASES = tuple(f".test{ending}" for ending in _ENDINGS)


def pipeline_files(paths: Iterable[Path]) -> list[Path]:
    """The pipeline files that the paths stand for: a folder for every `*.yaml` and `*.yml` in it that holds no cases.

    A file that is named twice, or is in a folder that is named too, is there once.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        for file in sorted(filter(_is_pipeline, path.iterdir())) if path.is_dir() else (path,):
            found.setdefault(file.absolute(), file)
    return list(found.values())


def _is_pipeline(file: Path) -> bool:
    # What begins with a dot is an editor's, of a file that is being written.
    named = file.suffix in _ENDINGS and not file.name.endswith(_CASES) and not file.name.startswith(".")
    return named and file.is_file()


def files_behind(config: PipelineConfig) -> frozenset[Path]:
    """The files that a definition is made of beside its code: its own, those it refers to, schemas, certificates."""
    found = set(_files_in(config))
    if (own := config.file) is not None:
        found.add(own.absolute())
        found |= files_named(_text(own), own.absolute().parent)
    return frozenset(found)


def secret_files(config: PipelineConfig) -> frozenset[Path]:
    """The files of a definition that hold secrets: those that it refers to, and private keys."""
    found = set(_files_in(config, ("key_file",)))
    if (own := config.file) is not None:
        found |= files_named(_text(own), own.absolute().parent)
    return frozenset(found)


def referred_to_in(folder: Path) -> frozenset[Path]:
    """The files that any YAML file in a folder refers to: each may hold a secret, of whichever pipeline."""
    texts = (_text(file) for file in folder.iterdir() if file.suffix in _ENDINGS and file.is_file())
    return frozenset(name for text in texts for name in files_named(text, folder))


def _text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(MAX_BYTES)
    except OSError:
        return ""


def _files_in(value: object, endings: tuple[str, ...] = ("_file", "_files")) -> Iterator[Path]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            inner = getattr(value, name)
            if name.endswith(endings):
                named = (inner,) if isinstance(inner, str) else inner or ()
                yield from (Path(one) for one in named if isinstance(one, str) and not is_uri(one))
            else:
                yield from _files_in(inner, endings)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _files_in(inner, endings)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _files_in(inner, endings)
