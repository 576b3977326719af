"""The results of the part `burst`: runs enter; JSON, a page, a picture and the verdicts leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from burst_chart import draw_burst
from burst_events import TIMES
from burst_run import ADAPTIVE, BEST, BurstRun, Setting
from machine import machine_facts

from tables import table

CATCH_UP, MEMORY = 1.1, 1.1
"""At most so many times the time to catch up and the memory."""
_MEMORY = ("memory before", "in the burst", "after it")
_MEBIBYTE = 2**20


def write_burst(runs: Sequence[BurstRun], setting: Setting, folder: Path) -> list[str]:
    """Write them all. The verdicts, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {
        "taken_at": taken,
        "machine": machine,
        "setting": asdict(setting),
        "runs": [_run_json(run) for run in runs],
    }
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    wanted = verdicts(runs, setting)
    parts = [
        "# Bench: burst",
        f"Written by `bench/run.py --only burst` on {taken}.",
        *_burst_text(runs, setting),
        "## Wanted",
        table(("", "wanted", "found", ""), wanted),
        "## Machine",
        table(("", ""), list(machine.items())),
    ]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    draw_burst(runs, setting, folder / "burst.png")
    return [f"{verdict:11}  {what}: {found}, wanted {wish}" for what, wish, found, verdict in wanted]


def verdicts(runs: Sequence[BurstRun], setting: Setting) -> list[tuple[str, str, str, str]]:
    """What was wanted, what was found, and whether that will do."""
    named = {run.variant: run for run in runs}
    adaptive, best = named[ADAPTIVE], named[BEST]
    memory = adaptive.memory_peak / best.memory_peak
    took, hand = adaptive.catch_up_seconds, best.catch_up_seconds
    ratio = took / hand if took is not None and hand is not None else None
    return [
        (
            "adaptive, time to catch up against the best fixed cap",
            f"at most {CATCH_UP} times",
            f"{ratio:.2f} times" if ratio is not None else "it did not catch up",
            _verdict(ratio is not None and ratio <= CATCH_UP),
        ),
        (
            "adaptive, the longest batch",
            f"at most `max_batch`, {setting.max_batch:g} s",
            f"{adaptive.longest_batch:.1f} s",
            _verdict(adaptive.longest_batch <= setting.max_batch),
        ),
        (
            "adaptive, the most memory while catching up against the most during the burst",
            f"at most {MEMORY} times",
            f"{adaptive.memory_growth:.2f} times",
            _verdict(adaptive.memory_growth <= MEMORY),
        ),
        (
            "adaptive, the most memory against the best fixed cap",
            f"at most {MEMORY} times",
            f"{memory:.2f} times",
            _verdict(memory <= MEMORY),
        ),
    ]


def _burst_text(runs: Sequence[BurstRun], setting: Setting) -> list[str]:
    columns = ("", "cap", "caught up in", "longest batch", "batches", "most waiting", *_MEMORY)
    rows = [
        (
            run.variant,
            f"{run.cap:,}" if run.cap is not None else _caps(run),
            _caught_up(run, setting),
            f"{run.longest_batch:.1f} s",
            str(len(run.moments)),
            f"{run.most_waiting:,}",
            *(f"{held / _MEBIBYTE:,.0f} MiB" for held in (run.memory_before, run.memory_burst, run.memory_after)),
        )
        for run in runs
    ]
    load = (
        f"{setting.rate:,} events a second, then {TIMES * setting.rate:,} for {setting.burst_seconds:g} s, then "
        f"{setting.rate:,} again: the same events for every variant, one variant after the other. The commit of the "
        f"sink, an upsert into PostgreSQL, sleeps {setting.fixed_seconds:g} s and a second for each "
        f"{setting.rows_a_second:,} rows. "
        f"`flow: {{target_batch: {setting.target_batch:g} seconds, max_batch: {setting.max_batch:g} seconds}}`. "
        "Adaptive flow starts without a history. The *best fixed cap* is the one that caught up first, of those tried "
        "here that had no batch over `max_batch`; four times too high and too low is against that."
    )
    caught = (
        f"*Caught up*: from the end of the burst until a batch starts that finds at most {setting.calm:,} events, by "
        "the run's own log. *Longest batch*: of all batches, from when Spark hands it over to its commit. *Memory*: "
        "the most that the driver, its JVM and the workers held before the burst, during it, and from then on, looked "
        "at twice a second. Every table held each event once."
    )
    decided = next((run for run in runs if run.variant == ADAPTIVE and run.decisions), None)
    return [
        "## The burst",
        load,
        table(columns, rows),
        caught,
        "![what waits, how long batches are and the memory, over time](burst.png)",
        *(_decisions_text(decided) if decided is not None else []),
    ]


def _caught_up(run: BurstRun, setting: Setting) -> str:
    took = run.catch_up_seconds
    return f"{took:.1f} s" if took is not None else f"not in {setting.patience_seconds:g} s"


def _caps(run: BurstRun) -> str:
    caps = [one.cap for one in run.moments if one.cap is not None]
    return f"{min(caps):,} to {max(caps):,}" if caps else ""


def _decisions_text(run: BurstRun) -> list[str]:
    rows = [(f"{one.at - run.burst_began:.0f} s", f"{one.cap:,}", one.reason, one.text) for one in run.decisions]
    return ["The decisions of flow control, from the beginning of the burst:", table(("", "cap", "reason", ""), rows)]


def _run_json(run: BurstRun) -> dict[str, Any]:
    """Times from the beginning of the burst on."""
    since = run.burst_began
    return {
        "variant": run.variant,
        "cap": run.cap,
        "sent": run.sent,
        "burst_seconds": round(run.burst_ended - since, 2),
        "catch_up_seconds": round(run.catch_up_seconds, 2) if run.catch_up_seconds is not None else None,
        "longest_batch": run.longest_batch,
        "most_waiting": run.most_waiting,
        "memory_before_bytes": run.memory_before,
        "memory_burst_bytes": run.memory_burst,
        "memory_after_bytes": run.memory_after,
        "batches": [
            {
                "started": round(one.started_at - since, 2),
                "seconds": one.seconds,
                "offsets": one.offsets,
                "waiting": one.waiting,
                "cap": one.cap,
            }
            for one in run.moments
        ],
        "decisions": [{**asdict(one), "at": round(one.at - since, 2)} for one in run.decisions],
        "memory": [(round(at - since, 1), held // _MEBIBYTE) for at, held in run.memory[::4]],
    }


def _verdict(good: bool) -> str:
    return "pass" if good else "falls short"
