"""Tables, files and the checkpoint must not lie in one another."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.config.fields import is_uri
from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.sinks import DeltaSinkConfig, IcebergSinkConfig, ParquetSinkConfig


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
            here, there = normal(later.location), normal(earlier.location)
            if here == there:
                message = f"{later.what} and {earlier.what} are in the same place"
            elif here.startswith(there + "/"):
                message = f"{later.what} is inside {earlier.what}"
            elif there.startswith(here + "/"):
                message = f"{earlier.what} is inside {later.what}"
            else:
                continue
            written = parts.file.positions.written(earlier.path)
            context = [f"{earlier.what}: {written}{earlier.suffix}"]
            hint = "give each a folder of its own: they delete and list files in theirs"
            parts.report(later.path, message, context=context, hint=hint)
            break


def _places(parts: Parts) -> Iterator[_Place]:
    if parts.quarantine and parts.quarantine.table:
        yield _Place(("quarantine", "table"), "the quarantine table", parts.quarantine.table)
        if parts.source and parts.source.on_data_loss == "record":
            gaps = parts.quarantine.table.rstrip("/") + "_gaps"
            yield _Place(("quarantine", "table"), "the table of gaps", gaps, "_gaps")
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, DeltaSinkConfig | ParquetSinkConfig):
            yield _Place(("sinks", index, "path"), f'the sink "{sink.name}"', sink.path)
        elif isinstance(sink, IcebergSinkConfig):
            table = sink.warehouse.rstrip("/") + "/" + sink.table.replace(".", "/")
            yield _Place(("sinks", index, "table"), f'the sink "{sink.name}"', table)
    if parts.checkpoint:
        yield _Place(("checkpoint",), "the checkpoint", parts.checkpoint)


def normal(location: str) -> str:
    """One spelling for one place: links are followed, `s3a://` and `s3n://` are `s3://`, `file://` is a path."""
    if not is_uri(location):
        return os.path.realpath(location)
    scheme, _, rest = location.partition("://")
    rest = re.sub(r"/+", "/", rest).rstrip("/")
    return os.path.realpath(rest) if scheme == "file" else f"{re.sub('s3[an]', 's3', scheme.lower())}://{rest}"
