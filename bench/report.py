"""The results as text: `results.md` for the figures, `profile.md` for where the time goes."""

from __future__ import annotations

from backlog import Drain
from format_report import formats_profile, formats_text
from jobs import DIRECT, FRAME, HAND_WRITTEN
from sink_report import sinks_profile, sinks_text
from summary import Results, jobs_of, median_of, ratio_of, targets, typical
from transform_report import transforms_profile, transforms_text

from tables import share, table

_DRIVER = ("offsets", "stage", "commit")


def results_text(results: Results) -> str:
    """`results.md`."""
    parts = ["# Bench", _occasion(results)]
    found = targets(results)
    rows = [(t.what, t.wanted, t.found, t.verdict) for t in found]
    parts += ["## Targets", table(("", "wanted", "measured", ""), rows)]
    if results.drains:
        parts += ["## Draining a backlog", _backlog(results), "![rows a second](backlog.png)"]
    if results.watches:
        parts += ["## Caught up", _caught_up(results), "![freshness](caught_up.png)"]
    if results.sinks:
        parts += sinks_text(results.sinks)
    if results.formats:
        parts += formats_text(results.formats)
    if results.transforms:
        parts += transforms_text(results.transforms)
    parts += ["## Machine", table(("", ""), results.machine.items())]
    return "\n\n".join(parts) + "\n"


def profile_text(results: Results) -> str:
    """`profile.md`."""
    parts = ["# Where the time goes", _occasion(results)]
    for job in (DIRECT, FRAME) if results.drains else ():
        parts += _penstock_profile(typical(results.drains, job), results.validate_seconds)
    if results.drains:
        parts += _hand_written_profile(typical(results.drains, HAND_WRITTEN))
    for watch in results.watches:
        if watch.repetition == 0:
            steps = sorted(watch.phases.items(), key=lambda step: -step[1])
            parts += [
                f"## {watch.job}, caught up",
                f"A batch, p50 {watch.batch_quantiles[50]:.2f} s of {watch.interval_quantiles[50]:.2f} s "
                "from commit to commit; the median of each step:",
                table(("step", "seconds"), [(name, f"{took:.3f}") for name, took in steps]),
            ]
    parts += sinks_profile(results.sinks) + formats_profile(results.formats) + transforms_profile(results.transforms)
    return "\n\n".join(parts) + "\n"


def _occasion(results: Results) -> str:
    said = ", ".join(f"{name} {value}" for name, value in results.settings.items())
    return f"Written by `make bench` on {results.taken_at}: {said}."


def _backlog(results: Results) -> str:
    drains = results.drains
    header = (
        *("job", "rows/s in all", "times", "rows/s steady", "times"),
        *("steady, by the checkpoint", "times", "start-up and end", "each run in all"),
    )
    rows = []
    for job in jobs_of(drains):
        each = ", ".join(f"{d.seconds:.1f} s" for d in drains if d.job == job)
        rows.append(
            (
                job,
                f"{median_of(drains, job, lambda d: d.rate):,.0f}",
                f"{ratio_of(drains, job, lambda d: d.rate):.2f}",
                f"{median_of(drains, job, lambda d: d.steady_rate):,.0f}",
                f"{ratio_of(drains, job, lambda d: d.steady_rate):.2f}",
                f"{median_of(drains, job, lambda d: d.rows / d.checkpoint_seconds):,.0f}",
                f"{ratio_of(drains, job, lambda d: d.rows / d.checkpoint_seconds):.2f}",
                f"{median_of(drains, job, lambda d: d.seconds - d.steady_seconds):.1f} s",
                each,
            )
        )
    return table(header, rows)


def _caught_up(results: Results) -> str:
    watches = results.watches
    header = (
        *("job", "batch p50", "batch p99", "commit to commit p50", "p99", "times"),
        *("event to table p50", "p99", "times", "batches"),
    )
    rows = []
    for job in jobs_of(watches):
        rows.append(
            (
                job,
                f"{median_of(watches, job, lambda w: w.batch_quantiles[50]):.2f} s",
                f"{median_of(watches, job, lambda w: w.batch_quantiles[99]):.2f} s",
                f"{median_of(watches, job, lambda w: w.interval_quantiles[50]):.2f} s",
                f"{median_of(watches, job, lambda w: w.interval_quantiles[99]):.2f} s",
                f"1/{1 / ratio_of(watches, job, lambda w: w.interval_quantiles[50]):.1f}",
                f"{median_of(watches, job, lambda w: w.freshness_quantiles[50]):.2f} s",
                f"{median_of(watches, job, lambda w: w.freshness_quantiles[99]):.2f} s",
                f"1/{1 / ratio_of(watches, job, lambda w: w.freshness_quantiles[50]):.1f}",
                ", ".join(str(w.batches) for w in watches if w.job == job),
            )
        )
    return table(header, rows)


def _penstock_profile(drain: Drain, validate_seconds: float) -> list[str]:
    until_query = drain.until_query or 0.0
    on_driver = sum(drain.phases.get(name, 0.0) for name in _DRIVER)
    steps = [
        ("start: imports and the file (a `validate` by itself)", validate_seconds),
        ("start: checks, Spark's session, the query", until_query - validate_seconds),
        ("start: from the query to its first batch", drain.until_batch - until_query),
        *((f"batch: {name}", drain.phases.get(name, 0.0)) for name in _DRIVER),
        ("batch: the rest on the driver, and between batches", drain.steady_seconds - on_driver),
        ("end: from the last batch to the end of the process", drain.after_batch),
    ]
    inside = sorted((item for item in drain.phases.items() if item[0].startswith("task_")), key=lambda i: -i[1])
    all_slots = drain.phases.get("stage", 0.0) * drain.slots
    rest = all_slots - sum(took for _, took in inside)
    tasks = [(name.removeprefix("task_"), f"{took:.2f}", share(took, all_slots)) for name, took in inside]
    if rest > 0:
        tasks.append(
            ("Spark's scheduling, workers starting, waiting for the slowest", f"{rest:.2f}", share(rest, all_slots))
        )
    return [
        f"## {drain.job}, backlog",
        f"The run in the middle: {drain.rows:,} rows, {drain.seconds:.2f} s in all.",
        table(("step", "seconds", "share"), [(s, f"{t:.2f}", share(t, drain.seconds)) for s, t in steps]),
        f"Inside `batch: stage`, summed over its {drain.slots} slots, which run side by side:",
        table(("in the tasks", "seconds", "share"), tasks),
    ]


def _hand_written_profile(drain: Drain) -> list[str]:
    steps = [
        ("start: until the first trigger", drain.until_batch),
        *((f"batch: {name}", took) for name, took in drain.phases.items()),
        ("end: from the last batch to the end of the process", drain.after_batch),
    ]
    return [
        f"## {drain.job}, backlog",
        f"The run in the middle: {drain.rows:,} rows, {drain.seconds:.2f} s in all. The steps are Spark's own.",
        table(("step", "seconds", "share"), [(s, f"{t:.2f}", share(t, drain.seconds)) for s, t in steps]),
    ]
