"""The details of one pipeline in JSON, made at most once a second however many pages show them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from penstock.dashboard.detail import detail
from penstock.dashboard.facts import Facts
from penstock.dashboard.heat import heat_json, partitions_json

_MAX_AGE = 0.9


@dataclass(frozen=True)
class Sent:
    """What a page was sent last."""

    version: int
    order: int
    """The order of the partitions."""
    number: int
    """Of the newest column of the heat strip."""
    text: str


class Views:
    """Makes the JSON, and keeps what several pages get alike. Not for two threads at once."""

    def __init__(self) -> None:
        self._version = 0
        self._made_at = 0.0
        self._known: object = None
        self._body, self._partitions = "", "[]"
        self._texts: dict[int | None, str] = {}

    def send(self, facts: Facts, before: Sent | None) -> Sent | None:
        """What a page is to be sent: with the columns that it has not got, or all where their order is another.

        Nothing where it has got everything.
        """
        recent = facts.recent
        if time.monotonic() - self._made_at > _MAX_AGE:
            self._made_at = time.monotonic()
            self._make(facts)
        if before is not None and before.version == self._version:
            return None
        after = before.number if before is not None and before.order == recent.order else None
        if after not in self._texts:
            heat = heat_json(recent, self._partitions, after)
            self._texts[after] = f'{self._body[:-1]},"heat":{heat}}}'
        return Sent(self._version, recent.order, facts.newest_column, self._texts[after])

    def _make(self, facts: Facts) -> None:
        known = (facts.recent, facts.newest_column, facts.looks.get("lag"))
        partitions = self._partitions
        if known != self._known:
            partitions = partitions_json(facts.recent, facts.found("lag").get("ages", {}))
        body = json.dumps(detail(facts, time.time()), separators=(",", ":"))
        if known != self._known or body != self._body:
            self._version += 1
            self._texts = {}
        self._known, self._body, self._partitions = known, body, partitions
