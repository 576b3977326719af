"""`penstock demo`: starts the stack, draws the progress, prints the summary."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from penstock.cli.render import out, table
from penstock.cli.run import run as run_command
from penstock.cli.signals import undisturbed
from penstock.devstack import DevStack
from penstock.engine.listener import BatchDone, Event, Notice, Started
from penstock.ops.demo import DemoSummary, fresh_folder, live_demo, run_demo
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java
from penstock.wording import counted


def demo(folder: Path, events: int, keep: bool, with_dashboard: bool = False) -> None:
    """Run the demo, and on with the dashboard if asked; the stack is ended afterwards unless it is kept."""
    began = time.monotonic()
    folder = fresh_folder(folder)
    stack = DevStack(folder / "dev", java=find_java().executable, classpath=broker_classpath(), brokers=1, port=None)
    with ExitStack() as cleanup:
        cleanup.push(partial(_end_stack, stack, keep))
        summary = _run(folder, events, stack)
        _show(summary, time.monotonic() - began, keep, with_dashboard)
        if with_dashboard:
            out.print("\n[bold]now live[/], with a burst every minute; Ctrl-C ends it")
            # An interrupt before its first batch is a good end too: the broker stays if it is to be kept.
            with live_demo(folder, events, stack) as file, suppress(typer.Exit):
                run_command([file], with_dashboard=True)


def _run(folder: Path, events: int, stack: DevStack) -> DemoSummary:
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=out.is_terminal,
    ) as bars:
        starting = bars.add_task("starting a Kafka broker", total=1)
        stack.stop()  # an earlier demo may have left its broker up, with its topic
        stack.start()
        bars.update(starting, completed=1)
        sending = bars.add_task("sending events", total=events)
        running = bars.add_task("starting Spark", total=events)

        def progress(_: str, done: int, total: int) -> None:
            bars.update(sending, completed=done, total=total)

        def listen(event: Event) -> None:
            match event:
                case Started():
                    bars.update(running, description=f"running the pipeline ({event.lane} lane)")
                case BatchDone(metrics):
                    bars.update(running, advance=metrics.rows_in)
                case Notice(text):
                    bars.console.print(escape(text))
                case _:
                    pass

        return run_demo(folder, events, stack, listen, progress)


def _end_stack(stack: DevStack, keep: bool, kind: type[BaseException] | None, *_: object) -> None:
    """End the broker, unless the demo came to its end and the broker is to be kept."""
    if kind is None and keep:
        return
    with undisturbed():
        stack.stop()


def _show(s: DemoSummary, seconds: float, keep: bool, with_dashboard: bool) -> None:
    rows = table("orders", "count", numbers=("count",))
    rows.add_row("sent", f"{s.sent:,}")
    rows.add_row("landed in the table", f"{s.landed:,}")
    rows.add_row("duplicates removed", f"{s.duplicates:,}")
    rows.add_row("filtered by `amount >= 0`", f"{s.filtered:,}")
    rows.add_row("quarantined", f"{sum(s.quarantined.values()):,}")
    for code, count in sorted(s.quarantined.items()):
        rows.add_row(f"  {code}", f"{count:,}")
    rows.add_row("lag", f"{s.lag:,}")
    out.print(rows)
    out.print(
        f"\n{s.sent:,} = {s.landed:,} + {s.duplicates:,} + {s.filtered:,} + {sum(s.quarantined.values()):,}: "
        "[bold green]it adds up, none lost, none twice[/]"
    )
    out.print(
        f"{counted(s.batches, 'batch', 'batches')}, {counted(s.files, 'file')} in the table, "
        f"{s.run_seconds:.1f} s for the run with Spark's start, {seconds:.1f} s in all\n"
    )
    out.print("[bold]three of the quarantined[/]")
    for sample in s.samples:
        value = "null" if sample["value"] is None else repr(sample["value"][:60])[1:]
        out.print(f"  {sample['topic']}[{sample['partition']}] offset {sample['offset']}  {sample['code']}")
        out.print(f"    {escape(sample['message'])}")
        out.print(f"    {escape(value)}", style="dim")
    if with_dashboard:
        return
    file = s.folder / "orders.yaml"
    out.print("\n[bold]try next[/]")
    out.print(
        f"  penstock demo --dashboard --dir {s.folder}    [dim]# the same, and on with more orders and a web page[/]"
    )
    out.print(f"  less {file}")
    out.print(f"  penstock validate {file}")
    if keep:
        out.print(f"  penstock plan {file}")
        out.print(f"  penstock run {file}")
        out.print(f"  penstock dev down --dir {s.folder / 'dev'}    [dim]# the broker is still up at {s.brokers}[/]")
    else:
        out.print(f"  penstock demo --keep --dir {s.folder}    [dim]# the same, and leave the broker up[/]")
