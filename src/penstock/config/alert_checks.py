"""What has to hold of `alerts`: rules of one kind each, told apart by name; a receiver; no secret written out."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from penstock.config.alerts import HELD, KINDS
from penstock.config.fields import is_secret
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.references import literal_part
from penstock.config.sink_checks import check_no_loop
from penstock.config.yaml_source import value_at

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
