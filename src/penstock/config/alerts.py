"""Alerts of a running pipeline: rules over its own metrics, a webhook, a topic."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema

from penstock.config.fields import Count, Duration, Name, SecretKind, Section, Text, show_duration, wrong
from penstock.config.source import Topic
from penstock.config.yaml_source import Given

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*")
_FOR = timedelta(minutes=5)
_WITHIN = timedelta(minutes=10)


def _to_share(value: Any) -> Any:
    if isinstance(value, str) and (found := _SHARE.fullmatch(value)):
        value = float(found[1]) / (100 if found[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong("expected a ratio, such as 5 % or 0.05")
    if not 0 <= value < 1:
        raise wrong("a ratio is at least 0 and below 1", "write it as 5 % or as 0.05")
    return float(value)


def _check_url(url: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(url.get_secret_value())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise wrong("a webhook URL starts with http:// or https:// and a host")
    return url


Share = Annotated[
    float,
    BeforeValidator(_to_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*$|\$\{(env|file):"},
            ],
            "examples": ["5 %", 0.05],
        }
    ),
]


class AlertRuleConfig(Section):
    """One condition: exactly one of `lag_over`, `behind_over`, `no_commit_for`, `quarantine_over`, ...

    It fires once when its condition becomes true, and resolves once when it ends.
    """

    exactly_one: ClassVar[tuple[str, ...]] = (
        "lag_over",
        "behind_over",
        "no_commit_for",
        "quarantine_over",
        "restarts_over",
    )
    """The kinds of rule."""

    name: Name | None = Field(
        default=None, description="The name of the rule in messages. Defaults to its kind: `lag_over`, ..."
    )
    lag_over: Count | None = Field(
        default=None, description="The total lag stays above this many offsets for the duration of `for`."
    )
    behind_over: Duration | None = Field(
        default=None,
        description="The first unread record of some partition stays older than this for the duration of `for`.",
    )
    no_commit_for: Duration | None = Field(
        default=None, description="There are records to read, but nothing was committed for this long."
    )
    quarantine_over: Share | None = Field(
        default=None,
        description="More than this ratio of the records read in the last `for` went to the quarantine.",
    )
    restarts_over: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="The pipeline was restarted more often than this in the last `within`."
    )
    hold: Duration | None = Field(
        default=None,
        alias="for",
        description="How long the condition must last before the rule fires; default 5 minutes. For "
        "`quarantine_over`, the time window of the ratio.",
    )
    within: Duration | None = Field(
        default=None,
        description="For `restarts_over`: the time window in which restarts are counted; default 10 minutes.",
    )

    @property
    def kind(self) -> str:
        """The one key that says what is measured."""
        return next(kind for kind in self.exactly_one if getattr(self, kind) is not None)

    @property
    def title(self) -> str:
        """What the rule is called: its own name, else its kind."""
        return self.name or self.kind

    @property
    def limit(self) -> float:
        """The threshold: offsets, seconds, a share or a number of restarts."""
        value = getattr(self, self.kind)
        return value.total_seconds() if isinstance(value, timedelta) else float(value)

    @property
    def span(self) -> timedelta:
        """The time span of the rule: `for`, `within`, or its own value."""
        if self.kind == "restarts_over":
            return self.within or _WITHIN
        return self.no_commit_for or self.hold or _FOR

    def __str__(self) -> str:
        """The rule in words, for `plan`."""
        over = show_duration(self.span)
        match self.kind:
            case "lag_over":
                return f"lag over {self.lag_over:,} for {over}"
            case "behind_over":
                return f"behind over {show_duration(self.behind_over or _FOR)} for {over}"
            case "no_commit_for":
                return f"no commit for {over}"
            case "quarantine_over":
                return f"over {self.limit * 100:g} % quarantined in {over}"
        return f"over {self.restarts_over} restarts in {over}"

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """There is one kind, and the time spans are its own."""
        super().check_keys(given)
        kinds = [kind for kind in cls.exactly_one if kind in given]
        if len(kinds) != 1:
            return
        spans = {"for": ("lag_over", "behind_over", "quarantine_over"), "within": ("restarts_over",)}
        for key, of in spans.items():
            if key in given and kinds[0] not in of:
                instead = {"restarts_over": "write within", "no_commit_for": "no_commit_for already gives the duration"}
                hint, context = instead.get(kinds[0], "write for"), [f"it applies to: {', '.join(of)}"]
                given.report(key, f"{key} does not apply to {kinds[0]}", hint, context=context)


class WebhookConfig(Section):
    """An HTTP address that takes each alert as JSON, by POST."""

    url: Annotated[SecretStr, AfterValidator(_check_url), SecretKind.WEBHOOK] = Field(
        description="The URL. If it is a secret itself, use a reference: `${env:ALERT_URL}`.",
    )
    headers: dict[Text, Annotated[SecretStr, SecretKind.HEADER]] = Field(
        default_factory=dict,
        description='HTTP headers to send; secrets by reference: `{Authorization: "Bearer ${env:ALERT_TOKEN}"}`.',
    )


class AlertsConfig(Section):
    """Rules that the running pipeline evaluates, and where to send alerts when one fires or resolves. Give `webhook`,
    `topic` or both."""

    rules: Annotated[tuple[AlertRuleConfig, ...], Field(strict=False, min_length=1)] = Field(
        description="The list of rules."
    )
    webhook: WebhookConfig | None = Field(default=None, description="Where to POST alerts.")
    topic: Topic | None = Field(default=None, description="A Kafka topic on the brokers of the source.")
    every: Duration = Field(default=timedelta(seconds=5), description="How often the rules are evaluated.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Someone receives the alerts, and their rules have different names."""
        if "webhook" not in given and "topic" not in given:
            hint = "add webhook: {url: ...} or topic: NAME"
            given.report((), "neither webhook nor topic is given, so no alert could be delivered", hint)
        rules = given["rules"]
        lines: dict[str, int] = {}
        for index, rule in enumerate(rules if isinstance(rules, list) else ()):
            kinds = [kind for kind in AlertRuleConfig.exactly_one if isinstance(rule, dict) and kind in rule]
            if len(kinds) != 1:
                continue
            name = rule.get("name", kinds[0])
            if name in lines:
                message = f'the rule at line {lines[name]} is also named "{name}"; names identify alerts'
                at = ("rules", index, "name" if "name" in rule else kinds[0])
                given.report(at, message, "give it a unique name", at_key=False)
            lines.setdefault(name, given.document.positions.values[*given.path, "rules", index].line)
