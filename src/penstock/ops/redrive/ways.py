"""Which way each quarantined record goes back in: through the whole pipeline, or only to the sinks that lack it.

Records with how they stand enter; one row for each record leaves, with the sinks that it goes to. What cannot go back
without harm is left out, with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from penstock import config as cfg
from penstock.errors import MissingError
from penstock.quarantine.marks import IDENTITIES
from penstock.quarantine.records import PLACE, REFUSED_BY

_SQL_THAT_MULTIPLIES = re.compile(r"\b(explode\w*|posexplode\w*|inline\w*|stack|lateral|join|union)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Ways:
    """The records that go back in, in the column `way` the sinks of each; and how many do not, by the reason."""

    records: pl.DataFrame
    left_out: Mapping[str, int]


def find_ways(config: cfg.PipelineConfig, records: pl.DataFrame, *, accept_duplicates: bool) -> Ways:
    """The way of each record: its rows of several identities go back in together, to all the sinks they lack."""
    every = tuple(sink.name for sink in config.sinks)
    left_out: Counter[str] = Counter()
    goals = {wanted: goals_of(config, wanted) for wanted in records["wanted_by"].unique()}
    for wanted, goal in goals.items():
        if not goal:
            count = records.filter(pl.col("wanted_by").eq_missing(pl.lit(wanted))).height
            left_out[f"refused by {wanted}, which the file no longer has"] += count
    texts = {wanted: ",".join(goal) for wanted, goal in goals.items()}
    known = pl.DataFrame(
        {"wanted_by": list(texts), "way": list(texts.values())}, schema_overrides={"wanted_by": pl.String}
    )
    kept = records.join(known, on="wanted_by", how="left", nulls_equal=True, maintain_order="left")
    kept = kept.filter(pl.col("way") != "")
    if not accept_duplicates:
        kept = _without_harm(config, kept, left_out)
    together = kept.group_by(PLACE, maintain_order=True).agg(
        pl.col("way").unique().sort().str.join("|"), pl.col(REFUSED_BY).alias(IDENTITIES), pl.col("code").first()
    )
    joined = {ways: _join(re.split("[|,]", ways), every) for ways in together["way"].unique()}
    return Ways(together.with_columns(pl.col("way").replace(joined)), dict(left_out))


def narrowed(config: cfg.PipelineConfig, sinks: Iterable[str] | None, **changes: object) -> cfg.PipelineConfig:
    """The pipeline with these sinks alone, and with the routes that lead to them. Routes keep their numbers."""
    names = {sink.name for sink in config.sinks} if sinks is None else set(sinks)
    missing = sorted(names - {sink.name for sink in config.sinks})
    if missing:
        raise MissingError(
            "REDRIVE_SINK_GONE",
            f"pipeline {config.name}: a redrive that was begun goes to sinks that the file no longer has",
            context={"gone": ", ".join(missing), "in the file": ", ".join(sink.name for sink in config.sinks)},
            hint="put them back until that redrive is finished",
        )
    flows = {flow.path[-1]: flow for flow in cfg.flows(config)} if config.routes else {}
    routes = tuple(
        # What `otherwise` takes depends on the other routes, so it is written out.
        route.model_copy(update={"sinks": kept, "where": flows[number].where, "otherwise": False}) if kept else None
        for number, route in enumerate(config.routes)
        for kept in [tuple(name for name in route.sinks if name in names)]
    )
    kept = tuple(sink for sink in config.sinks if sink.name in names)
    return config.model_copy(update={"sinks": kept, "routes": routes, **changes})


def reached_by(config: cfg.PipelineConfig) -> dict[str, tuple[str, ...]]:
    """For each sink itself, and for each route its sinks: what a record misses that is refused there."""
    reached: dict[str, tuple[str, ...]] = {sink.name: (sink.name,) for sink in config.sinks}
    for flow in cfg.flows(config) if config.routes else ():
        reached[flow.name] = tuple(config.sinks[index].name for index in flow.sinks)
    return reached


def goals_of(config: cfg.PipelineConfig, wanted: str | None) -> tuple[str, ...]:
    """The sinks that names of sinks and routes stand for, in the order of the file; all of them for none."""
    if wanted is None:
        return tuple(sink.name for sink in config.sinks)
    reached = reached_by(config)
    names = {sink for name in wanted.split(",") for sink in reached.get(name, ())}
    return tuple(sink.name for sink in config.sinks if sink.name in names)


def _join(names: Collection[str], every: tuple[str, ...]) -> str:
    return ",".join(name for name in every if name in names)


def _without_harm(config: cfg.PipelineConfig, records: pl.DataFrame, left_out: Counter[str]) -> pl.DataFrame:
    """Leave out what may be in a sink already that would take it twice, and that asking the target does not settle."""
    appending = {sink.name for sink in config.sinks if not sink.merges}
    topics = {sink.name for sink in config.sinks if isinstance(sink, cfg.KafkaSinkConfig)}
    stage = pl.col("last_stage").str.extract(r"^(\S+)")
    unnamed = pl.col("wanted_by").is_null() & (pl.col("failures") == 0)
    several = (stage == "sink") & (len(config.sinks) > 1) | (stage == "transform") & bool(config.routes)
    steps = [step for flow in cfg.flows(config) for step in flow.transforms if step is not None and _multiplies(step)]
    reasons = {
        # A topic knows the redriven records that it has, and not those of the stream.
        "some sinks may have it: it was quarantined by a version that did not note which refused it": (
            _goes_to(records, topics) & several & unnamed
        ),
        # That a target has a row of the record does not tell which of its rows.
        f"some of its rows may be written: {_kind(steps)} makes several of one record": (
            _goes_to(records, appending) & stage.is_in(["transform", "sink"]) & bool(steps)
        ),
    }
    for reason, condition in reasons.items():
        harmful = condition.fill_null(False)
        count = records.filter(harmful).height
        if count:
            left_out[f"{reason} (--accept-duplicates)"] += count
            records = records.filter(~harmful)
    return records


def _goes_to(records: pl.DataFrame, sinks: set[str]) -> pl.Expr:
    return pl.col("way").is_in([way for way in records["way"].unique() if sinks & set(way.split(","))])


def _kind(steps: list[cfg.TransformConfig]) -> str:
    return " and ".join(dict.fromkeys(f"the step {step.kind}" for step in steps)) or "a step"


def _multiplies(step: cfg.TransformConfig) -> bool:
    """Whether a step may make several rows of one."""
    match step:
        case cfg.ExplodeConfig() | cfg.PythonConfig() | cfg.MapArrowConfig():
            return True
        case cfg.EnrichConfig():
            return step.enrich.on_duplicate == "all"
        case cfg.SqlConfig():
            return _SQL_THAT_MULTIPLIES.search(step.sql) is not None
    return False
