"""The heat strip: lag by partition over time, in JSON, whole or only what is new."""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.dashboard.recent import Numbers, Place, Recent
from penstock.model import TopicPartition
from penstock.ops.lag.lag import hot_partitions


def partitions_json(recent: Recent, ages: Mapping[Place, float | None]) -> str:
    """Where each partition is now; with the age of its first unread record, where one was looked at."""
    seen = recent.seen
    lags = recent.columns[-1].lags.tolist() if recent.columns else []
    by_place = {TopicPartition(*place): lag for place, lag in zip(seen.places, lags, strict=True) if lag >= 0}
    hot = hot_partitions(by_place)
    shown = [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": committed if committed >= 0 else None,
            "end": end,
            "lag": lag if lag >= 0 else None,
            "seconds_behind": ages.get(place) if lag else 0.0,
            "hot": TopicPartition(*place) in hot,
        }
        for place, committed, end, lag in zip(seen.places, seen.committed, seen.ends, lags, strict=True)
    ]
    return json.dumps(shown, separators=(",", ":"))


def heat_json(recent: Recent, partitions: str, after: int | None) -> str:
    """The strip; with `after` only the columns behind that number, to be appended."""
    columns = [column for column in recent.columns if after is None or column.number > after]
    times = json.dumps([column.at for column in columns])
    lags = ",".join(_column(column.lags) for column in columns)
    append = "false" if after is None else "true"
    return f'{{"partitions":{partitions},"times":{times},"columns":[{lags}],"append":{append}}}'


def _column(lags: Numbers) -> str:
    return str(lags.tolist()).replace("-1", "null").replace(" ", "")
