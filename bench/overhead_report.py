"""The results of the part `overhead`: watches enter; JSON, a page and the verdict leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from machine import machine_facts
from overhead import SCRAPE_SECONDS, Overhead, overhead_json

from tables import table

SHARE = 0.01
"""What a run may spend on showing itself: under this share of a batch."""


def write_overhead(watches: Sequence[Overhead], folder: Path) -> str:
    """Write them all. The verdict, in a line: that of the watch in the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {"taken_at": taken, "machine": machine, "watches": [overhead_json(watch) for watch in watches]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    middle = sorted(watches, key=lambda watch: watch.share)[len(watches) // 2]
    all_shares = ", ".join(f"{watch.share:.2%}" for watch in watches)
    parts = [
        "# Bench: overhead",
        f"Written by `bench/run.py --only overhead` on {taken}.",
        *_text(middle),
        f"Of {len(watches)} watches, {all_shares}, this is the one in the middle. Wanted: under {SHARE:.0%}.",
        "## Machine",
        table(("", ""), list(machine.items())),
    ]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    verdict = "pass" if middle.share < SHARE else "falls short"
    return f"{verdict:11}  history and metrics: {middle.share:.2%} ({all_shares}), wanted under {SHARE:.0%} of a batch"


def _text(found: Overhead) -> list[str]:
    each, count = found.batch_seconds / found.batches, found.batches
    waited = [(part, f"{took / count * 1000:.2f} ms", f"{took / found.batch_seconds:.2%}") for part, took in
              sorted(found.in_batch.items())]  # fmt: skip
    beside = [(f"{part} (thread)", f"{took / count * 1000:.2f} ms", f"{took / found.batch_seconds:.2%}")
              for part, took in sorted(found.beside.items())]  # fmt: skip
    how = (
        f"A caught-up stream into a Delta table, {found.rate:,} events a second in {found.partitions} partitions, "
        f"{count} batches of {each:.2f} s on average, the metrics endpoint asked every {SCRAPE_SECONDS:g} s. "
        "In one run, two sums over the same batches: the wall time of the calls that a batch waits for on the driver "
        "(the history's line, the figures, the hand-over to the consumer group, the looks at memory and garbage), and "
        "the processor time of all threads that show the run to others, their Kafka clients among them, as though each "
        "cycle of theirs had been taken from a batch. The share is both over the batches' own wall time. Not in it: "
        "the one look of each task at the memory, and the file that `status` reads "
        f"({found.presence / count * 1000:.2f} ms a batch)."
    )
    total = ("in all", f"{found.share * each * 1000:.2f} ms", f"{found.share:.2%}")
    return ["## History and metrics", how, table(("", "a batch", "share"), [*waited, *beside, total])]
