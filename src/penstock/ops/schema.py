"""Checks the newest registry schemas against the pipeline and its tables. Nothing is written, no JVM is started.

Enters: a pipeline file and, for a producer who asks before deploying, a schema that nobody has registered yet. Leaves:
what would change, and what would break, each with both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from penstock import config as cfg
from penstock.assembly.build import Pipeline, build
from penstock.assembly.schemas import Place, Registered, Schemas, registered
from penstock.errors import DefinitionError, MissingError, PenstockError, transient_is_fatal
from penstock.registry import RegisteredSchema

Level = Literal["fits", "changes", "breaks", "unknown"]


@dataclass(frozen=True)
class SchemaFinding:
    """One thing that was compared: what it is, and what would happen."""

    level: Level
    about: str
    text: str


@dataclass(frozen=True)
class SchemaCheck:
    """Everything that `penstock schema check` prints."""

    pipeline: str
    schemas: tuple[str, ...]
    """The compared subjects with their versions."""
    findings: tuple[SchemaFinding, ...]

    @property
    def breaks(self) -> bool:
        """Whether anything would break."""
        return any(finding.level == "breaks" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "breaks": self.breaks}


def plan_schema_check(
    config: cfg.PipelineConfig, candidate: Path | None = None, subject: str | None = None
) -> SchemaCheck:
    """Compare the registry's newest schemas, or a candidate for one subject, with the pipeline and its tables."""
    places = registered(config)
    if not places:
        raise DefinitionError(
            "NO_REGISTRY",
            f"checking the schemas of {config.name}: no decoder takes its columns from a registry",
            hint="there is nothing to compare; `penstock plan` checks the tables",
        )
    with transient_is_fatal():
        schemas = _schemas(places, candidate, subject)
        findings = tuple(_findings(config, places, schemas))
    return SchemaCheck(config.name, tuple(_named(schema) for schema in schemas.values()), findings)


def _schemas(places: Mapping[Place, Registered], candidate: Path | None, subject: str | None) -> Schemas:
    subjects = {one.subject for one in places.values()}
    if subject is not None and subject not in subjects:
        raise MissingError(
            "SUBJECT_NOT_READ",
            f"checking subject {subject}: this pipeline does not read it",
            context={"subjects": ", ".join(sorted(subjects))},
        )
    if candidate is None:
        return {place: one.ask() for place, one in places.items()}
    values = {one.subject for place, one in places.items() if place[-1] != "key"}
    subject = subject or (values.pop() if len(values) == 1 else None)
    if subject is None and len(subjects) > 1:
        raise MissingError(
            "SUBJECT_NEEDED",
            "checking a candidate: the pipeline reads several subjects",
            context={"subjects": ", ".join(sorted(subjects))},
            hint="choose one with --subject",
        )
    try:
        text = candidate.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MissingError("SCHEMA_FILE_MISSING", f"reading the candidate {candidate}: {why}") from None
    meant = subject or next(iter(subjects))
    return {
        place: one.with_dropped(replace(one.ask(), id=0, text=text, version=None, references=()))
        if one.subject == meant
        else one.ask()
        for place, one in places.items()
    }


def _findings(
    config: cfg.PipelineConfig, places: Mapping[Place, Registered], schemas: Schemas
) -> Iterator[SchemaFinding]:
    try:
        pipeline = build(config, schemas)
    except cfg.InvalidDefinition as error:
        yield from (SchemaFinding("breaks", "the pipeline", str(problem)) for problem in error.problems)
        return
    except PenstockError as error:
        yield SchemaFinding("breaks", "the schema", _without_sink(error))
        return
    yield from _older_records(pipeline, places, schemas)
    yield SchemaFinding("fits", "the pipeline", "every column that it uses exists")
    yield from _tables(pipeline)


def _older_records(pipeline: Pipeline, places: Mapping[Place, Registered], schemas: Schemas) -> Iterator[SchemaFinding]:
    """Records of the version before are still in the topic, and are read by the newest."""
    for flow in pipeline.flows:
        place = flow.config.decode_path
        if place not in places:
            continue
        decoder = flow.decoder
        if not decoder.knows_refusals:
            continue
        found = list(islice(places[place].older(schemas[place]), 2))
        if not found:
            continue
        before, *earlier = found
        about = f"records of {before.subject} version {before.version}"
        refusal = decoder.refuses(before)
        if refusal is None:
            yield SchemaFinding("fits", about, "can be read")
            continue
        # Where the one before that can be read, it was that version that broke, and this one mends it.
        level: Level = "changes" if any(decoder.refuses(schema) is None for schema in earlier) else "breaks"
        yield SchemaFinding(level, about, f"would go to quarantine: {refusal.code} {refusal.message}")


def _tables(pipeline: Pipeline) -> Iterator[SchemaFinding]:
    for flow in pipeline.flows:
        schema = flow.schema
        for inlet in flow.inlets:
            sink, about = inlet.sink, f"sink {inlet.sink.name}"
            if schema is None:
                yield SchemaFinding("unknown", about, f"only Spark knows its columns: {flow.lane.reason}")
                continue
            try:
                mine = inlet.schema(schema)
                sink.check(mine)
                changes = sink.changes(mine)
            except PenstockError as error:
                yield SchemaFinding("breaks", about, _without_sink(error))
                continue
            for change in changes:
                yield SchemaFinding("changes", about, change)
            if not changes:
                yield SchemaFinding("fits", about, f"{sink.target} accepts the rows unchanged")


def _named(schema: RegisteredSchema) -> str:
    return f"{schema.subject} " + (f"version {schema.version}" if schema.version is not None else "as the candidate")


def _without_sink(error: PenstockError) -> str:
    return re.sub(r"^sink \S+: ", "", error.line)
