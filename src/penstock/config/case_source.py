"""A case file as values with their places. As a pipeline file is read, but here a null is a value like others.

Messages and rows hold text that nobody checks against a type, so that what YAML 1.1 makes of `NO` is a problem too.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import yaml

from penstock.config.problems import InvalidDefinition, Path, Positions, Problem, Spot
from penstock.config.yaml_source import TAG, Reading, Source, compose_bounded, read_yaml_text

_NULL: Any = object()
"""Stands for a null while the file is read: to the reading of a pipeline file None means a problem."""


def read_case_source(file: FilePath) -> Source:
    """Read a case file. Raises where it cannot be read as one mapping at all."""
    name = str(file)
    text = read_yaml_text(file, name)
    root = compose_bounded(name, text)
    if not isinstance(root, yaml.MappingNode):
        raise InvalidDefinition([Problem(name, 1, 1, "", "the file is no mapping", ("expected: cases: [...]",))])
    reading = _CaseReading(name, text)
    data = _with_nulls(reading.mapping(root, ()))
    return Source(Positions(name, reading.values, reading.keys), data, reading.problems, reading.broken)


class _CaseReading(Reading):
    def _scalar(self, node: Any, path: Path, spot: Spot) -> Any:
        if node.tag == f"{TAG}null":
            return _NULL
        if node.tag == f"{TAG}bool" and spot.text.lower() not in ("true", "false"):
            self._add(path, spot, f"YAML 1.1 reads {spot.text} as true or false", f'quote it: "{spot.text}"')
            return None
        return super()._scalar(node, path, spot)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value is _NULL else value
