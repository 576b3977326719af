"""What must not lie in one another or be shared: tables, files and checkpoints of one pipeline, and of several that run
together.

A name, a checkpoint, a table, a consumer group and a port belong to one pipeline; each collision is a problem at the
later file, with both sides. A quarantine may be shared, its rows name their pipeline; so may a topic, which has many
writers by its nature. Settings of the Spark application must be the same in all files that have them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from penstock.config.fields import is_uri
from penstock.config.operation import of_application
from penstock.config.pipeline import Parts, PipelineConfig
from penstock.config.problems import Path, Problem
from penstock.config.sinks import PostgresSinkConfig

Kind = Literal["name", "place", "quarantine", "database", "group", "port", "setting"]
_HINTS: dict[Kind, str] = {
    "name": "give each pipeline a name of its own: it is part of every commit's identity",
    "place": "give each a folder of its own: they delete and list files in theirs",
    "quarantine": "give each a folder of its own: they delete and list files in theirs",
    "database": "give each a table of its own, or run them apart",
    "group": "name another one in source.group, or write source.group: false",
    "port": "give each another metrics.port, or 0 for a free one",
    "setting": "one Spark application runs them all: write the same value, or only one of them, or run them apart",
}


@dataclass(frozen=True, slots=True)
class _Claim:
    """One thing that a pipeline takes for itself."""

    config: PipelineConfig
    kind: Kind
    what: str
    key: str
    path: Path
    value: str = ""

    @property
    def at(self) -> str:
        place = self.config.positions.problem(self.path, "")
        return f"{place.file}:{place.line}:{place.column}"


def find_collisions(configs: Sequence[PipelineConfig]) -> list[Problem]:
    """Every pair that cannot run together."""
    claims = [claim for config in configs for claim in _claims(config)]
    found = []
    for index, later in enumerate(claims):
        for earlier in claims[:index]:
            if earlier.config is not later.config and (message := _message(later, earlier)) is not None:
                found.append(_problem(later, earlier, message))
                break
    return found


def _problem(later: _Claim, earlier: _Claim, message: str) -> Problem:
    own = later.config.positions
    return own.problem(
        later.path,
        message,
        context=[f"{earlier.what} of {earlier.config.name}: {earlier.at}{earlier.value}"],
        hint=_HINTS[later.kind],
    )


def _message(later: _Claim, earlier: _Claim) -> str | None:
    """What two claims have against each other."""
    other = f"{earlier.what} of {earlier.config.name}"
    if {later.kind, earlier.kind} <= {"place", "quarantine"}:
        if later.kind == earlier.kind == "quarantine" and later.key == earlier.key:
            return None
        return _overlap(later.what, later.key, other, earlier.key)
    if later.kind != earlier.kind:
        return None
    if later.kind == "setting":
        same = later.what != earlier.what or later.key == earlier.key
        return None if same else f"{later.what} is another one than that of {earlier.config.name}"
    # Two pipelines of one name have one group by that name: said once.
    by_name = later.kind == "group" and later.path == earlier.path == ("name",)
    if later.key != earlier.key or by_name:
        return None
    return f"{later.what} is also that of {earlier.config.name}"


def _claims(config: PipelineConfig) -> Iterator[_Claim]:
    yield _Claim(config, "name", "the name", config.name, ("name",))
    yield _Claim(config, "place", "the checkpoint", normal(config.checkpoint), ("checkpoint",))
    if config.quarantine is not None and config.quarantine.table is not None:
        table = config.quarantine.table
        yield _Claim(config, "quarantine", "the quarantine table", normal(table), ("quarantine", "table"))
    for index, sink in enumerate(config.sinks):
        what = f'the sink "{sink.name}"'
        path: Path = ("sinks", index, sink.located_by)
        if sink.folder is not None:
            yield _Claim(config, "place", what, normal(sink.folder), path)
        elif isinstance(sink, PostgresSinkConfig):
            key = f"{_database(sink.url.get_secret_value())}/{sink.table.lower()}"
            yield _Claim(config, "database", f"the table of {what}", key, path)
    if config.group is not None:
        path = ("source", "group") if config.source.group else ("name",)
        key = f"{config.source.brokers}/{config.group}"
        yield _Claim(config, "group", f"the consumer group {config.group}", key, path)
    if config.metrics is not None and config.metrics.port:
        key = f"{config.metrics.host}:{config.metrics.port}"
        yield _Claim(config, "port", f"the port {key} of metrics", key, ("metrics", "port"))
    for name, setting in of_application(config.spark).items():
        value = setting.get_secret_value() if isinstance(setting, SecretStr) else setting
        shown = "" if isinstance(setting, SecretStr) else f" says {value}"
        yield _Claim(config, "setting", name, value, ("spark", name), shown)


def _database(url: str) -> str:
    """Which database a URL means, without who asks; of one that is no URL, all of it."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or 5432}{parts.path}" if parts.hostname else url
    except ValueError:
        return url


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    what: str
    location: str
    suffix: str = ""


def check_locations(parts: Parts) -> None:
    """Report two places that are one, or one inside the other; each pair once, at the later one."""
    places = list(_places(parts))
    for index, later in enumerate(places):
        for earlier in places[:index]:
            if earlier.path == later.path:
                continue
            message = _overlap(later.what, normal(later.location), earlier.what, normal(earlier.location))
            if message is None:
                continue
            written = parts.file.positions.written(earlier.path)
            context = [f"{earlier.what}: {written}{earlier.suffix}"]
            parts.file.report(later.path, message, context=context, hint=_HINTS["place"])
            break


def _places(parts: Parts) -> Iterator[_Place]:
    if parts.quarantine and parts.quarantine.table:
        yield _Place(("quarantine", "table"), "the quarantine table", parts.quarantine.table)
        if parts.source and parts.source.on_data_loss == "record":
            gaps = parts.quarantine.table.rstrip("/") + "_gaps"
            yield _Place(("quarantine", "table"), "the table of gaps", gaps, "_gaps")
    for index, sink in enumerate(parts.sinks):
        if sink is not None and sink.folder is not None:
            yield _Place(("sinks", index, sink.located_by), f'the sink "{sink.name}"', sink.folder)
    if parts.checkpoint:
        yield _Place(("checkpoint",), "the checkpoint", parts.checkpoint)


def _overlap(later: str, here: str, earlier: str, there: str) -> str | None:
    """What two places have against each other, if anything."""
    if here == there:
        return f"{later} and {earlier} are in the same place"
    if here.startswith(there + "/"):
        return f"{later} is inside {earlier}"
    return f"{earlier} is inside {later}" if there.startswith(here + "/") else None


def normal(location: str) -> str:
    """One spelling for one place: links are followed, `s3a://` and `s3n://` are `s3://`, `file://` is a path."""
    if not is_uri(location):
        return os.path.realpath(location)
    scheme, _, rest = location.partition("://")
    rest = re.sub(r"/+", "/", rest).rstrip("/")
    return os.path.realpath(rest) if scheme == "file" else f"{re.sub('s3[an]', 's3', scheme.lower())}://{rest}"
