"""The results of the part `pipelines`: fleets of several sizes enter; a page, JSON, a picture and verdicts leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from growth import Curve, Point
from growth_report import draw_curves
from machine import machine_facts
from pipelines import RATE, FleetRun

GROWTH = 1.1
"""How much larger the memory may be in the last quarter than in the second."""


def write_pipelines(runs: Sequence[FleetRun], folder: Path) -> list[str]:
    """As JSON and as a page; the verdicts."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    body = {"taken_at": f"{datetime.now(UTC):%Y-%m-%d}", "machine": facts, "runs": [asdict(run) for run in runs]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    verdicts = [
        f"{run.pipelines} pipelines: memory at most {GROWTH} times the second quarter's: {run.growth:.2f} times: "
        + ("pass" if run.growth <= GROWTH else "falls short")
        for run in runs
    ]
    curves = _curves(runs)
    draw_curves(curves, folder / "curves.png")
    lines = [
        "# Many pipelines in one application",
        "",
        f"{body['taken_at']}; " + "; ".join(f"{name}: {value}" for name, value in facts.items()) + ".",
        "",
        f"Each pipeline: JSON to its own table, {RATE} events a second, `trigger: {{every: 1 second}}`. Medians of "
        "the last quarter.",
        "",
        "| pipelines | watched | driver | JVM | Python workers | growth | threads | open files | batch "
        "| 95 % of batches | cores | start of all |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, runs),
        "",
        *(f"- {verdict}" for verdict in verdicts),
        *(f"- {curve.part} grow with the pipelines with the exponent {curve.exponent:.2f}" for curve in curves),
        "",
        "![the curves](curves.png)",
        "",
    ]
    (folder / "results.md").write_text("\n".join(lines), encoding="utf-8")
    return verdicts


def _curves(runs: Sequence[FleetRun]) -> list[Curve]:
    """What one more pipeline costs."""

    def curve(part: str, cost: str, of: Callable[[FleetRun], float]) -> Curve:
        return Curve(part, "a fleet", "pipelines", cost, [Point(run.pipelines, of(run)) for run in runs])

    return [
        curve("megabytes", "MB, all processes", lambda run: run.quarter(3, lambda look: look.memory) / 1e6),
        curve("seconds of a batch", "seconds (median)", lambda run: run.batch_seconds),
        curve("cores", "cores kept busy", lambda run: run.cores),
    ]


def _row(run: FleetRun) -> str:
    driver, jvm, workers, count, threads, files = (
        run.quarter(3, part)
        for part in (
            lambda look: look.driver,
            lambda look: look.jvm,
            lambda look: look.workers,
            lambda look: look.worker_count,
            lambda look: look.threads,
            lambda look: look.files,
        )
    )
    return (
        f"| {run.pipelines} | {run.seconds:.0f} s | {driver / 1e6:,.0f} MB | {jvm / 1e6:,.0f} MB "
        f"| {workers / 1e6:,.0f} MB in {count:.0f} | {run.growth:.2f} | {threads:.0f} | {files:.0f} "
        f"| {run.batch_seconds:.2f} s | {run.late_batch_seconds:.2f} s | {run.cores:.2f} | {run.start_seconds:.0f} s |"
    )
