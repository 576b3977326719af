"""The user's own Python that a pipeline names, found and imported before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from penstock import config as cfg
from penstock.config.files import referred_to_in, secret_files
from penstock.config.problems import Path
from penstock.errors import DefinitionError, MissingError

if TYPE_CHECKING:  # it imports Arrow, which `validate` does not need
    from penstock.spark.shipping import UserCode


def folder_of(config: cfg.PipelineConfig) -> FilePath:
    """The module folder of a pipeline: the folder of its file."""
    return config.file.absolute().parent if config.file is not None else FilePath.cwd()


def refuse_missing_code(config: cfg.PipelineConfig) -> None:
    """Raise `InvalidDefinition` with every module or name that cannot be imported, at its place in the file."""
    problems: list[cfg.Problem] = []
    for dotted, path in _named(config):
        from penstock.transforms.user import load

        try:
            load(str(folder_of(config)), dotted)
        except DefinitionError as error:
            context = [f"{name}: {value}" for name, value in error.context.items()]
            problems.append(config.positions.problem(path, error.summary, context=context, hint=error.hint))
    if problems:
        raise cfg.InvalidDefinition(problems)


def code_behind(config: cfg.PipelineConfig) -> frozenset[FilePath]:
    """The files of the user's own Python that a pipeline was imported from."""
    found: set[FilePath] = set()
    for dotted, _ in _named(config):
        from penstock.transforms.user import files_of

        found |= files_of(str(folder_of(config)), dotted)
    return frozenset(found)


def code_to_ship(config: cfg.PipelineConfig) -> UserCode | None:
    """The user's files to ship to other machines: the modules that the steps import, and the listed files; nothing else
    in the folder.

    Raises if one of them is outside the folder, or contains a secret: a file that this or a neighbouring pipeline file
    references by `${file:...}`.
    """
    from penstock.spark.shipping import UserCode

    folder, listed = folder_of(config), config.cluster.extra_files if config.cluster is not None else ()
    files = {FilePath(one) for one in listed} | code_behind(config)
    for dotted, _ in _named(config):
        from penstock.transforms.user import imported_files

        files |= imported_files(folder, dotted.rpartition(".")[0])
    if not files:
        return None
    secret = {file.resolve() for file in (*secret_files(config), *referred_to_in(folder))}
    return UserCode(folder, tuple(sorted(_shippable(file, folder, secret) for file in files)))


def _shippable(file: FilePath, folder: FilePath, secret: set[FilePath]) -> str:
    """The name of a file relative to the folder. Raises if it must not be shipped."""
    if file.resolve() in secret:
        raise DefinitionError(
            "FILE_IS_SECRET",
            "packing the pipeline: a file to ship is named by ${file:...}, which is for secrets",
            context={"file": file},
            hint="remove it from cluster.extra_files, or read it without a reference",
        )
    if not file.is_file():
        raise MissingError(
            "FILE_UNUSABLE",
            "packing the pipeline: a file of cluster.extra_files does not exist",
            context={"file": file},
        )
    return name_below(folder, file)


def name_below(folder: FilePath, file: FilePath) -> str:
    """The name of a file relative to a folder. Raises if it is outside."""
    try:
        return str(file.absolute().resolve().relative_to(folder.resolve()))
    except ValueError:
        raise MissingError(
            "FILE_OUTSIDE_FOLDER",
            "packing the pipeline: a referenced file is not below its folder",
            context={"file": file, "folder": folder},
            hint="move it next to the pipeline file, and reference it there",
        ) from None


def _named(config: cfg.PipelineConfig) -> Iterator[tuple[str, Path]]:
    for flow in cfg.flows(config):
        places = [(side.path, side.transforms) for side in flow.sides] + [(flow.path, flow.transforms)]
        for at, steps in places:
            for index, step in enumerate(steps):
                path: Path = (*at, "transforms", index)
                match step:
                    case cfg.MapArrowConfig():
                        yield step.map_arrow.function, (*path, "map_arrow")
                    case cfg.PythonConfig():
                        yield step.python, (*path, "python")
                    case cfg.StatefulConfig():
                        yield step.stateful.cls, (*path, "stateful", "class")
