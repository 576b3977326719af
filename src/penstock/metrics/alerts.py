"""When alerts fire and resolve: a pure function of observations, without a clock, a thread or a receiver.

In: observations in order of time. Out: alerts, for each rule a firing one when its condition begins to hold, and a
resolved one when it no longer does. An unknown value (the brokers are unavailable) changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from penstock.config.alerts import AlertRuleConfig
from penstock.config.fields import show_duration
from penstock.wording import in_words


@dataclass(frozen=True, slots=True)
class Observation:
    """A running pipeline at one moment."""

    at: datetime
    lag: int | None = None
    """The offsets that wait, over all partitions; none if not known."""
    behind_seconds: float | None = None
    """The age of the first unread record of the worst partition; none if nothing waits or it is not known."""
    last_commit_at: datetime | None = None
    quarantined: int = 0
    """Records sent to the quarantine since the run began."""
    rows_in: int = 0
    """Records read since the run began."""
    restarts: tuple[datetime, ...] = ()
    """When it was restarted, within the span of the rules."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule has begun to hold, or no longer holds."""

    rule: str
    state: Literal["firing", "resolved"]
    text: str
    value: float
    limit: float
    since: datetime
    """Since when it holds, or held until it was resolved."""
    at: datetime

    def as_json(self) -> dict[str, Any]:
        """As it goes to a receiver, without the pipeline."""
        return asdict(self) | {"since": self.since.isoformat(), "at": self.at.isoformat()}


class AlertBook:
    """The firing alerts. `firing` are the rules that fired when an earlier run ended, and since when."""

    def __init__(self, rules: Sequence[AlertRuleConfig], firing: Mapping[str, datetime] | None = None) -> None:
        self._rules = tuple(rules)
        names = {rule.title for rule in rules}
        self._firing = {name: since for name, since in (firing or {}).items() if name in names}
        self._removed = {name: since for name, since in (firing or {}).items() if name not in names}
        self._holding = dict(self._firing)
        self._began: datetime | None = None
        self._idle_at: datetime | None = None
        self._counts: list[tuple[datetime, int, int]] = []
        self._span = max((rule.span for rule in rules if rule.kind == "quarantine_over"), default=None)

    def look(self, seen: Observation) -> list[Alert]:
        """The alerts that this observation causes."""
        self._remember(seen)
        removed = "the pipeline file no longer has this rule"
        alerts = [Alert(name, "resolved", removed, 0, 0, since, seen.at) for name, since in self._removed.items()]
        self._removed = {}
        for rule in self._rules:
            value = self._measure(rule, seen)
            if value is None:
                continue
            if value <= rule.limit:
                self._holding.pop(rule.title, None)
                since = self._firing.pop(rule.title, None)
                if since is not None:
                    text = _resolved_text(rule, value)
                    alerts.append(Alert(rule.title, "resolved", text, value, rule.limit, since, seen.at))
                continue
            before = timedelta(seconds=value) if rule.kind == "no_commit_for" else timedelta()
            since = self._holding.setdefault(rule.title, seen.at - before)
            wait = rule.span if rule.kind in ("lag_over", "behind_over") else timedelta()
            if rule.title not in self._firing and seen.at - since >= wait:
                self._firing[rule.title] = since
                text = _firing_text(rule, value, seen)
                alerts.append(Alert(rule.title, "firing", text, value, rule.limit, since, seen.at))
        return alerts

    def _remember(self, seen: Observation) -> None:
        self._began = self._began or seen.at
        if seen.lag == 0:
            self._idle_at = seen.at
        if self._span is None:
            return
        if self._counts and seen.rows_in < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((seen.at, seen.rows_in, seen.quarantined))
        # The last one before the span is kept: the share is computed from there.
        del self._counts[: max(self._before(seen.at - self._span), 0)]

    def _before(self, when: datetime) -> int:
        """The index of the newest counts at or before a time; -1 if there are none."""
        return bisect_right(self._counts, when, key=lambda counts: counts[0]) - 1

    def _measure(self, rule: AlertRuleConfig, seen: Observation) -> float | None:
        match rule.kind:
            case "lag_over":
                return seen.lag
            case "behind_over":
                return 0.0 if seen.lag == 0 else seen.behind_seconds
            case "no_commit_for":
                return self._without_commit(rule, seen)
            case "quarantine_over":
                return self._share(rule.span, seen)
        return sum(1 for at in seen.restarts if seen.at - rule.span < at <= seen.at)

    def _without_commit(self, rule: AlertRuleConfig, seen: Observation) -> float:
        """Seconds since a commit while there was something to read; a run has the whole time for its first one."""
        if seen.lag == 0:
            return 0.0
        begun = self._firing.get(rule.title, self._began)
        known = [when for when in (seen.last_commit_at, self._idle_at, begun) if when is not None]
        return (seen.at - max(known)).total_seconds()

    def _share(self, span: timedelta, seen: Observation) -> float | None:
        """The share of the last `span`; none while the run is younger."""
        index = self._before(seen.at - span)
        if index < 0:
            return None
        _, rows, quarantined = self._counts[index]
        read = seen.rows_in - rows
        return (seen.quarantined - quarantined) / read if read else 0.0


def _firing_text(rule: AlertRuleConfig, value: float, seen: Observation) -> str:
    span = show_duration(rule.span)
    match rule.kind:
        case "lag_over":
            return f"lag is {value:,.0f} offsets, over {rule.limit:,.0f} for {span}"
        case "behind_over":
            return f"behind by {in_words(value)}, over {show_duration(timedelta(seconds=rule.limit))} for {span}"
        case "no_commit_for":
            waiting = f"{seen.lag:,} offsets wait" if seen.lag is not None else "it is not known how much waits"
            return f"no commit for {in_words(value)}, and {waiting}"
        case "quarantine_over":
            return f"{value:.1%} of the records of the last {span} went to the quarantine, over {rule.limit:.1%}"
    return f"{value:.0f} restarts in the last {span}, over {rule.limit:.0f}"


def _resolved_text(rule: AlertRuleConfig, value: float) -> str:
    match rule.kind:
        case "lag_over":
            return f"lag is {value:,.0f} offsets, no longer over {rule.limit:,.0f}"
        case "behind_over":
            return f"behind by {in_words(value)}, no longer over {show_duration(timedelta(seconds=rule.limit))}"
        case "no_commit_for":
            return "it commits again" if value else "nothing waits to be read"
        case "quarantine_over":
            return f"{value:.1%} of the records of the last {show_duration(rule.span)} went to the quarantine"
    return f"{value:.0f} restarts in the last {show_duration(rule.span)}"
