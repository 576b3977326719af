"""The columns after each step, as far as they can be known without Spark, and what is wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.config.ddl import Column, ColumnsError, ColumnType, read_columns, read_type
from penstock.config.decode import (
    FormatConfig,
    JsonDecodeConfig,
    JsonKeyConfig,
    KeyDecodeConfig,
    RawDecodeConfig,
    RawKeyConfig,
    TextDecodeConfig,
    TextKeyConfig,
)
from penstock.config.expressions import ExpressionError, read_query
from penstock.config.fields import COORDINATES, ComputingStep
from penstock.config.flows import Flow, flows
from penstock.config.known import Known, Report, check_columns, check_expression, check_new, check_reference
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import Path
from penstock.config.stateful import JoinConfig
from penstock.config.stateful_checks import STATEFUL, check_order, dedupe_within, join
from penstock.config.step_checks import EVERYDAY, coordinates_last, needs_coordinates
from penstock.config.transforms import (
    CastConfig,
    DedupeConfig,
    DeriveConfig,
    DropConfig,
    RenameConfig,
    SqlConfig,
    TransformConfig,
    WhereConfig,
)

COORDINATES_TYPE = read_type("STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>")
RAW_COLUMNS = read_columns("key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")


@dataclass(frozen=True, slots=True)
class StageColumns:
    """The columns that leave one step; None where only Spark can tell."""

    step: str
    columns: tuple[tuple[str, str | None], ...] | None
    """Each name with its type as Spark SQL writes it, or None where the type is not known yet."""


def decoded_columns(decode: FormatConfig) -> tuple[Column, ...] | None:
    """The columns that leave the decoder, without the coordinates; None where a schema elsewhere decides."""
    if isinstance(decode, RawDecodeConfig):
        return RAW_COLUMNS
    columns = _value_columns(decode)
    if columns is None or decode.key is None:
        return columns
    kind = _key_type(decode.key)
    return (*columns, Column(decode.key.column, kind)) if kind is not None else None


def _key_type(key: KeyDecodeConfig) -> ColumnType | None:
    match key:
        case TextKeyConfig():
            return ColumnType("STRING")
        case RawKeyConfig():
            return ColumnType("BINARY")
        case JsonKeyConfig() if key.columns is not None:
            return ColumnType("STRUCT", fields=_json_columns(key, key.columns))
    return None


def _value_columns(decode: FormatConfig) -> tuple[Column, ...] | None:
    if isinstance(decode, TextDecodeConfig):
        return (Column(decode.column, ColumnType("STRING"), nullable=decode.tombstones == "pass"),)
    if isinstance(decode, JsonDecodeConfig) and decode.columns is not None:
        return _json_columns(decode, decode.columns)
    return None


def _json_columns(decode: JsonDecodeConfig | JsonKeyConfig, text: str) -> tuple[Column, ...]:
    columns = read_columns(text)
    if decode.extra_fields == "keep":
        map_of_text = ColumnType("MAP", items=(ColumnType("STRING"), ColumnType("STRING")))
        columns += (Column(decode.extra_column, map_of_text),)
    return columns


def columns_after(config: PipelineConfig) -> tuple[StageColumns, ...]:
    """The columns after decode and after each transform."""

    def ignore(path: Path, message: str, **_: object) -> None:
        """A loaded pipeline has no problems left."""

    found: list[StageColumns] = []
    for flow in flows(config):
        decoded = {path: decoded_columns(decode) for decode, path, _ in flow.decoders if decode is not None}
        if flow.sides:
            stages, _ = follow_join(decoded, flow, ignore)
        else:
            stages, _ = follow(decoded[flow.decode_path], flow, ignore)
        found += stages
    return tuple(found)


def follow(decoded: Sequence[Column] | None, flow: Flow, report: Report) -> tuple[tuple[StageColumns, ...], Known]:
    """Go through the steps of a flow, report what is wrong, and return the columns by step and at the end.

    A transform that is None was refused already: after it nothing is known.
    """
    known = _decoded(decoded)
    label = f"{flow.name} " if flow.name else ""
    stages = [_stage(f"{label}decode", known)]
    if flow.where is not None and not flow.otherwise:
        check_expression(flow.where, known, (*flow.path, "where"), report)
    check_order(flow, report)
    stages += _steps(flow.transforms, known, flow.path, label, report)
    return tuple(stages), known


def follow_join(
    decoded: Mapping[Path, Sequence[Column] | None], flow: Flow, report: Report
) -> tuple[tuple[StageColumns, ...], Known]:
    """The same for a flow that joins sources, each with its own columns and steps."""
    stages: list[StageColumns] = []
    sides: dict[str, Known] = {}
    for side in flow.sides:
        known = _decoded(decoded.get(side.decode_path))
        stages += [_stage(f"{side.name} decode", known)]
        stages += _steps(side.transforms, known, side.path, f"{side.name} ", report)
        sides[side.name] = known
    check_order(flow, report)
    known = Known(None, needs_quarantine=[path for side in sides.values() for path in side.needs_quarantine])
    first, *others = flow.transforms or (None,)
    if isinstance(first, JoinConfig):
        join(flow, first, sides, known, ("transforms", 0, "join"), report)
        stages.append(_stage("transforms[0] join", known))
    stages += _steps(others, known, flow.path, "", report, first=1)
    return tuple(stages), known


def _decoded(columns: Sequence[Column] | None) -> Known:
    if columns is None:
        return Known(None)
    return Known({**{column.name: column.type for column in columns}, COORDINATES: COORDINATES_TYPE})


def _steps(
    transforms: Sequence[TransformConfig | None], known: Known, at: Path, label: str, report: Report, first: int = 0
) -> list[StageColumns]:
    stages = []
    for index, transform in enumerate(transforms, first):
        if transform is None:
            known.types, known.watermark = None, known.watermark or ""  # It may have been one.
            continue
        path: Path = (*at, "transforms", index, transform.kind)
        if isinstance(transform, ComputingStep) and transform.on_error == "quarantine":
            known.needs_quarantine.append((*path[:-1], "on_error"))
            needs_coordinates(known, (*path[:-1], "on_error"), report)
        _STEPS[type(transform)](transform, known, path, report)
        known.decoded = known.decoded and isinstance(transform, WhereConfig | DedupeConfig | CastConfig)
        stages.append(_stage(f"{label}transforms[{index}] {transform.kind}", known))
    return stages


def _where(step: WhereConfig, known: Known, path: Path, report: Report) -> None:
    check_expression(step.where, known, path, report)


def _derive(step: DeriveConfig, known: Known, path: Path, report: Report) -> None:
    neighbours = dict.fromkeys(step.derive, "made by this same step: use it in a derive step after this one")
    known.gone |= {name: why for name, why in neighbours.items() if name not in (known.types or ())}
    for name, expression in step.derive.items():
        check_new(name, known, (*path, name), report, replaces=True)
        check_expression(expression, known, (*path, name), report)
    for name in neighbours:
        known.gone.pop(name, None)
    if known.types is not None:
        known.types |= dict.fromkeys(step.derive)
        coordinates_last(known.types)


def _rename(step: RenameConfig, known: Known, path: Path, report: Report) -> None:
    taken: dict[str, str] = {}
    for old, new in step.rename.items():
        here = (*path, old)
        if old == COORDINATES:
            report(here, f'"{COORDINATES}" carries the coordinates and keeps its name', at_key=True)
        else:
            known.has(report, here, old, at_key=True)
        check_new(new, known, here, report, without=step.rename)
        if new.lower() in taken:
            report(here, f'two columns cannot both become "{new}"', context=[f"the other: {taken[new.lower()]}"])
        taken[new.lower()] = old
        known.gone[old] = f'renamed to "{new}" by {_step(path)}'
    if known.types is not None:
        known.types = {step.rename.get(name, name): kind for name, kind in known.types.items()}


def _drop(step: DropConfig, known: Known, path: Path, report: Report) -> None:
    for index, name in enumerate(step.drop):
        here = (*path, index)
        if name == COORDINATES:
            report(here, f'"{COORDINATES}" carries the coordinates and cannot be dropped', hint=_LEAVE_OUT)
        elif known.has(report, here, name) and known.types is not None:
            known.types.pop(name)
            known.gone[name] = f"dropped by {_step(path)}"
    if known.types is not None and not known.names():
        report(path, "no column is left after this step")


def _cast(step: CastConfig, known: Known, path: Path, report: Report) -> None:
    for name, text in step.cast.items():
        here = (*path, name)
        if name == COORDINATES:
            report(here, f'"{COORDINATES}" carries the coordinates and keeps its type', at_key=True)
            continue
        there = known.has(report, here, name, at_key=True)
        try:
            target = read_type(text)
        except ColumnsError as error:
            report(here, error.message, offset=error.offset, hint=error.hint)
            continue
        if there and known.types is not None:
            known.types[name] = target


def _dedupe(step: DedupeConfig, known: Known, path: Path, report: Report) -> None:
    if step.dedupe.within is not None:
        dedupe_within(step, known, path, report)
        return
    if known.types is not None and COORDINATES not in known.types:
        hint = f"select {COORDINATES} in the sql step before"
        report(path, f'dedupe keeps the newest offset, but the column "{COORDINATES}" is gone', hint=hint)
    check_columns(step.keys, known, (*path, "keys"), report)


def _sql(step: SqlConfig, known: Known, path: Path, report: Report) -> None:
    try:
        query = read_query(step.sql)
    except ExpressionError as error:
        report(path, error.message, offset=error.offset, hint=error.hint)
        known.types = None
        return
    for reference in query.references:
        check_reference(reference, known, path, report, fold=True)
    known.gone = {}
    if query.outputs is None or ("*" in query.outputs and known.types is None):
        known.types = None
        return
    types = known.types or {}
    known.gone = dict.fromkeys(types, f"not selected by {_step(path)}")
    after: dict[str, ColumnType | None] = {}
    for output in query.outputs:
        new = types if output == "*" else {output: types.get(output)}
        for name in new:
            if name.lower() in (other.lower() for other in after):
                report(path, f'the query gives the column "{name}" twice', hint="give one of them another name")
        after |= new
    known.types = after


def _join_misplaced(known: Known) -> None:
    """A join that is not the first step is reported with the order of the steps; after it nothing is known."""
    known.types = None


def _step(path: Path) -> str:
    return f"{path[-3]}[{path[-2]}]"


def _stage(step: str, known: Known) -> StageColumns:
    if known.types is None:
        return StageColumns(step, None)
    return StageColumns(step, tuple((name, str(kind) if kind else None) for name, kind in known.types.items()))


_LEAVE_OUT = "to leave it out of a table: coordinates: false in the sink"
_STEPS: dict[type, Callable[..., None]] = {
    WhereConfig: _where,
    DeriveConfig: _derive,
    RenameConfig: _rename,
    DropConfig: _drop,
    CastConfig: _cast,
    DedupeConfig: _dedupe,
    SqlConfig: _sql,
    **EVERYDAY,
    **STATEFUL,
    JoinConfig: lambda step, known, path, report: _join_misplaced(known),
}
