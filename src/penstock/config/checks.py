"""What has to hold between the parts of a file: settings that need or exclude each other, columns, names."""

from __future__ import annotations

from penstock.config.decode_checks import check_decode
from penstock.config.flows import flows
from penstock.config.known import Known
from penstock.config.locations import check_locations
from penstock.config.parts import Parts
from penstock.config.problems import Path, did_you_mean
from penstock.config.registry_checks import check_registries
from penstock.config.routes import check_routes
from penstock.config.secrets import check_secrets
from penstock.config.settings import check_settings
from penstock.config.sink_checks import check_no_loop, check_sinks
from penstock.config.stages import follow
from penstock.config.transforms import SqlConfig

_SELECTION = ("topics", "pattern", "assign")


def check(parts: Parts) -> None:
    """Report everything that is wrong between the parts."""
    _check_source(parts)
    check_decode(parts)
    check_routes(parts)
    check_registries(parts)
    _check_quarantine(parts)
    _check_trigger(parts)
    _check_lane(parts)
    known: dict[int, Known] = {}
    for flow in flows(parts):
        _, at_end = follow(parts.columns.get(flow.decode_path), flow, parts.report)
        known |= dict.fromkeys(flow.sinks, at_end)
    check_sinks(parts, known)
    check_settings(parts)
    check_secrets(parts)
    check_locations(parts)


def _check_source(parts: Parts) -> None:
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


def _check_quarantine(parts: Parts) -> None:
    if parts.quarantine and parts.quarantine.topic:
        check_no_loop(parts, ("quarantine", "topic"), parts.quarantine.topic)
    if parts.quarantine is None or parts.written("quarantine", "table") or parts.written("quarantine", "topic"):
        return
    parts.report(("quarantine",), "neither table nor topic is given", hint="add one of them", at_key=True)


def _check_trigger(parts: Parts) -> None:
    if parts.trigger and parts.trigger.available_now and parts.written("trigger", "every"):
        parts.report(
            ("trigger", "every"),
            "every and available_now exclude each other",
            hint="every keeps running; available_now reads what is there and stops",
            at_key=True,
        )


def _check_lane(parts: Parts) -> None:
    for flow in flows(parts):
        for index, transform in enumerate(flow.transforms):
            if isinstance(transform, SqlConfig) and parts.file.data.get("lane") == "direct":
                where = f"{flow.name}." if flow.name else ""
                message = f"the direct lane cannot run sql, which {where}transforms[{index}] is"
                parts.report(("lane",), message, hint="remove lane, or write lane: frame")
                return
