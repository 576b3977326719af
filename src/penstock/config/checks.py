"""Checks between the parts of a file: settings that need or exclude each other, columns, names."""

from __future__ import annotations

from typing import Any

from penstock.config.alerts import HELD, KINDS
from penstock.config.connection_checks import check_connections
from penstock.config.everyday import PythonConfig
from penstock.config.flow_checks import check_routes, follow
from penstock.config.flows import flows
from penstock.config.locations import check_locations
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.scope import Scope
from penstock.config.secrets import check_secrets
from penstock.config.sink_checks import check_emitted, check_no_loop, check_sinks
from penstock.config.source_checks import check_decode, check_source, check_tables
from penstock.config.transforms import SqlConfig, remembers


def check(parts: Parts) -> None:
    """Report everything that is wrong between the parts."""
    check_source(parts)
    check_decode(parts)
    check_routes(parts)
    check_connections(parts)
    _check_quarantine(parts)
    _check_trigger(parts)
    _check_alerts(parts)
    _check_lane(parts)
    reaching: dict[int, Scope] = {}
    for flow in flows(parts):
        at_end = follow(parts.columns, flow, parts.report)
        reaching |= dict.fromkeys(flow.sinks, at_end)
        _check_quarantined(parts, at_end)
        check_emitted(parts, flow)
    check_tables(parts)
    check_sinks(parts, reaching)
    check_secrets(parts)
    check_locations(parts)


def _check_alerts(parts: Parts) -> None:
    """Report everything that is wrong between the settings of `alerts`."""
    alerts = parts.file.data.get("alerts")
    if not isinstance(alerts, dict):
        return
    rules = alerts.get("rules")
    if isinstance(rules, list):
        _check_rules(parts, rules)
    if not parts.written("alerts", "webhook") and not parts.written("alerts", "topic"):
        parts.report(
            ("alerts",),
            "neither webhook nor topic is given: nobody would hear of an alert",
            hint="add webhook: {url: ...} or topic: NAME",
            at_key=True,
        )
    if isinstance(alerts.get("topic"), str):
        check_no_loop(parts, ("alerts", "topic"), alerts["topic"])


def _check_rules(parts: Parts, rules: list[Any]) -> None:
    names: dict[str, int] = {}
    for index, rule in enumerate(rules):
        where: Path = ("alerts", "rules", index)
        if not isinstance(rule, dict):
            continue
        parts.exactly_one(where, KINDS)
        kinds = [kind for kind in KINDS if kind in rule]
        if len(kinds) != 1:
            continue
        _check_spans(parts, where, kinds[0], rule)
        name = rule.get("name", kinds[0])
        if name in names:
            line = parts.file.positions.values["alerts", "rules", names[name]].line
            message = f'the rule at line {line} is called "{name}" too, and alerts are told apart by their names'
            parts.report((*where, "name" if "name" in rule else kinds[0]), message, hint="give it a name of its own")
        names.setdefault(name, index)


def _check_spans(parts: Parts, where: Path, kind: str, rule: dict[str, Any]) -> None:
    for key, kinds in (("for", HELD), ("within", ("restarts_over",))):
        if key in rule and kind not in kinds:
            message = f"{key} means nothing to {kind}"
            instead = {"restarts_over": "write within", "no_commit_for": "no_commit_for itself says how long"}
            hint = instead.get(kind, "write for")
            parts.report(
                (*where, key), message, context=(f"it is a setting of: {', '.join(kinds)}",), hint=hint, at_key=True
            )


def _check_quarantine(parts: Parts) -> None:
    if parts.quarantine and parts.quarantine.topic:
        check_no_loop(parts, ("quarantine", "topic"), parts.quarantine.topic)
    if parts.quarantine is None or parts.written("quarantine", "table") or parts.written("quarantine", "topic"):
        return
    parts.report(("quarantine",), "neither table nor topic is given", hint="add one of them", at_key=True)


def _check_quarantined(parts: Parts, scope: Scope) -> None:
    for path in scope.needs_quarantine if not parts.written("quarantine") else ():
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
