"""Checks across a pipeline file: of each section by its own model, and of what one part means for another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.connections import SAME
from penstock.config.ddl import ColumnsError, read_columns
from penstock.config.decode import ByTopicDecodeConfig, FormatConfig, RawDecodeConfig, check_columns
from penstock.config.expressions import ExpressionError, read_query
from penstock.config.fields import SecretKind, walk
from penstock.config.files import check_secret
from penstock.config.flows import Flow, check_routes, flows, follow, only_topic
from penstock.config.locations import check_locations
from penstock.config.pipeline import NamedSourceConfig, Parts, PipelineConfig
from penstock.config.problems import Path, did_you_mean, suggest
from penstock.config.scope import Scope
from penstock.config.sinks import KafkaSinkConfig
from penstock.config.stateful import WindowConfig
from penstock.config.tables import TextTableConfig
from penstock.config.transforms import EnrichConfig, PythonConfig, SqlConfig, TransformConfig, remembers
from penstock.config.yaml_source import Given

_SHARED = ("brokers", "security", "options", "on_data_loss", "group")
"""Settings that all sources of a join must share."""


def check(parts: Parts, valid: Mapping[str, Any]) -> None:
    """Report everything that is wrong in a file whose values are valid one by one; `valid` has the values by part."""
    _check_sections(parts, valid)
    _check_sources(parts)
    _check_by_topic(parts)
    _check_decoders(parts)
    check_routes(parts)
    _check_loops(parts)
    _check_lane(parts)
    reaching: dict[int, Scope] = {}
    for flow in flows(parts):
        at_end = follow(parts.columns, flow, parts.file)
        reaching |= dict.fromkeys(flow.sinks, at_end)
        for path in at_end.needs_quarantine if not parts.file.written("quarantine") else ():
            message = "this sends records to the quarantine, but the pipeline has none"
            parts.file.report(path, message, hint="add quarantine: {table: ...}", at_key=True)
        _check_changes(parts, flow)
        _check_tombstones(parts, flow)
    _check_tables(parts)
    for index, sink in enumerate(parts.sinks):
        if sink is not None:
            sink.check(Given(parts.file, ("sinks", index)), reaching.get(index, Scope(parts.file)))
    _check_sink_names(parts)
    _check_slots(parts)
    _check_inherited_security(parts)
    check_locations(parts)


def _check_sections(parts: Parts, valid: Mapping[str, Any]) -> None:
    PipelineConfig.check_keys(Given(parts.file, ()))
    for name in PipelineConfig.model_fields.keys() & parts.file.data.keys():
        kind = PipelineConfig.model_fields[name].rebuild_annotation()
        for path, model, section in walk(kind, parts.file.data[name], valid.get(name), (name,)):
            if isinstance(model, SecretKind):
                check_secret(parts.file, path, model)
                continue
            model.check_keys(Given(parts.file, path))
            if section is not None:
                section.check_values(Given(parts.file, path))


def _check_sources(parts: Parts) -> None:
    """Two sources share a cluster and its settings, and no topic."""
    if isinstance(parts.file.data.get("sources"), dict) and len(parts.sources) != 2:
        count = len(parts.sources)
        message = f"sources must name exactly two sources to join, got {count}"
        join_again = "join two of them into a topic, and join that topic with the third"
        hint = "for a single source, write source: and decode:" if count < 2 else join_again
        parts.file.report(("sources",), message, hint=hint, at_key=True)
    first: tuple[str, NamedSourceConfig] | None = None
    topics: dict[str, str] = {}
    for name, source in parts.sources.items():
        if source is None:
            continue
        given = Given(parts.file, ("sources", name))
        for index, topic in enumerate(source.topics or ()):
            if topic in topics:
                message = f'topic "{topic}" is already read by source {topics[topic]}'
                given.report(
                    ("topics", index), message, "copy it to a second topic, or read it only once", at_key=False
                )
            topics[topic] = name
        if first is None:
            first = (name, source)
            continue
        for key in _SHARED:
            if getattr(source, key) != getattr(first[1], key):
                message = f"differs from source {first[0]}"
                shared = "both sources of a join must use the same cluster and settings"
                given.report(key, f"{message}: {shared}", f"use the same {key} in both")
        both = (source.start, first[1].start)
        if both[0] != both[1] and not all(isinstance(start, dict) for start in both):
            hint = "use the same start in both, or give offsets for both"
            given.report("start", f"differs from source {first[0]}", hint)


def _check_by_topic(parts: Parts) -> None:
    decode, source = parts.decode, parts.source
    if parts.sources or not isinstance(decode, ByTopicDecodeConfig) or source is None:
        return
    given = Given(parts.file, ("decode",))
    topics = source.named_topics
    if topics is None:
        message = "by_topic needs topics listed by name, but the source uses a pattern"
        given.report("by_topic", message, "list them as source.topics")
        return
    found = set(decode.by_topic)
    for topic in decode.by_topic:
        if topic not in topics:
            message, context = f'topic "{topic}" is not read by this pipeline', [f"topics: {', '.join(topics)}"]
            given.report(("by_topic", topic), message, did_you_mean(topic, topics), context=context)
            found.add(suggest(topic, topics) or topic)
    if missing := [topic for topic in topics if topic not in found]:
        message = f"no decoder for {', '.join(missing)}"
        given.report("by_topic", message, "every topic of the source needs one")


def _check_decoders(parts: Parts) -> None:
    """The settings of each decoder fit its columns, and the subject of its schema is known."""
    for decode, path in decoders(parts):
        columns = parts.columns.get(path)
        if columns is not None:
            check_columns(decode, columns, Given(parts.file, path))
    for flow in flows(parts):
        for shared, path, topics in flow.decoders:
            known = only_topic(topics, parts.source) is not None
            if known or shared is None or isinstance(shared, RawDecodeConfig):
                continue
            for one, at in ((shared, path), (shared.key, (*path, "key"))):
                if getattr(one, "registry", None) is not None and getattr(one, "subject", None) is None:
                    message = "several topics share this decoder, so the subject cannot be derived from the topic name"
                    own = "its own route" if "by_topic" in path else "its own decoder: by_topic"
                    parts.file.report(at, message, hint=f"add subject: ..., or give each topic {own}", at_key=True)


def decoders(parts: Parts) -> Iterator[tuple[FormatConfig, Path]]:
    """Each decoder of the file with its path."""
    if parts.sources:
        for name, source in parts.sources.items():
            if source is not None:
                yield source.decode, ("sources", name, "decode")
    elif isinstance(parts.decode, ByTopicDecodeConfig):
        for topic, decode in parts.decode.by_topic.items():
            yield decode, ("decode", "by_topic", topic)
    elif parts.decode is not None:
        yield parts.decode, ("decode",)


def _check_loops(parts: Parts) -> None:
    """A pipeline that reads the topic it writes never comes to an end."""
    source, alerts = parts.source, parts.file.data.get("alerts")
    written: dict[Path, Any] = {("quarantine", "topic"): parts.quarantine and parts.quarantine.topic}
    written["alerts", "topic"] = alerts.get("topic") if isinstance(alerts, dict) else None
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, KafkaSinkConfig) and source is not None and sink.brokers in (None, source.brokers):
            written["sinks", index, "topic"] = sink.topic
    for path, topic in written.items():
        if isinstance(topic, str) and source is not None and source.reads(topic):
            message = f'the source also reads "{topic}": the pipeline would read its own output in a loop'
            parts.file.report(path, message, hint="write to a topic that the source does not read")


def _check_lane(parts: Parts) -> None:
    for flow in flows(parts) if parts.file.data.get("lane") == "direct" else ():
        for index, step in enumerate(flow.transforms):
            if step is not None and (isinstance(step, SqlConfig | PythonConfig) or remembers(step)):
                where = f"{flow.name}." if flow.name else ""
                message = f"the direct lane does not support {step.kind}, which {where}transforms[{index}] is"
                parts.file.report(("lane",), message, hint="remove lane, or write lane: frame")
                return


def _check_changes(parts: Parts, flow: Flow) -> None:
    """A window that is written again with every change needs a sink that replaces it, or one that is a log."""
    if not any(isinstance(step, WindowConfig) and step.window.emit == "changes" for step in flow.transforms):
        return
    for index in flow.sinks:
        sink = parts.sinks[index]
        if sink is not None and not isinstance(sink, KafkaSinkConfig) and not sink.merges:
            message = "the window emits changes: this sink would keep every version of each window"
            hint = "use mode: merge (PostgreSQL: upsert) with window_start and the by columns as keys, or emit: final"
            parts.file.report(("sinks", index), message, hint=hint, at_key=True)


def _check_tombstones(parts: Parts, flow: Flow) -> None:
    """A tombstone deletes by its key, in sinks that merge by one."""
    if getattr(flow.decode, "tombstones", None) != "delete" or None in parts.sinks:
        return
    given = Given(parts.file, flow.decode_path)
    others = "use tombstones: drop, pass or quarantine"
    if flow.sides or any(map(remembers, flow.transforms)):
        message = "a tombstone has no event time and no columns: it cannot pass a stateful step"
        given.report("tombstones", message, others, at_key=False)
        return
    merging = [sink for index in flow.sinks if (sink := parts.sinks[index]) is not None and sink.merges]
    newer = next((sink for sink in merging if getattr(sink, "when_newer", None) is not None), None)
    if newer is not None:
        message = "a tombstone has no columns: a late one could delete a row that is newer by when_newer"
        context = [f"sink {newer.name}: when_newer: {getattr(newer, 'when_newer', None)}"]
        hint = f"{others}, and delete_when for rows that delete; or remove when_newer"
        given.report("tombstones", message, hint, context=context, at_key=False)
    if not merging:
        of = f" of {flow.name}" if flow.name else ""
        given.report("tombstones", f"a tombstone deletes by its key, and no sink{of} merges", others, at_key=False)
    keys = [tuple(getattr(sink, "keys", None) or ()) for sink in merging]
    if len(set(keys)) > 1:
        message = "a tombstone deletes by key, but the merging sinks have different keys"
        given.report("tombstones", message, context=[", ".join(one) for one in keys], at_key=False)


def _check_tables(parts: Parts) -> None:
    """Check that tables used by joins exist, and their columns if the file lists them."""
    for name in parts.tables:
        if name.lower() == "input":
            message, hint = '"input" is reserved for the rows of the batch', "choose another table name"
            parts.file.report(("tables", name), message, hint=hint, at_key=True)
    for step, path in _steps(parts):
        if isinstance(step, EnrichConfig):
            _require_table(parts, step.enrich.table, (*path, "enrich", "table"))
            _check_enriched(parts, step, Given(parts.file, (*path, "enrich")))
        elif isinstance(step, SqlConfig):
            try:
                named = read_query(step.sql).tables
            except ExpressionError:
                continue
            for name in named:
                at = re.search(rf"\b{re.escape(name)}\b", step.sql)
                _require_table(parts, name, (*path, "sql"), fold=True, offset=at.start() if at else None)


def _steps(parts: Parts) -> Iterator[tuple[TransformConfig, Path]]:
    for flow in flows(parts):
        lists = [(side.transforms, side.path) for side in flow.sides]
        for steps, path in (*lists, (flow.transforms, flow.path)):
            yield from ((step, (*path, "transforms", at)) for at, step in enumerate(steps) if step is not None)


def _require_table(parts: Parts, name: str, path: Path, *, fold: bool = False, offset: int | None = None) -> None:
    names = list(parts.tables)
    if name in names or (fold and name.lower() in map(str.lower, names)) or ("tables",) in parts.file.broken:
        return
    context = [f"tables: {', '.join(names) or 'none'}"]
    hint = did_you_mean(name, names) or "define it under tables:"
    parts.file.report(path, f'there is no table "{name}"', context=context, hint=hint, offset=offset)


def _check_enriched(parts: Parts, step: EnrichConfig, given: Given) -> None:
    table = parts.tables.get(step.enrich.table)
    if not isinstance(table, TextTableConfig):
        return
    try:
        columns = [column.name for column in read_columns(table.columns)]
    except ColumnsError:
        return
    for key, pairs in (("on", step.enrich.on), ("take", step.enrich.take or {})):
        for column in pairs.values():
            if column not in columns:
                context = [f"columns of {step.enrich.table}: {', '.join(columns)}"]
                message = f'table {step.enrich.table} has no column "{column}"'
                given.report(key, message, did_you_mean(column, columns), context=context)


def _check_sink_names(parts: Parts) -> None:
    lines: dict[str, int] = {}
    for index, sink in enumerate(parts.sinks):
        if sink is None:
            continue
        path: Path = ("sinks", index, "name")
        if sink.name in lines:
            message = f'the sink at line {lines[sink.name]} is also named "{sink.name}"'
            hint = "the name identifies the sink's commits: make it unique"
            parts.file.report(path, message, hint=hint)
        lines.setdefault(sink.name, parts.file.positions.keys[path].line)
        if sink.name.split(".")[0] in ("quarantine", "gaps"):
            message = f'the name "{sink.name}" is reserved: the quarantine and the gaps table commit under it'
            parts.file.report(path, message, hint="choose another sink name")


def _check_slots(parts: Parts) -> None:
    """All sinks of a pipeline must ask for the same number of slots."""
    asked: tuple[int, int] | None = None
    for index, sink in enumerate(parts.sinks):
        slots = sink.fixed_slots if isinstance(sink, KafkaSinkConfig) else None
        if slots is None or not isinstance(sink, KafkaSinkConfig):
            continue
        line = parts.file.positions.keys["sinks", index, "name"].line
        if asked is not None and asked[0] != slots:
            key = "atomicity" if sink.atomicity == "batch" else "slots"
            message = f"the sink at line {asked[1]} sets a different number of slots, but a batch has only one"
            parts.file.report(("sinks", index, key), message, hint="use the same number in both, or set it only once")
        asked = asked or (slots, line)


def _check_inherited_security(parts: Parts) -> None:
    """A Kafka sink on the source's cluster inherits its security: its options must not contradict it."""
    source = parts.source
    for index, sink in enumerate(parts.sinks):
        if source is None or source.security is None or not isinstance(sink, KafkaSinkConfig):
            continue
        inherits = sink.security is None and sink.brokers in (None, source.brokers)
        for name in SAME.keys() & sink.options.keys() if inherits else ():
            message = f"{name} contradicts source.security, which also applies to this sink"
            given = Given(parts.file, ("sinks", index))
            given.report(("options", name), message, "give the sink its own security section")
