"""A simulated run in words: what was assumed, and what came out of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.config import PipelineConfig, show_duration
from penstock.ops.simulate import Measured, SimulationReport, SimulationRequest, fixed_cap, whole_partitions
from penstock.wording import spell

_BEYOND = 10
_CHANGES = 8


def assumptions(
    config: PipelineConfig, asked: SimulationRequest, measured: Measured | None, given: frozenset[str]
) -> list[str]:
    """One line each: the cost and its origin, the load, the cores, and assumptions."""
    return [
        *_cost(asked, measured, given),
        _load(asked),
        *_parallel(config, asked, measured),
        _batches(config),
    ]


def _cost(asked: SimulationRequest, measured: Measured | None, given: frozenset[str]) -> Iterator[str]:
    cost = asked.cost
    micros, per_core = cost.per_offset * 1e6, 1 / cost.per_offset if cost.per_offset else math.inf
    each = f"{micros:.1f} microseconds of CPU time per row, {per_core:,.0f} rows per second"
    yield f"cost: {cost.fixed:.2f} s per batch, and {each}"
    if measured is None or {"row", "fixed"} <= given:
        guess = "" if "fixed" in given else ", and without --fixed-cost: 0.5 s is a guess"
        yield f"  set by options, not measured{guess}"
        return
    batches = f"{measured.batches} batch" + ("es" if measured.batches != 1 else "")
    cores = f"{measured.cores} core" + ("s" if measured.cores != 1 else "")
    at = f"{measured.first:%Y-%m-%d %H:%M} to {measured.last:%Y-%m-%d %H:%M} UTC"
    yield f"  measured on {batches} of this pipeline, on {cores}, {at}; the largest had {measured.largest:,} offsets"
    for name, word in (("row", "for a row"), ("fixed", "for a batch")):
        if name in given:
            yield f"  the cost {word} is set by the option"
    if not measured.apart and not given:
        yield "  these do not show the fixed part: all of it is counted for the rows; batches of different sizes would"


def _load(asked: SimulationRequest) -> str:
    bursts = "".join(
        f", {one.rate:,.0f} per second for {spell(one.seconds)} from {spell(one.start)}" for one in asked.bursts
    )
    waits = f", {asked.backlog:,.0f} waiting at the start" if asked.backlog else ""
    return f"load: {asked.rate:,.0f} records per second{bursts}{waits}; for {spell(asked.seconds)}"


def _parallel(config: PipelineConfig, asked: SimulationRequest, measured: Measured | None) -> Iterator[str]:
    yield f"cores: {asked.cores}; they share the rows evenly; twice as many halve the row part of a batch's time"
    yield "  the fixed part does not change; brokers, network and sinks are assumed to keep up with that many cores"
    if (why := whole_partitions(config)) is None:
        split = "large ones are split among tasks, so few or hot ones slow nothing down"
        yield f"partitions: {asked.partitions}; {split}"
    else:
        yield f"partitions: {asked.partitions}; more cores than that stay idle: {why}"
        if why.startswith("sink "):
            yield "  the slots of that sink are fixed: raise `slots` to the number of cores"
        share = asked.hot or 1 / asked.partitions
        yield f"  the hottest has {share:.1%} of the records" + ("" if asked.hot else ", like all others")
    if measured is not None and asked.cores > _BEYOND * measured.cores:
        times = f"{asked.cores / measured.cores:,.0f} times"
        yield f"  {times} the cores of the measurement: the results are only an order of magnitude"


def _batches(config: PipelineConfig) -> str:
    every = f", at most one every {show_duration(config.trigger.every)}" if config.trigger.every else ""
    if (cap := fixed_cap(config)) is not None:
        return f"batches: at most {cap:,} offsets, by max_offsets of the source{every}"
    target, most = show_duration(config.flow.target_batch), show_duration(config.flow.max_batch)
    return f"batches: flow control, with no history at first; target_batch {target}, max_batch {most}{every}"


def decisions(report: SimulationReport) -> list[str]:
    """The first changes of the cap, each with its reason, where flow control made them."""
    changes = report.run.changes
    more = [f"and {len(changes) - _CHANGES} more changes: --json shows all"] if len(changes) > _CHANGES else []
    return [f"{spell(one.start)}, {one.decision.reason}: {one.decision.text}" for one in changes[:_CHANGES]] + more


def findings(report: SimulationReport, measured: Measured | None = None) -> list[str]:
    """What came out, as lines."""
    return [*_outcome(report), *_needs(report), *_doubts(report, measured)]


def _doubts(report: SimulationReport, measured: Measured | None) -> Iterator[str]:
    largest = max((step.batch.offsets for step in report.run.steps), default=0) / report.asked.cores
    if measured is not None and largest > _BEYOND * measured.largest / measured.cores:
        yield (
            f"note: a core has up to {largest:,.0f} offsets of a batch here, and no more than "
            f"{measured.largest / measured.cores:,.0f} where it was measured; measure with a larger backlog for a "
            f"better estimate"
        )


def _outcome(report: SimulationReport) -> Iterator[str]:
    asked, run = report.asked, report.run
    cores = "1 core handles" if asked.cores == 1 else f"{asked.cores} cores handle"
    capacity = f"{cores} {report.capacity:,.0f} records per second"
    if asked.rate < report.capacity:
        yield f"{capacity}; the load is {asked.rate:,.0f}: {asked.rate / report.capacity:.0%} of that"
    else:
        yield f"{capacity}; the load is {asked.rate:,.0f}: the lag grows without limit"
    waits, when = report.peak
    yield f"at most {waits:,.0f} waited, at {spell(when)}; at the end {run.backlog(asked.seconds):,.0f}"
    if run.steps:
        largest = max(run.steps, key=lambda step: step.batch.offsets).batch
        size = f"{largest.offsets:,} offsets and took {spell(largest.seconds)}"
        yield f"{len(run.steps):,} batches; the largest had {size}, the longest took {spell(run.longest)}"
    after = "after the burst" if len(asked.bursts) == 1 else "after the last burst" if asked.bursts else ""
    if report.caught_up is not None:
        yield f"caught up {spell(report.caught_up)} {after or 'after the start'}: a batch then read the whole backlog"
    elif asked.rate >= report.capacity:
        yield "it never catches up"
    else:
        left = run.backlog(asked.seconds) / (report.capacity - asked.rate)
        yield f"not caught up in this time; about {spell(left)} more needed"


def _needs(report: SimulationReport) -> Iterator[str]:
    asked = report.asked
    for cores, aim in (
        (report.cores_to_hold, f"to sustain {asked.rate:,.0f} per second"),
        (report.cores_to_catch_up, f"to catch up within {spell(asked.within)}"),
    ):
        if cores is not None:
            yield f"cores {aim}: {cores:,}"
        elif report.useful_cores is not None:
            yield (
                f"cores {aim}: no number is enough, {asked.partitions} partitions handle at most {report.most:,.0f} "
                f"per "
                f"second; {'spread the hot one, or ' if asked.hot else ''}more partitions are needed"
            )
        else:
            bounds = "source.max_offsets, flow or trigger keep batches too small"
            yield f"cores {aim}: no number is enough, {bounds}"
