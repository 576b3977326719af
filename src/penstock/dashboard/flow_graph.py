"""A pipeline as a graph: source, decode, quarantine, steps, sinks; with the rates that are known on its arrows.

Batches count the records that enter, the rows that leave and the records in quarantine. In between, a rate is known
where it follows: a step that neither drops nor adds rows passes on what it gets. Elsewhere it is null.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config import (
    DedupeConfig,
    EnrichConfig,
    ExpectConfig,
    ExplodeConfig,
    Flow,
    JoinConfig,
    MapArrowConfig,
    PipelineConfig,
    SinkConfig,
    StatefulConfig,
    TransformConfig,
    WatermarkConfig,
    WindowConfig,
    flows,
    show_duration,
)
from penstock.wording import counted

_KEEPING_COUNT = frozenset({"derive", "rename", "drop", "cast", "flatten", "mask"})


@dataclass(frozen=True)
class Rates:
    """Rows a second."""

    rows_in: float = 0.0
    rows_out: float = 0.0
    quarantined: float = 0.0


def _describe(step: TransformConfig) -> str:
    """The columns or the condition of a step. Never a secret such as the key of a mask."""
    match step:
        case DedupeConfig():
            return ", ".join(step.keys)
        case EnrichConfig():
            return f"from {step.enrich.table}"
        case ExplodeConfig():
            return step.explode.column
        case MapArrowConfig():
            return step.map_arrow.function
        case WatermarkConfig():
            return f"{step.watermark.column}, {show_duration(step.watermark.delay)}"
        case WindowConfig():
            return ", ".join(step.window.aggregates)
        case JoinConfig():
            return f"{step.join.left} and {step.join.right}"
        case StatefulConfig():
            return step.stateful.cls
    settings: Any = getattr(step, step.kind)
    if isinstance(settings, str):
        return settings
    return ", ".join(settings) if isinstance(settings, dict | tuple) else ""


def _keeps_count(step: TransformConfig) -> bool:
    """Whether as many rows leave a step as enter it, whatever they are."""
    if isinstance(step, EnrichConfig):
        return step.enrich.on_miss == "keep" and step.enrich.on_duplicate != "all"
    return step.kind in _KEEPING_COUNT


def _may_refuse(step: TransformConfig) -> bool:
    """Whether a step may send records to quarantine."""
    match step:
        case ExpectConfig():
            return any(rule.action == "quarantine" for rule in step.expect.values())
        case EnrichConfig():
            return step.enrich.on_miss == "quarantine"
        case MapArrowConfig():
            return step.map_arrow.on_error == "quarantine"
        case WatermarkConfig():
            return step.watermark.late == "quarantine"
    return False


_LONGEST = 80


@dataclass(frozen=True)
class _Amount:
    """Rows a second, and in all; none where they are not known."""

    rate: float | None = None
    total: int | None = None


_UNKNOWN = _Amount()


def flow_graph(
    config: PipelineConfig, rates: Rates, totals: Mapping[str, int], partitions: int | None
) -> dict[str, list[dict[str, Any]]]:
    """The nodes and the edges, in the order of the flow."""
    return _Graph(config, rates, totals, partitions).made()


class _Graph:
    def __init__(self, config: PipelineConfig, rates: Rates, totals: Mapping[str, int], partitions: int | None) -> None:
        self._config, self._partitions = config, partitions
        self._in = _Amount(rates.rows_in, totals["rows_in"])
        self._out = _Amount(rates.rows_out, totals["rows_out"])
        self._bad = _Amount(rates.quarantined, totals["quarantined"])
        self._good = _Amount(
            round(max(0.0, rates.rows_in - rates.quarantined), 1),
            max(0, totals["rows_in"] - totals["quarantined"]),
        )
        self._nodes: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._flows = flows(config)
        self._refusing: list[str] = []

    def made(self) -> dict[str, list[dict[str, Any]]]:
        """Everything."""
        single = len(self._flows) == 1 and not self._flows[0].sides
        heads = self._heads(single)
        for number, flow in enumerate(self._flows):
            self._follow(number if len(self._flows) > 1 else None, flow, heads[number], single)
        if self._config.quarantine is not None:
            self._add_quarantine()
        return {"nodes": self._nodes, "edges": self._edges}

    def _heads(self, single: bool) -> list[list[str]]:
        """Sources and decoders, and the nodes that each flow begins with."""
        sides = self._flows[0].sides if self._flows else ()
        if sides:
            return [[self._side(side.name, side.topics, side.decode, side.transforms) for side in sides]]
        source = self._config.source
        topics = source.named_topics
        if self._partitions:
            count = counted(self._partitions, "partition")
        else:
            count = counted(len(topics), "topic") if topics is not None else "a pattern of topics"
        self._node("source", "source", ", ".join(topics or ()) or str(source.pattern), count, self._in)
        one_decoder = len({flow.decode_path for flow in self._flows}) == 1
        amount = self._in if one_decoder else _UNKNOWN
        heads: dict[object, str] = {}
        for flow in self._flows:
            if flow.decode_path not in heads:
                name = heads[flow.decode_path] = "decode" if one_decoder else f"decode:{len(heads)}"
                self._decoder(name, flow.decode, ", ".join(flow.topics or ()), amount)
                self._edge("source", name, amount)
        return [[heads[flow.decode_path]] for flow in self._flows]

    def _side(self, name: str, topics: Sequence[str], decode: Any, steps: Sequence[TransformConfig]) -> str:
        self._node(f"source:{name}", "source", name, ", ".join(topics), _UNKNOWN)
        self._decoder(f"decode:{name}", decode, "", _UNKNOWN)
        self._edge(f"source:{name}", f"decode:{name}", _UNKNOWN)
        end = f"decode:{name}"
        for number, step in enumerate(steps):
            end = self._step(f"transform:{name}:{number}", step, [end], _UNKNOWN, _UNKNOWN)
        return end

    def _decoder(self, name: str, decode: Any, detail: str, amount: _Amount) -> None:
        kind = getattr(decode, "format", None) or "by topic"
        self._node(name, "decode", str(kind), detail, amount)
        self._refusing.append(name)

    def _follow(self, number: int | None, flow: Flow, ends: list[str], single: bool) -> None:
        """The steps of one flow, and its sinks."""
        steps = [step for step in flow.transforms if step is not None]
        sinks = [self._config.sinks[place] for place in flow.sinks]
        before = self._between(steps, sinks) if single else [_UNKNOWN] * (len(steps) + 1)
        prefix = "transform" if number is None else f"transform:{number}"
        if flow.where is not None and number is not None:
            title = "otherwise" if flow.otherwise else "route"
            self._node(f"{prefix}:where", "transform", title, _cut(flow.where), _UNKNOWN)
            ends = self._link(ends, f"{prefix}:where", _UNKNOWN)
        for place, step in enumerate(steps):
            ends = [self._step(f"{prefix}:{place}", step, ends, before[place], before[place + 1])]
        for sink in sinks:
            amount = _UNKNOWN if sink.where is not None else before[-1]
            self._node(f"sink:{sink.name}", "sink", sink.name, self._target(sink), amount)
            self._link(ends, f"sink:{sink.name}", amount)
            if getattr(sink, "on_reject", "fail") == "quarantine":
                self._refusing.append(f"sink:{sink.name}")

    def _between(self, steps: Sequence[TransformConfig], sinks: Sequence[SinkConfig]) -> list[_Amount]:
        """What goes into each step, and after the last one into the sinks."""
        amounts = [_UNKNOWN] * (len(steps) + 1)
        rejecting = any(getattr(sink, "on_reject", "fail") == "quarantine" for sink in sinks)
        lost = getattr(self._flows[0].decode, "tombstones", None) in ("drop", "delete")
        if not (rejecting or lost or any(map(_may_refuse, steps))):
            amounts[0] = self._good
        for place, step in enumerate(steps):
            if _keeps_count(step):
                amounts[place + 1] = amounts[place]
        amounts[-1] = self._out
        for place in range(len(steps) - 1, -1, -1):
            if amounts[place] is _UNKNOWN and _keeps_count(steps[place]):
                amounts[place] = amounts[place + 1]
        return amounts

    def _step(self, name: str, step: TransformConfig, ends: list[str], entering: _Amount, leaving: _Amount) -> str:
        self._node(name, "transform", step.kind, _cut(_describe(step)), leaving)
        self._link(ends, name, entering)
        if _may_refuse(step):
            self._refusing.append(name)
        return name

    def _add_quarantine(self) -> None:
        quarantine = self._config.quarantine
        assert quarantine is not None
        places = (("table", quarantine.table and self._near(quarantine.table)), ("topic", quarantine.topic))
        detail = ", ".join(f"{kind} {place}" for kind, place in places if place)
        self._node("quarantine", "quarantine", "quarantine", detail, self._bad)
        for name in self._refusing:
            self._edge(name, "quarantine", self._bad if len(self._refusing) == 1 else _UNKNOWN)

    def _target(self, sink: SinkConfig) -> str:
        path, table, topic = (getattr(sink, name, None) for name in ("path", "table", "topic"))
        where = self._near(path) if path else table or (topic if isinstance(topic, str) else "topics by row")
        return _cut(", ".join(part for part in (sink.type, getattr(sink, "mode", None), where) if part))

    def _near(self, path: str) -> str:
        """A path as the file would write it."""
        folder = str(self._config.file.absolute().parent) if self._config.file is not None else os.sep
        return os.path.relpath(path, folder) if path.startswith(folder + os.sep) else path

    def _node(self, name: str, kind: str, title: str, detail: str, amount: _Amount) -> None:
        node = {"id": name, "kind": kind, "title": _cut(title), "detail": detail}
        self._nodes.append({**node, "rate": amount.rate, "total": amount.total})

    def _edge(self, start: str, end: str, amount: _Amount) -> None:
        self._edges.append({"from": start, "to": end, "rate": amount.rate})

    def _link(self, starts: Iterable[str], end: str, amount: _Amount) -> list[str]:
        for start in starts:
            self._edge(start, end, amount)
        return [end]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
