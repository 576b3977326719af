"""What has to hold of the source: what it reads, from where; and of several that are to be joined."""

from __future__ import annotations

from penstock.config.durations import show_duration
from penstock.config.parts import Parts
from penstock.config.problems import Path, did_you_mean
from penstock.config.sources import NamedSourceConfig

_SELECTION = ("topics", "pattern", "assign")
_SHARED = ("brokers", "security", "options", "on_data_loss", "group")


def check_source(parts: Parts) -> None:
    """Report everything that is wrong with the source, or with the sources."""
    _check_flow(parts)
    if parts.written("sources"):
        _check_sources(parts)
        return
    for part in ("source", "decode"):
        if part not in parts.file.data:
            parts.report((part,), "this key is required and missing")
    if isinstance(parts.file.data.get("source"), dict):
        parts.exactly_one(("source",), _SELECTION)
    source = parts.source
    if source is None:
        return
    if source.min_offsets and source.max_offsets and source.min_offsets > source.max_offsets:
        message = f"min_offsets {source.min_offsets:,} is more than max_offsets {source.max_offsets:,}"
        parts.report(("source", "min_offsets"), message)
    for one, other in (("max_delay", "min_offsets"), ("min_offsets", "max_delay")):
        if parts.written("source", one) and not parts.written("source", other):
            parts.report(("source", one), f"{one} means nothing without {other}", hint=f"add {other}", at_key=True)
    _check_topics(parts)
    if source.on_data_loss == "record" and not parts.written("quarantine", "table"):
        parts.report(
            ("source", "on_data_loss"),
            "record writes the gaps beside the quarantine table, and there is none",
            hint="add quarantine: {table: ...}",
        )


def _check_flow(parts: Parts) -> None:
    flow = parts.flow
    if flow is None:
        return
    names = [("source",), *(("sources", name) for name in parts.sources)]
    fixed = next((name for name in names if parts.written(*name, "max_offsets")), None)
    if parts.written("flow") and fixed is not None:
        parts.report(
            ("flow",),
            f"there is a fixed cap: {'.'.join(fixed)}.max_offsets",
            hint="leave one of them out; flow.max_offsets bounds what flow control finds",
            at_key=True,
        )
    if flow.target_batch > flow.max_batch:
        target, most = show_duration(flow.target_batch), show_duration(flow.max_batch)
        here = ("flow", "target_batch" if parts.written("flow", "target_batch") else "max_batch")
        parts.report(here, f"target_batch {target} is longer than max_batch {most}")
    if flow.max_offsets is not None and flow.min_offsets > flow.max_offsets:
        message = f"min_offsets {flow.min_offsets:,} is more than max_offsets {flow.max_offsets:,}"
        parts.report(("flow", "min_offsets" if parts.written("flow", "min_offsets") else "max_offsets"), message)


def _check_topics(parts: Parts) -> None:
    source = parts.source
    if source is None:
        return
    for index, topic in enumerate(source.topics or ()):
        if topic in (source.topics or ())[:index]:
            parts.report(("source", "topics", index), f'topic "{topic}" is here twice')
    topics = source.topics or tuple(source.assign or ())
    if not isinstance(source.start, dict) or not topics:
        return
    for topic, offsets in source.start.items():
        here: Path = ("source", "start", topic)
        if topic not in topics:
            context = [f"topics: {', '.join(topics)}"]
            message = f'topic "{topic}" is not read by this pipeline'
            parts.report(here, message, context=context, hint=did_you_mean(topic, topics), at_key=True)
        elif source.assign:
            for partition in offsets:
                if int(partition) not in source.assign[topic]:
                    message = f"partition {partition} of {topic} is not assigned"
                    parts.report((*here, partition), message, at_key=True)


def _check_sources(parts: Parts) -> None:
    for part in ("source", "decode", "routes"):
        if parts.written(part):
            where = "each of the sources has its own" if part == "decode" else "sources takes its place"
            parts.report((part,), f"{part} and sources exclude each other: {where}", hint=f"remove {part}", at_key=True)
    if isinstance(parts.file.data.get("sources"), dict) and len(parts.sources) != 2:
        count = len(parts.sources)
        message = f"sources are for a join of two, and there {'is' if count == 1 else 'are'} {count}"
        hint = (
            "one is written as source: and decode:"
            if count < 2
            else "write the join of two to a topic, and join that with the third"
        )
        parts.report(("sources",), message, hint=hint, at_key=True)
    first: tuple[str, NamedSourceConfig] | None = None
    topics: dict[str, str] = {}
    for name, source in parts.sources.items():
        if source is None:
            continue
        path: Path = ("sources", name)
        if source.topics is None:
            parts.report(
                path, "a source that is joined needs its topics by name", hint="write topics: [...]", at_key=True
            )
        for index, topic in enumerate(source.topics or ()):
            if topic in topics:
                message = f'topic "{topic}" is read by {topics[topic]} already'
                parts.report((*path, "topics", index), message, hint="copy it to a second topic, or read it once")
            topics[topic] = f"source {name}"
        if first is None:
            first = (name, source)
            continue
        for key in _SHARED:
            if getattr(source, key) != getattr(first[1], key):
                message = (
                    f"not the same as in source {first[0]}: the sources of a join share one cluster and its settings"
                )
                parts.report((*path, key), message, hint=f"write the same {key} in both", at_key=True)
        both = (source.start, first[1].start)
        if both[0] != both[1] and not all(isinstance(start, dict) for start in both):
            message = f"not the same as in source {first[0]}"
            parts.report((*path, "start"), message, hint="write the same start, or offsets for both", at_key=True)
