"""Where a replay writes: another target, or the same one if that is safe; otherwise why not.

Input: a sink's section of the file and the request. Output: how it is written, or a refusal with the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from penstock import config as cfg
from penstock.assembly.build import Flow, Pipeline
from penstock.contracts import Sink
from penstock.errors import MissingError
from penstock.model import COORDINATES, OffsetRange, live_name


class Way(Enum):
    """How a replay's rows go into a target, for people."""

    INTO = "written to another target"
    MERGED = "merged by key; a row from a later position is kept"
    MERGED_BY_TIME = "merged by key; a newer row is kept"
    INSERTED = "inserted if the key is missing"
    REPLACED = "rows of these offsets replaced by the replayed ones, in one commit at the end"


WayByName = Annotated[
    Way,
    BeforeValidator(lambda name: Way[name] if isinstance(name, str) else name),
    PlainSerializer(lambda way: way.name),
]
"""JSON shows the stable name of the member, not its text."""


@dataclass(frozen=True)
class TargetChoice:
    """One sink of a replay. `into` is what `--into` gave it."""

    sink: str
    way: WayByName
    into: str | None = None


def choose_targets(pipeline: Pipeline, names: Sequence[str], into: Sequence[str]) -> tuple[TargetChoice, ...]:
    """How each requested sink is written, by default all. Raises for the first that cannot be."""
    configs = {sink.name: sink for sink in pipeline.config.sinks}
    unknown = [name for name in names if name not in configs]
    if unknown:
        raise MissingError(
            "SINK_UNKNOWN", f"the pipeline has no sink {', '.join(unknown)}", context={"sinks": ", ".join(configs)}
        )
    chosen = [name for name in configs if not names or name in names]
    given = parse_into(chosen, into)
    flows = {inlet.sink.name: flow for flow in pipeline.flows for inlet in flow.inlets}
    found = tuple(_choice(configs[name], flows[name], given.get(name)) for name in chosen)
    _refuse_mixed(found)
    return found


def parse_into(chosen: Sequence[str], into: Iterable[str]) -> dict[str, str]:
    """`SINK=TARGET`, or only `TARGET` if there is one sink."""
    found: dict[str, str] = {}
    for text in into:
        name, equals, target = text.partition("=")
        if equals and name in chosen:
            found[name] = target
        elif len(chosen) == 1:
            found[chosen[0]] = text
        else:
            raise MissingError(
                "REPLAY_INTO_UNREADABLE",
                f'--into "{text}" does not name a sink',
                context={"sinks": ", ".join(chosen)},
                hint="write --into SINK=TARGET for each of them, or choose one sink: --sink SINK",
            )
    return found


def retargeted(sink: cfg.SinkConfig, into: str | None) -> cfg.SinkConfig:
    """The sink's part of the file, with another path, table or topic; that one is created if missing."""
    if into is None:
        return sink
    return sink.at(_place(into) if isinstance(sink, cfg.FolderSinkConfig) else into)


def refuse_shared(choices: Iterable[TargetChoice], sinks: Iterable[Sink], pipeline: str) -> None:
    """Refuse to replace rows of a target that others write to as well: nothing shows whose rows they are.

    `sinks` are those of the live pipeline.
    """
    live = {sink.name: sink for sink in sinks}
    for choice in choices:
        sink = live[choice.sink]
        if choice.way not in (Way.REPLACED, Way.MERGED):
            continue
        others = [one for one in sink.other_writers() if not _is_own(one, pipeline, choice.sink)]
        if others:
            raise MissingError(
                "REPLAY_SHARED_TARGET",
                f"sink {choice.sink}: others also write to this target, and their rows cannot be distinguished",
                context={"target": sink.target, "other writers": ", ".join(others[:8])},
                hint=f"write to another target: --into {choice.sink}=TARGET",
            )


def _is_own(writer: str, pipeline: str, sink: str) -> bool:
    """Whether a writer is this pipeline and sink, or a redrive or replay of them."""
    name, _, its_sink = writer.rpartition("/")
    return its_sink == sink and live_name(name) == pipeline


def prepared_for(pipeline: Pipeline, choices: Iterable[TargetChoice], ranges: Sequence[OffsetRange]) -> Pipeline:
    """The pipeline of a replay, its sinks writing as was chosen."""
    ways = {choice.sink: choice.way for choice in choices}

    def change(sink: Sink) -> Sink:
        made = None
        if ways[sink.name] is Way.REPLACED:
            made = sink.replacing(ranges)
        elif ways[sink.name] is Way.MERGED:
            made = sink.by_position()
        return made or sink

    return pipeline.with_sinks(change)


def _choice(sink: cfg.SinkConfig, flow: Flow, into: str | None) -> TargetChoice:
    other = retargeted(sink, into)
    if into is not None and place_of(other) != place_of(sink):
        return TargetChoice(sink.name, Way.INTO, getattr(other, "path", into))
    if not sink.replaces:
        raise _needs_into(sink, "nothing distinguishes its rows from those of the replay, and they would be duplicated")
    keeps = sink.coordinates and (flow.schema is None or COORDINATES in flow.schema.names)
    if not (sink.merges and isinstance(sink, cfg.MergingConfig)):
        if getattr(sink, "on_reject", "fail") == "quarantine":
            raise _needs_into(
                sink, "`on_reject: quarantine` quarantines records batch by batch, but this is one commit"
            )
        if keeps:
            return TargetChoice(sink.name, Way.REPLACED)
        why = "`coordinates` is off" if not sink.coordinates else f"the SQL does not select {COORDINATES}"
        raise _needs_into(sink, f"the rows to replace are found by the column {COORDINATES}, and {why}")
    if sink.insert_only:
        return TargetChoice(sink.name, Way.INSERTED)
    if sink.delete_when is not None:
        raise _needs_into(sink, "`delete_when` deletes rows there: a key that was deleted later would come back")
    if any(one.name == sink.name for one in flow.deleting):
        raise _needs_into(
            sink,
            "tombstones delete rows there: a key that was deleted later would come back",
            "if the topic has no tombstones, set `tombstones: quarantine` under `decode`; else  ",
        )
    if keeps:
        return TargetChoice(sink.name, Way.MERGED)
    if sink.when_newer is not None:
        return TargetChoice(sink.name, Way.MERGED_BY_TIME)
    raise _needs_into(sink, f"no older row can be recognised: no `when_newer`, and no {COORDINATES}")


def _refuse_mixed(choices: Sequence[TargetChoice]) -> None:
    """A replay keeps its rejects where its rows are: in the pipeline's own targets, or all of it elsewhere."""
    inside = [choice.sink for choice in choices if choice.way is not Way.INTO]
    outside = [choice.sink for choice in choices if choice.way is Way.INTO]
    if inside and outside:
        into = " ".join(f"--sink {name} --into {name}=..." for name in outside)
        raise MissingError(
            "REPLAY_SINKS_DIFFER",
            "some sinks are written in place and some elsewhere, but rejects can only go to one quarantine",
            context={"in place": ", ".join(inside), "elsewhere": ", ".join(outside)},
            hint=f"two replays: {' '.join(f'--sink {name}' for name in inside)}, then {into}",
        )


def _needs_into(sink: cfg.SinkConfig, reason: str, way_out: str = "") -> MissingError:
    return MissingError(
        "REPLAY_NEEDS_INTO",
        f"sink {sink.name}: a replay into the same target is not safe: {reason}",
        context={"sink": f"{sink.type}, {getattr(sink, 'mode', 'append')}"},
        hint=f"{way_out}write to another target: --into {sink.name}=TARGET; or select only the other sinks: --sink "
        "NAME",
    )


def _place(into: str) -> str:
    """A path on the command line is relative to the current folder."""
    return into if "://" in into else str(Path(into).absolute())


def place_of(sink: cfg.SinkConfig) -> object:
    """The path, table or topic that a sink writes to."""
    if not isinstance(sink, cfg.FolderSinkConfig):
        return sink.place
    return sink.path.rstrip("/") if "://" in sink.path else Path(sink.path).resolve()
