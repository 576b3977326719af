"""What must not be shared, in one file and between pipelines that run together: folders, tables, names, groups, ports.

A name, a checkpoint, a table, a consumer group and a port belong to one pipeline; each collision is a problem at the
later file, with both sides. A quarantine may be shared, its rows name their pipeline; so may a topic, which has many
writers by its nature. Settings of the Spark application must be the same in all files that have them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from penstock.config.fields import is_uri
from penstock.config.operation import of_application
from penstock.config.pipeline import Parts, PipelineConfig
from penstock.config.problems import Path, Problem
from penstock.config.sinks import PostgresSinkConfig

Kind = Literal["name", "folder", "quarantine", "database", "group", "port", "setting"]
_HINTS: dict[Kind, str] = {
    "name": "give each pipeline a unique name: it is part of every commit's identity",
    "folder": "give each its own folder: pipelines list and delete files in theirs",
    "quarantine": "give each its own folder: pipelines list and delete files in theirs",
    "database": "give each its own table, or run them separately",
    "group": "set another one in source.group, or source.group: false",
    "port": "give each a different metrics.port, or 0 for a free one",
    "setting": "one Spark application runs them all: use the same value, set it only once, or run them separately",
}


@dataclass(frozen=True, slots=True)
class _Claim:
    """One thing that a pipeline takes for itself."""

    kind: Kind
    what: str
    key: str
    path: Path
    shown: str = ""
    """How its value is shown to another pipeline."""

    def overlap(self, what: str, earlier: _Claim, other: str) -> str | None:
        """What is wrong with this folder and an earlier one, if anything."""
        if self.key == earlier.key:
            return f"{what} and {other} are in the same place"
        if self.key.startswith(earlier.key + "/"):
            return f"{what} is inside {other}"
        return f"{other} is inside {what}" if earlier.key.startswith(self.key + "/") else None


def check_locations(parts: Parts) -> None:
    """Report two folders that are one, or one inside the other; each pair once, at the later one."""
    folders = list(_folders(parts))
    for index, later in enumerate(folders):
        for earlier in folders[:index]:
            message = later.overlap(later.what, earlier, earlier.what) if earlier.path != later.path else None
            if message is not None:
                context = [f"{earlier.what}: {parts.file.positions.written(earlier.path)}{earlier.shown}"]
                parts.file.report(later.path, message, context=context, hint=_HINTS["folder"])
                break


def _folders(pipeline: Parts | PipelineConfig) -> Iterator[_Claim]:
    if pipeline.quarantine and pipeline.quarantine.table:
        path, table = ("quarantine", "table"), pipeline.quarantine.table
        yield _Claim("quarantine", "the quarantine table", normal(table), path)
        if pipeline.source and pipeline.source.on_data_loss == "record":
            yield _Claim("quarantine", "the table of gaps", normal(table.rstrip("/") + "_gaps"), path, "_gaps")
    for index, sink in enumerate(pipeline.sinks):
        if sink is not None and sink.folder is not None:
            yield _Claim("folder", f'the sink "{sink.name}"', normal(sink.folder), ("sinks", index, sink.located_by))
    if pipeline.checkpoint:
        yield _Claim("folder", "the checkpoint", normal(pipeline.checkpoint), ("checkpoint",))


def find_collisions(configs: Sequence[PipelineConfig]) -> list[Problem]:
    """Every pair that cannot run together."""
    claims = [(config, claim) for config in configs for claim in _claims(config)]
    found = []
    for index, (config, later) in enumerate(claims):
        for other, earlier in claims[:index]:
            if other is config or (message := _message(later, earlier, other.name)) is None:
                continue
            at = other.positions.problem(earlier.path, "")
            context = [f"{earlier.what} of {other.name}: {at.file}:{at.line}:{at.column}{earlier.shown}"]
            found.append(config.positions.problem(later.path, message, context=context, hint=_HINTS[later.kind]))
            break
    return found


def _message(later: _Claim, earlier: _Claim, name: str) -> str | None:
    """Why two claims of different pipelines cannot both be met."""
    if {later.kind, earlier.kind} <= {"folder", "quarantine"}:
        shared = later.kind == earlier.kind == "quarantine" and later.key == earlier.key
        return None if shared else later.overlap(later.what, earlier, f"{earlier.what} of {name}")
    if later.kind != earlier.kind:
        return None
    if later.kind == "setting":
        same = later.what != earlier.what or later.key == earlier.key
        return None if same else f"{later.what} differs from that of {name}"
    # Two pipelines of one name have one group by that name: reported once.
    by_name = later.kind == "group" and later.path == earlier.path == ("name",)
    return f"{later.what} is also used by {name}" if later.key == earlier.key and not by_name else None


def _claims(config: PipelineConfig) -> Iterator[_Claim]:
    yield _Claim("name", "the name", config.name, ("name",))
    yield from (replace(claim, shown="") for claim in _folders(config) if claim.what != "the table of gaps")
    for index, sink in enumerate(config.sinks):
        if isinstance(sink, PostgresSinkConfig):
            key = f"{_database(sink.url.get_secret_value())}/{sink.table.lower()}"
            yield _Claim("database", f'the table of the sink "{sink.name}"', key, ("sinks", index, sink.located_by))
    if config.group is not None:
        path: Path = ("source", "group") if config.source.group else ("name",)
        yield _Claim("group", f"the consumer group {config.group}", f"{config.source.brokers}/{config.group}", path)
    if config.metrics is not None and config.metrics.port:
        key = f"{config.metrics.host}:{config.metrics.port}"
        yield _Claim("port", f"the port {key} of metrics", key, ("metrics", "port"))
    for name, setting in of_application(config.spark).items():
        value = setting.get_secret_value() if isinstance(setting, SecretStr) else setting
        shown = "" if isinstance(setting, SecretStr) else f" says {value}"
        yield _Claim("setting", name, value, ("spark", name), shown)


def _database(url: str) -> str:
    """The database of a URL, without the user; all of the text if it is not a URL."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or 5432}{parts.path}" if parts.hostname else url
    except ValueError:
        return url


def normal(location: str) -> str:
    """One spelling for one place: links are followed, `s3a://` and `s3n://` are `s3://`, `file://` is a path."""
    if not is_uri(location):
        return os.path.realpath(location)
    scheme, _, rest = location.partition("://")
    rest = re.sub(r"/+", "/", rest).rstrip("/")
    return os.path.realpath(rest) if scheme == "file" else f"{re.sub('s3[an]', 's3', scheme.lower())}://{rest}"
