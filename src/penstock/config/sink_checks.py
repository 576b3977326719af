"""What has to hold of the sinks: their columns, the settings that need or exclude each other, their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as FilePath

from penstock.config.fields import COORDINATES, is_uri
from penstock.config.flows import Flow, flows
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.scope import Scope
from penstock.config.sinks import (
    DeltaSinkConfig,
    EncodeConfig,
    FolderSinkConfig,
    IcebergSinkConfig,
    KafkaSinkConfig,
    KeyEncodeConfig,
    PostgresSinkConfig,
    SinkConfig,
    TopicExpression,
    parse_partition,
)
from penstock.config.stateful import WindowConfig
from penstock.config.transforms import remembers

_ONLY_WITH_TRANSACTIONS = ("slots", "atomicity", "transaction_timeout")
_ONLY_WITH_CHOSEN_TOPICS = ("topics_allowed", "max_topics")


def check_emitted(parts: Parts, flow: Flow) -> None:
    """A window that comes again with every change needs a sink that replaces it, or one that is a log of changes."""
    changing = next((w for w in flow.transforms if isinstance(w, WindowConfig) and w.window.emit == "changes"), None)
    for index in flow.sinks if changing is not None else ():
        sink = parts.sinks[index]
        if sink is not None and not isinstance(sink, KafkaSinkConfig) and not sink.merges:
            message = "the window emits changes: each window comes several times, and this sink would keep them all"
            hint = "use mode: merge (PostgreSQL: upsert) with window_start and the by columns as keys, or emit: final"
            parts.report(("sinks", index), message, hint=hint, at_key=True)


def check_sinks(parts: Parts, reaching: Mapping[int, Scope]) -> None:
    """Report everything that is wrong with the sinks; `reaching` has the columns that reach each."""
    names: dict[str, int] = {}
    for index, sink in enumerate(parts.sinks):
        if sink is None:
            continue
        if sink.name in names:
            other = parts.file.positions.keys["sinks", names[sink.name], "name"].line
            message = f'the name "{sink.name}" is taken by the sink at line {other}'
            hint = "the name tells a sink its own commits: give each its own"
            parts.report(("sinks", index, "name"), message, hint=hint)
        names.setdefault(sink.name, index)
        if sink.name.split(".")[0] in ("quarantine", "gaps"):
            message = f'the name "{sink.name}" is taken: the quarantine and the gaps commit under such names'
            parts.report(("sinks", index, "name"), message, hint="give the sink another name")
        scope = reaching.get(index, Scope(parts.report))
        written = _check_selection(parts, sink, index, scope)
        _check_merge(parts, sink, index, scope, written)
        if isinstance(sink, KafkaSinkConfig):
            _check_kafka_sink(parts, sink, index, scope)
        elif isinstance(sink, IcebergSinkConfig):
            _check_iceberg(parts, sink, index, written)
        elif isinstance(sink, FolderSinkConfig):
            _check_partitions(parts, sink, index, written)
        if isinstance(sink, PostgresSinkConfig) and sink.on_reject == "quarantine" and parts.quarantine is None:
            parts.report(
                ("sinks", index, "on_reject"),
                "refused rows go to the quarantine, and there is none",
                hint="add quarantine: {table: ...}",
            )
    _check_slots(parts)
    _check_tombstones(parts)


def _check_selection(parts: Parts, sink: SinkConfig, index: int, scope: Scope) -> Scope:
    """The columns that are written, after `select`."""
    if sink.where is not None:
        scope.check_expression(sink.where, ("sinks", index, "where"))
    if sink.select is None:
        return scope
    scope.check_columns(sink.select, ("sinks", index, "select"))
    if scope.types is None:
        return scope
    left = {name: kind for name, kind in scope.types.items() if name in (*sink.select, COORDINATES)}
    reason = "left out by this sink's select"
    return Scope(parts.report, left, False, {**scope.gone, **{n: reason for n in scope.types if n not in left}})


def _check_merge(parts: Parts, sink: SinkConfig, index: int, scope: Scope, written: Scope) -> None:
    here: Path = ("sinks", index)
    mode = getattr(sink, "mode", None)
    for setting in ("keys", "when_newer", "delete_when", "insert_only", "prune_by"):
        if mode == "append" and parts.written(*here, setting):
            hint = f"remove {setting}, or change the mode"
            if setting == "keys":
                hint += "; to drop duplicates within a batch: - dedupe"
            verb = "mean" if setting == "keys" else "means"
            parts.report((*here, setting), f"{setting} {verb} nothing with mode append", hint=hint, at_key=True)
    if not isinstance(sink, DeltaSinkConfig | IcebergSinkConfig | PostgresSinkConfig):
        return
    if not isinstance(sink, PostgresSinkConfig):
        _check_clustering(parts, sink, (*here, "cluster_by"), written)
    written.check_columns(sink.keys or (), (*here, "keys"))
    if not sink.merges:
        return
    if not parts.written(*here, "keys"):
        message = f"mode {mode} needs keys: without them no row can be found again"
        parts.report((*here, "mode"), message, hint="add keys: [...]")
    if sink.when_newer is not None:
        written.has((*here, "when_newer"), sink.when_newer)
    if sink.delete_when is not None:
        scope.check_expression(sink.delete_when, (*here, "delete_when"))
    for other in ("when_newer", "delete_when"):
        if sink.insert_only and parts.written(*here, other):
            message = f"insert_only leaves the rows that are there alone, so {other} means nothing"
            parts.report((*here, other), message, hint=f"remove insert_only or {other}", at_key=True)
    if not isinstance(sink, PostgresSinkConfig):
        written.check_columns(sink.prune_by, (*here, "prune_by"))


def _check_clustering(parts: Parts, sink: DeltaSinkConfig | IcebergSinkConfig, path: Path, written: Scope) -> None:
    written.check_columns(sink.cluster_by, path)
    for place, name in enumerate(sink.cluster_by):
        if name in (sink.partition_by or ()):
            message = f'column "{name}" is in partition_by: its rows have files of their own already'
            parts.report((*path, place), message, hint="remove it here")


def _check_partitions(parts: Parts, sink: FolderSinkConfig, index: int, scope: Scope) -> None:
    columns = sink.partition_by or ()
    path: Path = ("sinks", index, "partition_by")
    scope.check_columns(columns, path)
    if scope.types is None:
        return
    if columns and set(scope.names()) <= set(columns):
        message = "every column is in partition_by, and none is left for the files"
        parts.report(path, message, context=[f"columns: {', '.join(scope.names())}"])
    for place, name in enumerate(columns):
        kind = scope.types.get(name)
        if kind is not None and (kind.nested or kind.name == "BINARY"):
            parts.report((*path, place), f'column "{name}" is {kind}, which cannot name a folder')


def _check_iceberg(parts: Parts, sink: IcebergSinkConfig, index: int, scope: Scope) -> None:
    here: Path = ("sinks", index)
    for place, text in enumerate(sink.partition_by or ()):
        try:
            column = parse_partition(text).column
        except ValueError as error:
            parts.report((*here, "partition_by", place), str(error))
            continue
        scope.has((*here, "partition_by", place), column)
    if "." not in sink.table.strip("."):
        parts.report((*here, "table"), f'table "{sink.table}" has no namespace', hint=f"write shop.{sink.table}")
    away = sink.catalog.type in ("rest", "sql", "hive")
    if away and sink.catalog.uri is None:
        message = f"a catalog of type {sink.catalog.type} needs its address"
        parts.report((*here, "catalog"), message, hint="add uri: ...", at_key=True)
    elif not away and sink.catalog.uri is not None and not _names_its_file(sink):
        message = f"a catalog of type {sink.catalog.type} is in the warehouse and has no address"
        parts.report((*here, "catalog", "uri"), message, hint="remove uri, or name the catalog's type", at_key=True)


def _names_its_file(sink: IcebergSinkConfig) -> bool:
    """Whether the warehouse is in an object store, where the file of a SQLite catalog cannot be."""
    return sink.catalog.type == "sqlite" and is_uri(sink.warehouse) and not sink.warehouse.startswith("file://")


def _check_kafka_sink(parts: Parts, sink: KafkaSinkConfig, index: int, scope: Scope) -> None:
    here: Path = ("sinks", index)
    for part in ("key", "value", "partition"):
        asked = getattr(sink, part)
        if isinstance(asked, str):
            scope.check_expression(asked, (*here, part))
        elif isinstance(asked, EncodeConfig):
            _check_encode(parts, sink, asked, (*here, part), scope)
    for name, text in sink.headers.items():
        scope.check_expression(text, (*here, "headers", name))
    if isinstance(sink.topic, TopicExpression):
        scope.check_expression(sink.topic.expr, (*here, "topic", "expr"))
    else:
        if parts.source and sink.brokers in (None, parts.source.brokers):
            check_no_loop(parts, (*here, "topic"), sink.topic)
        for setting in _ONLY_WITH_CHOSEN_TOPICS:
            if parts.written(*here, setting):
                message = f"{setting} means nothing where all rows go to one topic"
                parts.report((*here, setting), message, hint=f"remove {setting}", at_key=True)
    if sink.guarantee == "at_least_once":
        for setting in _ONLY_WITH_TRANSACTIONS:
            if parts.written(*here, setting):
                message = f"{setting} means nothing with guarantee at_least_once, which writes without transactions"
                parts.report((*here, setting), message, hint=f"remove {setting}", at_key=True)
    elif sink.atomicity == "batch" and sink.slots not in (None, 1):
        message = f"atomicity batch means one slot, and slots says {sink.slots}"
        parts.report((*here, "slots"), message, hint="remove slots, or write atomicity: slot")


def _check_encode(parts: Parts, sink: KafkaSinkConfig, encode: EncodeConfig, path: Path, scope: Scope) -> None:
    if isinstance(sink.topic, TopicExpression) and encode.subject is None:
        message = "each row has its own topic, so the subject cannot be made from the topic's name"
        parts.report(path, message, hint="add subject: ...", at_key=True)
    if encode.message is not None and encode.format != "protobuf":
        hint = "remove message, or write format: protobuf"
        parts.report((*path, "message"), f"message means nothing with format {encode.format}", hint=hint, at_key=True)
    if encode.schema_file is not None and not FilePath(encode.schema_file).is_file():
        hint = "the path is relative to the pipeline file"
        parts.report((*path, "schema_file"), "the schema file is not there", hint=hint)
    if isinstance(encode, KeyEncodeConfig):
        scope.check_columns(encode.columns, (*path, "columns"))


def _check_slots(parts: Parts) -> None:
    """A batch has one number of slots, whichever sink asks for it."""
    asked: dict[int, int] = {}
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, KafkaSinkConfig) and sink.guarantee == "exactly_once":
            slots = 1 if sink.atomicity == "batch" else sink.slots
            if slots is None:
                continue
            other = next((i for n, i in asked.items() if n != slots), None)
            if other is not None:
                key = "atomicity" if sink.atomicity == "batch" else "slots"
                first = parts.file.positions.keys["sinks", other, "name"].line
                message = f"the sink at line {first} asks for another number of slots, and a batch has only one"
                parts.report(("sinks", index, key), message, hint="write the same number, or only one of them")
            asked.setdefault(slots, index)


def _check_tombstones(parts: Parts) -> None:
    for flow in flows(parts):
        here = (*flow.decode_path, "tombstones")
        if getattr(flow.decode, "tombstones", None) != "delete" or None in parts.sinks:
            continue
        if flow.sides or any(map(remembers, flow.transforms)):
            message = "a tombstone has no event time and no columns: it cannot pass a step that remembers rows"
            parts.report(here, message, hint="use tombstones: drop, pass or quarantine")
            continue
        merging = [sink for i in flow.sinks if (sink := parts.sinks[i]) is not None and sink.merges]
        for sink in merging:
            column = getattr(sink, "when_newer", None)
            if column is not None:
                message = "a tombstone has no columns: a late one would delete a row that is newer by when_newer"
                hint = "use tombstones: drop, pass or quarantine, and delete_when for rows that delete; or "
                context = [f"sink {sink.name}: when_newer: {column}"]
                parts.report(here, message, context=context, hint=f"{hint}remove when_newer")
                break
        if not merging:
            of = f" of {flow.name}" if flow.name else ""
            message = f"a tombstone deletes by its key, and no sink{of} merges"
            parts.report(here, message, hint="use tombstones: drop, pass or quarantine")
        keys = [tuple(getattr(sink, "keys", None) or ()) for sink in merging]
        if len(set(keys)) > 1:
            message = "a tombstone deletes by its key, and the sinks that merge have different keys"
            parts.report(here, message, context=[", ".join(k) for k in keys])


def check_no_loop(parts: Parts, path: Path, topic: str) -> None:
    """A pipeline that reads the topic it writes never comes to an end."""
    source = parts.source
    if source is None:
        return
    read = topic in (source.topics or source.assign or ())
    if read or (source.pattern is not None and re.fullmatch(source.pattern, topic)):
        message = f'the source reads "{topic}" too: the pipeline would read what it wrote, for ever'
        parts.report(path, message, hint="write to a topic that the source does not read")
