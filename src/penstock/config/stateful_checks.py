"""What has to hold of the steps that keep state: what bounds it, and what may come before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config.ddl import ColumnType
from penstock.config.expressions import ExpressionError, Reference, read_aggregate
from penstock.config.fields import COORDINATES
from penstock.config.flows import Flow
from penstock.config.known import Known, Report, check_columns, check_reference
from penstock.config.problems import Path, did_you_mean
from penstock.config.stateful import JoinConfig, StatefulConfig, WatermarkConfig, WindowConfig
from penstock.config.step_checks import Types, declared
from penstock.config.transforms import DedupeConfig, remembers

TIMESTAMP = ColumnType("TIMESTAMP")
WINDOW_START, WINDOW_END = "window_start", "window_end"
_NUMERIC = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
_OWN_PIPELINE = "write the result to a topic, and read that in a pipeline of its own"


def watermark(step: WatermarkConfig, known: Known, path: Path, report: Report) -> None:
    """One for each source, over a TIMESTAMP column."""
    settings = step.watermark
    if known.closed is not None:
        report(path, f"after {known.closed} there is no event time any more", hint=_OWN_PIPELINE, at_key=True)
    elif known.watermark:
        report(path, "there is a watermark already", hint="keep one of them", at_key=True)
    here = (*path, "column")
    if known.has(report, here, settings.column) and known.types is not None:
        kind = known.types[settings.column]
        if kind is not None and kind != TIMESTAMP:
            hint = f"cast it before: cast: {{{settings.column}: TIMESTAMP}}"
            report(here, f'column "{settings.column}" is {kind}; event time is a TIMESTAMP', hint=hint)
    if settings.late == "quarantine":
        known.needs_quarantine.append((*path, "late"))
    known.watermark = settings.column


def window(step: WindowConfig, known: Known, path: Path, report: Report) -> None:
    """Windows need a watermark; what leaves is the window, its keys and the aggregates."""
    settings = step.window
    _needs_watermark(known, path, report, "a window", "no window would ever be known to be complete")
    if (settings.size is None) == (settings.gap is None):
        message = "only one of size and gap can be given" if settings.gap else "one of size and gap is needed"
        report(path, message, hint="size for windows of one length, gap for sessions", at_key=True)
    elif settings.slide is not None and settings.size is None:
        report((*path, "slide"), "slide means nothing without size", hint="remove slide", at_key=True)
    elif settings.slide is not None and settings.size is not None and settings.slide > settings.size:
        report((*path, "slide"), "slide is longer than size: rows between two windows would be in none")
    elif settings.gap is not None and not settings.by:
        report((*path, "gap"), "sessions need by: Spark has none over all rows together", hint="add by: [...]")
    elif settings.gap is not None and settings.emit == "changes":
        report((*path, "emit"), "sessions that change are not possible: two of them may become one", hint="emit: final")
    check_columns(settings.by, known, (*path, "by"), report)
    after: Types = {WINDOW_START: TIMESTAMP, WINDOW_END: TIMESTAMP}
    after |= {name: (known.types or {}).get(name) for name in settings.by}
    for name, text in settings.aggregates.items():
        here = (*path, "aggregates", name)
        if name.lower() in (other.lower() for other in (*after, COORDINATES)):
            report(here, f'the column "{name}" is there already', at_key=True)
        _check_aggregate(text, known, here, report)
        after[name] = None
    _close(known, path, f"the window of {_step(path)}", {**after, COORDINATES: None})


def dedupe_within(step: DedupeConfig, known: Known, path: Path, report: Report) -> None:
    """Across batches: the watermark says when a key may be forgotten."""
    _needs_watermark(known, path, report, "dedupe within a time", "no key could ever be forgotten")
    check_columns(step.keys, known, (*path, "keys"), report)


def stateful(step: StatefulConfig, known: Known, path: Path, report: Report) -> None:
    """The keys are there; event time needs a watermark; the file says what leaves."""
    settings = step.stateful
    if settings.time == "event":
        _needs_watermark(known, path, report, "time: event", "no timer would ever fire")
    if settings.ttl is not None and settings.time != "processing":
        message = f"state can expire by processing time alone, and time is {settings.time}"
        report((*path, "ttl"), message, hint="write time: processing, or end the state by a timer", at_key=True)
    check_columns(settings.keys, known, (*path, "keys"), report)
    after = declared(settings.columns, (*path, "schema"), report)
    _close(known, path, f"the state of {_step(path)}", {**after, COORDINATES: None} if after is not None else None)


def join(flow: Flow, step: JoinConfig, sides: Mapping[str, Known], known: Known, path: Path, report: Report) -> None:
    """Two sources: keys on both sides, a bound in time, and columns that do not clash."""
    settings = step.join
    for key in ("left", "right"):
        name = getattr(settings, key)
        if name not in sides and len(sides) > 1:
            context = [f"sources: {', '.join(sides)}"]
            report((*path, key), f'there is no source "{name}"', context=context, hint=did_you_mean(name, sides))
    if settings.left == settings.right:
        report(
            (*path, "right"), f'source "{settings.right}" is the left one already', hint="join it with the other one"
        )
    left, right = sides.get(settings.left), sides.get(settings.right)
    if left is None or right is None or settings.left == settings.right:
        _close(known, path, f"the join of {_step(path)}", None)
        return
    for one, other in settings.on.items():
        _check_key(settings.left, left, one, path, report)
        _check_key(settings.right, right, other, path, report)
    if settings.within is None:
        what = "an outer join" if settings.type != "inner" else "a join of two streams"
        message = f"{what} without within keeps every row for ever, waiting for a match"
        report(path, message, hint="add within: 1 hour, or {before: ..., after: ...}", at_key=True)
    for name, side in sides.items():
        if side.watermark is None:
            message = f"source {name} has no watermark, so its rows could never be forgotten"
            hint = f"end sources.{name}.transforms with - watermark: {{column: ..., delay: ...}}"
            report(("sources", name), message, hint=hint, at_key=True)
    if left.types is None or right.types is None:
        _close(known, path, f"the join of {_step(path)}", None)
        return
    taken = {name: kind for name, kind in right.types.items() if name != COORDINATES}
    shared = [one for one, other in settings.on.items() if one == other]
    for name in taken:
        if name not in shared and name.lower() in (column.lower() for column in left.types):
            message = f'both sources have a column "{name}"'
            hint = f"rename or drop it in sources.{settings.right}.transforms"
            report(path, message, hint=hint, at_key=True)
    after = {
        **{n: k for n, k in left.types.items() if n != COORDINATES},
        **taken,
        COORDINATES: left.types.get(COORDINATES),
    }
    _close(known, path, f"the join of {_step(path)}", after)


def _check_key(name: str, side: Known, column: str, path: Path, report: Report) -> None:
    if side.types is not None and column not in side.types:
        context = [f"columns of {name}: {', '.join(side.names())}"]
        hint = did_you_mean(column, side.names())
        report((*path, "on"), f'source {name} has no column "{column}"', context=context, hint=hint, at_key=True)


def check_order(flow: Flow, report: Report) -> None:
    """What keeps rows of one batch only cannot come before what remembers them."""
    last = max((at for at, step in enumerate(flow.transforms) if remembers(step)), default=-1)
    for at, step in enumerate(flow.transforms):
        path: Path = (*flow.path, "transforms", at)
        if isinstance(step, DedupeConfig) and not remembers(step) and at < last:
            message = "dedupe in each batch cannot come before a step that remembers rows from batch to batch"
            report((*path, "dedupe"), message, hint="add within: ..., or move it behind", at_key=True)
        if isinstance(step, JoinConfig) and (at > 0 or not flow.sides):
            message = "a join is the first step of a pipeline with sources"
            hint = "write two sources: instead of source:, each with its decode and its watermark"
            if flow.sides:
                hint = "move the steps before it into the transforms of a source, or behind it"
            report((*path, "join"), message, hint=hint, at_key=True)
        if isinstance(step, WatermarkConfig) and last < 0 and None not in flow.transforms:
            message = "no step remembers rows from batch to batch, so nothing here needs a watermark"
            report(
                (*path, "watermark"), message, hint="remove it, or add a window, dedupe within or stateful", at_key=True
            )
    if flow.sides and not any(isinstance(step, JoinConfig | None) for step in flow.transforms):
        message = f"nothing joins the sources {' and '.join(side.name for side in flow.sides)}"
        report(
            ("transforms",),
            message,
            hint="begin with - join: {left: ..., right: ..., on: ..., within: ...}",
            at_key=True,
        )
    for side in flow.sides:
        for at, step in enumerate(side.transforms):
            if remembers(step) or (isinstance(step, DedupeConfig)):
                message = f"{step.kind} is not possible in a source that is joined"
                hint = "do it in a pipeline of its own that writes a topic, and join that one"
                report((*side.path, "transforms", at, step.kind), message, hint=hint, at_key=True)
    if flow.path and last >= 0:
        step = flow.transforms[last]
        message = f"{step.kind if step else 'state'} is not possible in a route: the routes of a pipeline are one query"
        report((*flow.path, "transforms", last), message, hint="give it a pipeline of its own", at_key=True)


def _needs_watermark(known: Known, path: Path, report: Report, what: str, why: str) -> None:
    if known.closed is not None:
        report(path, f"{what} is not possible after {known.closed}", hint=_OWN_PIPELINE, at_key=True)
    elif known.watermark is None:
        hint = "add before it - watermark: {column: ..., delay: 10 minutes}"
        report(path, f"{what} needs a watermark before it: {why}", hint=hint, at_key=True)
    elif known.types is not None and known.watermark and known.watermark not in known.types:
        message = f'the column "{known.watermark}" of the watermark is gone at this step'
        context = [known.gone[known.watermark]] if known.watermark in known.gone else []
        report(path, message, context=context, at_key=True)


def _check_aggregate(text: str, known: Known, path: Path, report: Report) -> None:
    try:
        aggregate = read_aggregate(text)
    except ExpressionError as error:
        report(path, error.message, offset=error.offset, hint=error.hint)
        return
    for reference in aggregate.references:
        check_reference(reference, known, path, report)
    for reference in aggregate.numeric:
        kind = _type_of(reference, known)
        if kind is not None and kind.name not in _NUMERIC:
            message = f'column "{".".join(reference.parts)}" is {kind}, and only numbers have a sum or an average'
            report(path, message, offset=reference.offsets[0])


def _type_of(reference: Reference, known: Known) -> ColumnType | None:
    return (known.types or {}).get(reference.parts[0]) if len(reference.parts) == 1 else None


def _close(known: Known, path: Path, what: str, types: Types | None) -> None:
    known.gone = dict.fromkeys(known.types or (), f"not given by {_step(path)}")
    known.types, known.closed, known.watermark = types, what, None


def _step(path: Path) -> str:
    return f"{path[-3]}[{path[-2]}]"


STATEFUL: Mapping[type, Callable[..., None]] = {
    WatermarkConfig: watermark,
    WindowConfig: window,
    StatefulConfig: stateful,
}
