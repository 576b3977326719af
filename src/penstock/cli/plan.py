"""`penstock plan`: what a run would do, top to bottom, and what would stop it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from penstock.cli.arguments import File, Json, Master
from penstock.cli.render import answer, more, number, out, show_error, show_note, table
from penstock.errors import MissingError
from penstock.preflight.options import RunOptions
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.acls import RightsNeeded
    from penstock.ops.plan import PlannedFlow, PlannedStep, RunPlan

_PARTITIONS_SHOWN = 12


def plan(
    file: File,
    as_json: Json = False,
    resume_from_table: Annotated[bool, typer.Option(help="Plan a run with this option.")] = False,
    accept_duplicates: Annotated[bool, typer.Option(help="Plan a run with this option.")] = False,
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Plan a run with this option.")] = False,
    master: Master = None,
    deploy_mode: Annotated[
        Literal["client", "cluster"], typer.Option(help="Plan a submission with this option.")
    ] = "client",
    acls: Annotated[
        bool, typer.Option("--acls", help="Only print the ACLs that the pipeline needs on its brokers; no network.")
    ] = False,
) -> None:
    """Check a pipeline against brokers, tables and checkpoint; show what a run would do, and in which lane."""
    from penstock.config import load
    from penstock.ops.acls import plan_rights
    from penstock.ops.plan import plan_run

    config = load(file).on_master(master)
    if acls:
        answer(plan_rights(config), _show_rights, as_json)
        return
    options = RunOptions(resume_from_table=resume_from_table, accept_duplicates=accept_duplicates, catch_up=catch_up)
    planned = plan_run(config, options, deploy_mode)
    answer(planned, _show_plan, as_json)
    if planned.problems:
        raise typer.Exit(MissingError.exit_code)


def _show_plan(plan: RunPlan) -> None:
    out.print(f"[bold]{escape(plan.pipeline)}[/]  takes the [bold]{plan.lane}[/] lane: {escape(plan.lane_reason)}")
    out.print(f"  source      {escape(plan.source)}")
    if plan.partitions:
        parts = counted(len(plan.partitions), "partition")
        out.print(f"              {parts}, {counted(plan.waiting, 'offset')} waiting")
    if plan.start is not None:
        out.print(f"  start       {escape(plan.start)}")
    _show_partitions(plan)
    for flow in plan.flows:
        _show_flow(flow)
    for sink in plan.sinks:
        out.print(f"  sink        [bold]{escape(sink.name)}[/]  {escape(sink.target)}")
        out.print(f"              {sink.guarantee}; {escape(sink.takes)}; {escape(sink.holds)}")
    out.print(f"  checkpoint  {escape(plan.checkpoint)}")
    for bucket in plan.buckets:
        out.print(f"  store       {escape(bucket)}  conditional writes: yes")
    if plan.master is not None:
        out.print(f"  cluster     {escape(plan.master)}")
    out.print(f"  trigger     {escape(plan.trigger)}")
    out.print(f"  flow        {escape(plan.flow)}")
    out.print(f"  group       {escape(plan.group) if plan.group else 'none: offsets are not committed to Kafka'}")
    for alert in plan.alerts:
        out.print(f"  alert       {escape(alert)}")
    for notice in plan.notices:
        show_note(notice, out)
    for problem in plan.problems:
        show_error(problem)
    if not plan.problems:
        out.print("[green]no problems; a run would start[/]")


def _show_flow(flow: PlannedFlow) -> None:
    if flow.name:
        topics = ", ".join(flow.topics) if flow.topics else "every topic"
        out.print(f"  [bold]{escape(flow.name)}[/]   {escape(topics)} to {escape(', '.join(flow.sinks))}")
        out.print(f"              {flow.lane} lane: {escape(flow.lane_reason)}")
    for one in flow.inputs:
        out.print(f"  [bold]{escape(one.name)}[/]   {escape(', '.join(one.topics))}")
        out.print(f"  decode      {escape(', '.join(one.columns))}")
        _show_steps(one.steps)
    if not flow.inputs:
        out.print(f"  decode      {escape(', '.join(flow.columns))}")
    if flow.schema is not None:
        out.print(f"              [dim]by {escape(flow.schema)}[/]")
    _show_steps(flow.steps)


def _show_steps(steps: Sequence[PlannedStep]) -> None:
    for step in steps:
        out.print(f"  transform   {escape(step.text)}  [dim]{escape(step.place)}, {step.lane} lane[/]")
        if step.state is not None:
            out.print(f"              [yellow]{escape(step.state)}[/]")
        known = ", ".join(step.columns) if step.columns is not None else "columns known after Spark has parsed it"
        out.print(f"              [dim]-> {escape(known)}[/]")


def _show_partitions(plan: RunPlan) -> None:
    if not plan.partitions:
        return
    numbers = ("log start", "log end", "from", "waiting")
    rows = table("    partition", *numbers, numbers=numbers)
    for p in plan.partitions[:_PARTITIONS_SHOWN]:
        cells = [number(value, "?") for value in (p.log_start, p.log_end, p.start, p.waiting)]
        rows.add_row(f"    {p.topic}[{p.partition}]", *cells)
    out.print(rows)
    more(len(plan.partitions) - _PARTITIONS_SHOWN)


def _show_rights(needed: RightsNeeded) -> None:
    rows = [("operation", "resource", "name", "pattern", "why")]
    rows += [(one.operation, one.resource, one.name, one.pattern, one.reason) for one in needed.rights]
    # Names are there to be copied: no line is broken, however narrow the terminal is.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)).rstrip())
    typer.echo()
    for command in needed.commands:
        typer.echo(command)
