"""The user's own Python that a pipeline names, found and imported before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath

from penstock import config as cfg
from penstock.config.problems import Path
from penstock.errors import DefinitionError


def folder_of(config: cfg.PipelineConfig) -> FilePath:
    """Where the modules of a pipeline are: beside its file."""
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


def uses_code(config: cfg.PipelineConfig) -> bool:
    """Whether a step is Python of the user's own."""
    return any(True for _ in _named(config))


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
