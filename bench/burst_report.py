"""The results of the part `burst` as JSON, as a page and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from burst import ADAPTIVE, BACK_TO_NORMAL, BEST, HIGH, LOW, BurstRun, Setting
from burst_events import TIMES
from machine import machine_facts
from overhead import SCRAPE_SECONDS, Overhead, overhead_json

from tables import table

CATCH_UP, MEMORY, SHARE = 1.1, 1.1, 0.01
"""At most so many times the time to catch up and the memory of the best fixed cap; at most this share of a batch."""
_COLORS = {ADAPTIVE: "#0b6e99", BEST: "#2e8b57", HIGH: "#c0392b", LOW: "#8a8f98"}
_MEBIBYTE = 2**20


def write_burst(runs: Sequence[BurstRun], overhead: Overhead, setting: Setting, folder: Path) -> list[str]:
    """Write them all. The verdicts, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {
        "taken_at": taken,
        "machine": machine,
        "setting": asdict(setting),
        "runs": [_run_json(run) for run in runs],
        "overhead": overhead_json(overhead),
    }
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    wanted = verdicts(runs, overhead, setting)
    parts = [
        "# Bench: burst",
        f"Written by `bench/run.py --only burst` on {taken}.",
        *_burst_text(runs, setting),
        *_overhead_text(overhead),
        "## Wanted",
        table(("", "wanted", "found", ""), wanted),
        "## Machine",
        table(("", ""), list(machine.items())),
    ]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    draw_burst(runs, setting, folder / "burst.png")
    return [f"{verdict:11}  {what}: {found}, wanted {wish}" for what, wish, found, verdict in wanted]


def verdicts(runs: Sequence[BurstRun], overhead: Overhead, setting: Setting) -> list[tuple[str, str, str, str]]:
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
            "adaptive, memory against the best fixed cap",
            f"at most {MEMORY} times",
            f"{memory:.2f} times",
            _verdict(memory <= MEMORY),
        ),
        (
            "history and metrics",
            f"under {SHARE:.0%} of a batch",
            f"{overhead.share:.2%}",
            _verdict(overhead.share < SHARE),
        ),
    ]


def draw_burst(runs: Sequence[BurstRun], setting: Setting, file: Path) -> None:
    """What waits and how long the batches are, over time, a curve for each variant."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6.4), sharex=True, layout="constrained")
    for run in runs:
        label = run.variant if run.cap is None else f"{run.variant} ({run.cap:,})"
        color, width = _COLORS[run.variant], 2.0 if run.variant == ADAPTIVE else 1.2
        starts = [one.started_at - run.burst_began for one in run.moments]
        above.plot(starts, [one.waiting for one in run.moments], label=label, color=color, linewidth=width)
        ends = [one.finished_at - run.burst_began for one in run.moments]
        below.plot(ends, [one.seconds for one in run.moments], ".-", color=color, linewidth=width, markersize=4)
    for axes in (above, below):
        axes.axvspan(0, setting.burst_seconds, color="black", alpha=0.06, linewidth=0)
        axes.spines[["top", "right"]].set_visible(False)
    below.axhline(setting.max_batch, color="black", linewidth=0.8, linestyle=":")
    below.annotate("max_batch", (1, setting.max_batch), ("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    above.set_ylabel("events that wait")
    above.yaxis.set_major_formatter("{x:,.0f}")
    above.legend(frameon=False, fontsize=9)
    below.set_ylabel("seconds of a batch")
    below.set_xlabel("seconds from the beginning of the burst")
    rate = f"{TIMES} times the normal rate for {setting.burst_seconds:g} s, onto a slow sink"
    figure.suptitle(rate, fontsize=10)
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _burst_text(runs: Sequence[BurstRun], setting: Setting) -> list[str]:
    columns = ("", "cap", "caught up in", "longest batch", "batches", "most waiting", "memory before", "at its peak")
    rows = [
        (
            run.variant,
            f"{run.cap:,}" if run.cap is not None else _caps(run),
            f"{run.catch_up_seconds:.1f} s"
            if run.catch_up_seconds is not None
            else f"not in {setting.patience_seconds:g} s",
            f"{run.longest_batch:.1f} s",
            str(len(run.moments)),
            f"{run.most_waiting:,}",
            f"{run.memory_before / _MEBIBYTE:,.0f} MiB",
            f"{run.memory_peak / _MEBIBYTE:,.0f} MiB",
        )
        for run in runs
    ]
    load = (
        f"{setting.rate:,} events a second, then {TIMES * setting.rate:,} for {setting.burst_seconds:g} s, then "
        f"{setting.rate:,} again. The commit of the sink, an upsert into PostgreSQL, takes {setting.fixed_seconds:g} s "
        f"and a second for {setting.rows_a_second:,} rows more than it would. "
        f"`flow: {{target_batch: {setting.target_batch:g} seconds, max_batch: {setting.max_batch:g} seconds}}`."
    )
    caught = (
        f"*Caught up*: from the end of the burst until a batch starts that finds at most {BACK_TO_NORMAL:g} times what "
        "batches found before it, by the run's own log. *Memory*: what the driver, its JVM and the workers hold, "
        "looked at twice a second. Every table held each event once."
    )
    decided = next((run for run in runs if run.variant == ADAPTIVE and run.decisions), None)
    return [
        "## The burst",
        load,
        table(columns, rows),
        caught,
        "![what waits and how long batches are, over time](burst.png)",
        *(_decisions_text(decided) if decided is not None else []),
    ]


def _caps(run: BurstRun) -> str:
    caps = [one.cap for one in run.moments if one.cap is not None]
    return f"{min(caps):,} to {max(caps):,}" if caps else ""


def _decisions_text(run: BurstRun) -> list[str]:
    rows = [(f"{one.at - run.burst_began:.0f} s", f"{one.cap:,}", one.reason, one.text) for one in run.decisions]
    return ["The decisions of flow control, from the beginning of the burst:", table(("", "cap", "reason", ""), rows)]


def _overhead_text(found: Overhead) -> list[str]:
    each, count = found.batch_seconds / found.batches, found.batches
    waited = [(part, f"{took / count * 1000:.2f} ms", f"{took / found.batch_seconds:.2%}") for part, took in
              sorted(found.in_batch.items())]  # fmt: skip
    beside = [(f"{part} (thread)", f"{took / count * 1000:.2f} ms", f"{took / found.batch_seconds:.2%}")
              for part, took in sorted(found.beside.items())]  # fmt: skip
    how = (
        f"A caught-up stream into a Delta table, {found.rate:,} events a second in {found.partitions} partitions, "
        f"{count} batches of {each:.2f} s, the metrics endpoint asked every {SCRAPE_SECONDS:g} s. "
        "Measured in the run itself with clocks around the calls that a batch waits for (on the driver; each task also "
        "looks once at the memory), and by the processor time of the threads beside it, those of their Kafka clients "
        "too, as though each cycle had been taken from a batch."
    )
    total = ("in all", f"{found.share * each * 1000:.2f} ms", f"{found.share:.2%}")
    return ["## History and metrics", how, table(("", "a batch", "share"), [*waited, *beside, total])]


def _run_json(run: BurstRun) -> dict[str, Any]:
    """Times from the beginning of the burst on."""
    since = run.burst_began
    return {
        "variant": run.variant,
        "cap": run.cap,
        "sent": run.sent,
        "burst_seconds": round(run.burst_ended - since, 2),
        "normal_waiting": run.normal_waiting,
        "catch_up_seconds": round(run.catch_up_seconds, 2) if run.catch_up_seconds is not None else None,
        "longest_batch": run.longest_batch,
        "most_waiting": run.most_waiting,
        "memory_before_bytes": run.memory_before,
        "memory_peak_bytes": run.memory_peak,
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
