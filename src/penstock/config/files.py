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
        try:
            text = own.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        found |= files_named(text, own.absolute().parent)
    return frozenset(found)


def _files_in(value: object) -> Iterator[Path]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            inner = getattr(value, name)
            if name.endswith(("_file", "_files")):
                named = (inner,) if isinstance(inner, str) else inner or ()
                yield from (Path(one) for one in named if isinstance(one, str) and not is_uri(one))
            else:
                yield from _files_in(inner)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _files_in(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _files_in(inner)
