"""What has to hold of the everyday steps, and the columns that leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config.ddl import ColumnsError, ColumnType, read_columns
from penstock.config.everyday import (
    EnrichConfig,
    ExpectConfig,
    ExplodeConfig,
    FlattenConfig,
    MapArrowConfig,
    MaskConfig,
    MaskSettings,
    PythonConfig,
)
from penstock.config.fields import COORDINATES
from penstock.config.known import Known, Report, check_expression, check_new
from penstock.config.problems import Path

STRING = ColumnType("STRING")
Types = dict[str, ColumnType | None]


def explode(step: ExplodeConfig, known: Known, path: Path, report: Report) -> None:
    """The column is an array or a map; its elements take its place."""
    settings = step.explode
    if not known.has(report, (*path, "column"), settings.column) or known.types is None:
        return
    kind = known.types[settings.column]
    if kind is not None and kind.name not in ("ARRAY", "MAP"):
        report((*path, "column"), f'column "{settings.column}" is {kind}; explode takes ARRAY or MAP')
        return
    into = settings.into or settings.column
    new: Types = {into: kind.items[0] if kind is not None else None}
    if kind is None and settings.into is None and settings.position is None:
        known.types = None
        return
    if kind is not None and kind.name == "MAP":
        new = {f"{into}_key": kind.items[0], f"{into}_value": kind.items[1]}
    for name in new:
        key = "as" if settings.into is not None else "column"
        check_new(name, known, (*path, key), report, without=[settings.column])
    if settings.position is not None:
        check_new(settings.position, known, (*path, "position"), report, without=[settings.column])
        new = {settings.position: ColumnType("INT"), **new}
    known.types = _replaced(known.types, {settings.column: new})


def flatten(step: FlattenConfig, known: Known, path: Path, report: Report) -> None:
    """The columns are structs; their fields take their places."""
    settings = step.flatten
    for index, name in enumerate(settings.columns or ()):
        here = (*path, "columns", index)
        if known.has(report, here, name) and known.types is not None:
            kind = known.types[name]
            if kind is not None and kind.name != "STRUCT":
                report(here, f'column "{name}" is {kind}; flatten takes STRUCT')
    if known.types is None or (settings.columns is None and None in known.types.values()):
        known.types = None
        return
    named = settings.columns or [n for n, kind in known.types.items() if kind and kind.name == "STRUCT"]
    parts: dict[str, Types] = {}
    for name in named:
        kind = known.types.get(name)
        if kind is None:
            known.types = None
            return
        if name != COORDINATES:
            parts[name] = _fields(name, kind, settings.separator, settings.depth)
            known.gone[name] = f"flattened by {_step(path)}"
    for name, fields in parts.items():
        for field in fields:
            others = [n.lower() for n in known.types if n not in parts]
            others += [n.lower() for other, its in parts.items() if other != name for n in its]
            if field.lower() in others:
                message = f'flattening "{name}" gives the column "{field}", which is there already'
                report(path, message, hint="set another separator, or rename the other column before", at_key=True)
    known.types = _replaced(known.types, parts)


def mask(step: MaskConfig, known: Known, path: Path, report: Report) -> None:
    """The columns are there, and are text afterwards."""
    for name, how in step.mask.items():
        here = (*path, name)
        if name == COORDINATES:
            report(here, f'"{COORDINATES}" carries the coordinates and stays as it is', at_key=True)
            continue
        if isinstance(how, MaskSettings) and (how.hash is None) == (how.keep_last is None):
            report(here, "exactly one of hash and keep_last is needed", at_key=True)
        there = known.has(report, here, name, at_key=True)
        if there and known.types is not None:
            kind = known.types[name]
            if kind is not None and (kind.nested or kind.name == "BINARY"):
                report(here, f'column "{name}" is {kind}, which has no text to mask', at_key=True)
            known.types[name] = STRING


def expect(step: ExpectConfig, known: Known, path: Path, report: Report) -> None:
    """Each rule is an expression over the columns."""
    for name, rule in step.expect.items():
        check_expression(rule.rule, known, (*path, name, "rule"), report)
        if rule.action == "quarantine":
            known.needs_quarantine.append((*path, name))
            needs_coordinates(known, (*path, name), report)


def map_arrow(step: MapArrowConfig, known: Known, path: Path, report: Report) -> None:
    """Only the function knows what leaves it, unless the file says."""
    if step.map_arrow.on_error == "quarantine":
        known.needs_quarantine.append((*path, "on_error"))
        needs_coordinates(known, path, report)
    had = known.types
    known.gone = dict.fromkeys(had or (), f"not given by {_step(path)}")
    known.types = declared(step.map_arrow.columns, (*path, "schema"), report)
    if known.types is not None and (had is None or COORDINATES in had):
        known.types[COORDINATES] = had[COORDINATES] if had is not None else None


def python(step: PythonConfig, known: Known, path: Path, report: Report) -> None:
    """Only Spark knows what leaves it."""
    known.gone, known.types = {}, None


def enrich(step: EnrichConfig, known: Known, path: Path, report: Report) -> None:
    """The keys are there, the new columns are not."""
    settings = step.enrich
    for name in settings.on:
        known.has(report, (*path, "on"), name, at_key=True)
    if settings.on_miss == "quarantine":
        known.needs_quarantine.append((*path, "on_miss"))
        needs_coordinates(known, path, report)
    if settings.take is None:
        known.types = None
        return
    for name in settings.take:
        check_new(name, known, (*path, "take"), report)
    if known.types is not None:
        known.types |= dict.fromkeys(settings.take)
        coordinates_last(known.types)


def declared(text: str | None, path: Path, report: Report) -> Types | None:
    """The columns of a `schema:`; None where there is none or it is wrong."""
    if text is None:
        return None
    try:
        return {column.name: column.type for column in read_columns(text)}
    except ColumnsError as error:
        report(path, error.message, offset=error.offset, hint=error.hint)
        return None


def needs_coordinates(known: Known, path: Path, report: Report) -> None:
    """A record is found again by its coordinates."""
    if known.types is not None and COORDINATES not in known.types:
        message = f'a record is quarantined by its coordinates, and the column "{COORDINATES}" is gone'
        report(path, message, hint=f"select {COORDINATES} in the step before", at_key=True)


def coordinates_last(types: Types) -> None:
    """Move the coordinates to the end, where they belong."""
    if COORDINATES in types:
        types[COORDINATES] = types.pop(COORDINATES)


def _replaced(types: Types, parts: Mapping[str, Types]) -> Types:
    return {new: kind for name, old in types.items() for new, kind in parts.get(name, {name: old}).items()}


def _fields(name: str, kind: ColumnType, separator: str, depth: int | None) -> Types:
    found: Types = {}
    for field in kind.fields:
        inner = f"{name}{separator}{field.name}"
        if field.type.name == "STRUCT" and depth != 1:
            found |= _fields(inner, field.type, separator, None if depth is None else depth - 1)
        else:
            found[inner] = field.type
    return found


def _step(path: Path) -> str:
    return f"{path[-3]}[{path[-2]}]"


EVERYDAY: Mapping[type, Callable[..., None]] = {
    ExplodeConfig: explode,
    FlattenConfig: flatten,
    MaskConfig: mask,
    ExpectConfig: expect,
    MapArrowConfig: map_arrow,
    PythonConfig: python,
    EnrichConfig: enrich,
}
