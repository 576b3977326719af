"""What has to hold between the parts of a file: settings that need or exclude each other, columns, names."""

from __future__ import annotations

from penstock.config.alert_checks import check_alerts
from penstock.config.decode_checks import check_decode
from penstock.config.everyday import PythonConfig
from penstock.config.flows import flows
from penstock.config.known import Known
from penstock.config.locations import check_locations
from penstock.config.parts import Parts
from penstock.config.registry_checks import check_registries
from penstock.config.routes import check_routes
from penstock.config.secrets import check_secrets
from penstock.config.security_checks import check_security
from penstock.config.settings import check_settings
from penstock.config.sink_checks import check_emitted, check_no_loop, check_sinks
from penstock.config.source_checks import check_source
from penstock.config.stages import follow, follow_join
from penstock.config.storage_checks import check_storage
from penstock.config.table_checks import check_tables
from penstock.config.transforms import SqlConfig, remembers


def check(parts: Parts) -> None:
    """Report everything that is wrong between the parts."""
    check_source(parts)
    check_decode(parts)
    check_routes(parts)
    check_registries(parts)
    check_security(parts)
    check_storage(parts)
    _check_quarantine(parts)
    _check_trigger(parts)
    check_alerts(parts)
    _check_lane(parts)
    known: dict[int, Known] = {}
    for flow in flows(parts):
        if flow.sides:
            _, at_end = follow_join(parts.columns, flow, parts.report)
        else:
            _, at_end = follow(parts.columns.get(flow.decode_path), flow, parts.report)
        known |= dict.fromkeys(flow.sinks, at_end)
        _check_quarantined(parts, at_end)
        check_emitted(parts, flow)
    check_tables(parts)
    check_sinks(parts, known)
    check_settings(parts)
    check_secrets(parts)
    check_locations(parts)


def _check_quarantine(parts: Parts) -> None:
    if parts.quarantine and parts.quarantine.topic:
        check_no_loop(parts, ("quarantine", "topic"), parts.quarantine.topic)
    if parts.quarantine is None or parts.written("quarantine", "table") or parts.written("quarantine", "topic"):
        return
    parts.report(("quarantine",), "neither table nor topic is given", hint="add one of them", at_key=True)


def _check_quarantined(parts: Parts, known: Known) -> None:
    for path in known.needs_quarantine if not parts.written("quarantine") else ():
        message = "records go to the quarantine here, and the pipeline has none"
        parts.report(path, message, hint="add quarantine: {table: ...}", at_key=True)


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
            needs_spark = isinstance(transform, SqlConfig | PythonConfig) or remembers(transform)
            if transform is not None and needs_spark and parts.file.data.get("lane") == "direct":
                where = f"{flow.name}." if flow.name else ""
                message = f"the direct lane cannot run {transform.kind}, which {where}transforms[{index}] is"
                parts.report(("lane",), message, hint="remove lane, or write lane: frame")
                return
