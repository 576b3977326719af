"""Checks between the parts of a file: settings that need or exclude each other, columns, names.

Also of what any part may name: registries, object stores, and the rules and receivers of alerts.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from penstock.config.alerts import HELD, KINDS
from penstock.config.everyday import PythonConfig
from penstock.config.fields import is_secret, is_uri
from penstock.config.flow_checks import follow
from penstock.config.flows import flows
from penstock.config.locations import check_locations
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.references import literal_part
from penstock.config.routes import check_routes
from penstock.config.scope import Scope
from penstock.config.secrets import check_secrets
from penstock.config.security_checks import check_security
from penstock.config.settings import check_settings
from penstock.config.sink_checks import check_emitted, check_no_loop, check_sinks
from penstock.config.sinks import IcebergCatalogConfig, IcebergSinkConfig
from penstock.config.source_checks import check_decode, check_source, check_tables
from penstock.config.tables import IcebergTableConfig
from penstock.config.transforms import SqlConfig, remembers
from penstock.config.yaml_source import value_at


def check_registries(parts: Parts) -> None:
    """Report settings of registries that need or exclude each other."""
    for path in list(parts.file.positions.keys):
        given = value_at(parts.file.data, path)
        if path[-1] != "registry" or not isinstance(given, dict):
            continue
        user = next((key for key in ("username", "password") if key in given), None)
        if "token" in given and user is not None:
            message = f"a token is shown instead of a user and password, and {user} is there too"
            parts.report((*path, "token"), message, hint=f"remove token or {user}", at_key=True)
        for key, needed in (("password", "username"), ("key_file", "certificate_file")):
            if key in given and needed not in given:
                message = f"{key} means nothing without {needed}"
                parts.report((*path, key), message, hint=f"add {needed}", at_key=True)


_KEYS = ("access_key", "secret_key")


def check_storage(parts: Parts) -> None:
    """Report credentials that are not whole, and catalogs whose commits no object store makes safe."""
    given = [key for key in _KEYS if parts.written("storage", key)]
    if len(given) == 1:
        [missing] = set(_KEYS) - set(given)
        parts.report(
            ("storage", given[0]), f"{given[0]} means nothing without {missing}", hint=f"add {missing}", at_key=True
        )
    if parts.written("storage", "session_token") and not given:
        parts.report(
            ("storage", "session_token"),
            "session_token means nothing without access_key",
            hint="add access_key and secret_key",
            at_key=True,
        )
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, IcebergSinkConfig):
            _check_catalog(parts, ("sinks", index), sink.warehouse, sink.catalog)
    for name, table in parts.tables.items():
        if isinstance(table, IcebergTableConfig):
            _check_catalog(parts, ("tables", name), table.warehouse, table.catalog)


def _check_catalog(parts: Parts, path: tuple[str | int, ...], warehouse: str, catalog: IcebergCatalogConfig) -> None:
    """A catalog decides which of two commits counts. A file in an object store cannot."""
    if not is_uri(warehouse) or warehouse.startswith("file://"):
        return
    if catalog.type == "sqlite" and catalog.uri is None:
        parts.report(
            (*path, "warehouse"),
            "a SQLite catalog can only lie on a disk of this machine",
            hint="name a catalog that decides between writers: catalog: {type: rest, uri: ...} or {type: sql, uri: "
            "...}; for runs of one machine a file of it: catalog: {uri: sqlite:///path}",
        )


_CREDENTIALS = re.compile(r"authorization|cookie|api-?key|auth-?key", re.IGNORECASE)
_SCHEME = re.compile(r"\s*(bearer|basic|digest|token|apikey|geniekey)?\s*", re.IGNORECASE)


def check_alerts(parts: Parts) -> None:
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
    _check_secrets(parts)


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


def _check_secrets(parts: Parts) -> None:
    headers = value_at(parts.file.data, ("alerts", "webhook", "headers"))
    secrets: list[Path] = [
        ("alerts", "webhook", "headers", name)
        for name in (headers if isinstance(headers, dict) else ())
        if is_secret(str(name)) or _CREDENTIALS.search(str(name))
    ]
    exposed = [path for path in secrets if not _SCHEME.fullmatch(literal_part(_text(parts, path)))]
    url: Path = ("alerts", "webhook", "url")
    if _has_password(literal_part(_text(parts, url))):
        exposed.append(url)
    for path in exposed:
        parts.report(path, "a secret is written out in the file", hint="write it as ${env:NAME} or ${file:path}")


def _text(parts: Parts, path: Path) -> str:
    spot = parts.file.positions.values.get(path)
    return spot.text if spot else ""


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False


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
    reaching: dict[int, Scope] = {}
    for flow in flows(parts):
        at_end = follow(parts.columns, flow, parts.report)
        reaching |= dict.fromkeys(flow.sinks, at_end)
        _check_quarantined(parts, at_end)
        check_emitted(parts, flow)
    check_tables(parts)
    check_sinks(parts, reaching)
    check_settings(parts)
    check_secrets(parts)
    check_locations(parts)


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
