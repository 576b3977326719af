"""`penstock stop`: a running pipeline finishes its batch and stops, wherever it runs."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.status import Status

from penstock.cli.arguments import DryRun, Files, Json, duration
from penstock.cli.render import err, out, print_json, show_error
from penstock.errors import PenstockError, TransientError

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.stop import PlannedStop, StopResult

_QUIET_SECONDS = 2.0
_INTERRUPTED = 130


def stop(
    files: Files,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait.")] = "120s",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let a running pipeline finish its batch and stop, on any host.

    Exit 0 once it has stopped, or if it was not running; 75 if it still runs after the timeout: it then stops after its
    current batch. With several files, an invalid one is reported and sets the exit code; the others are asked to stop.
    """
    from penstock.config import load
    from penstock.config.files import pipeline_files
    from penstock.ops.stop import ask, plan_stop

    longest = duration(timeout, "--timeout")
    planned, wrong = [], []
    for file in pipeline_files(files):
        try:
            planned.append(plan_stop(load(file)))
        except PenstockError as error:
            wrong.append(error)
    if wrong and not planned:
        raise wrong[0]
    for one_wrong in wrong:
        show_error(one_wrong)
    if dry_run:
        for plan in planned:
            run = f"{plan.found.holder} would be asked to stop" if plan.found.running else "does not run"
            out.print(f"{escape(plan.pipeline)}: {escape(run)}")
        if wrong:
            raise typer.Exit(wrong[0].exit_code)
        return
    done = [ask(plan) for plan in planned]
    if wait:
        done = _await(planned, longest)
    if as_json:
        print_json([one.as_json() for one in done])
    for one in done:
        if one.outcome == "still running":
            show_error(_timed_out(one))
        elif not as_json:
            out.print(f"{escape(one.pipeline)}: {escape(_outcome(one))}")
    if any(one.outcome == "still running" for one in done):
        raise typer.Exit(TransientError.exit_code)
    if wrong:
        raise typer.Exit(wrong[0].exit_code)


def _await(planned: list[PlannedStop], timeout: timedelta) -> list[StopResult]:
    from penstock.ops.stop import wait_until_stopped

    began, progress = time.monotonic(), Status("", console=err)
    shown: dict[str, str] = {}
    drawn: AbstractContextManager[object] = progress if err.is_terminal else nullcontext()

    def report(pipeline: str, text: str) -> None:
        waited = time.monotonic() - began
        if waited < _QUIET_SECONDS:
            return
        if err.is_terminal:
            shown[pipeline] = f"{escape(pipeline)}: waiting {waited:.0f} s; {escape(text)}"
            progress.update("\n".join(shown.values()))
        elif pipeline not in shown:
            shown[pipeline] = text
            err.print(f"{escape(pipeline)}: waiting; {escape(text)}")

    try:
        with drawn:
            return wait_until_stopped(planned, timeout.total_seconds(), report)
    except KeyboardInterrupt:
        err.print("no longer waiting; the request remains: each run stops after its current batch")
        raise typer.Exit(_INTERRUPTED) from None


def _outcome(one: StopResult) -> str:
    match one.outcome:
        case "not running":
            return "does not run"
        case "asked":
            return f"{one.run} is asked to stop; it finishes its batch first"
        case "killed":
            return f"{one.run} was killed before it could stop; the next run repairs what it left"
        case "silent":
            return f"{one.run} sends no heartbeat: killed, or disconnected from the checkpoint"
        case "failed":
            return f"{one.run} ended with an error: {one.error}"
    return f"stopped after {one.seconds:.1f} s ({one.run})"


def _timed_out(one: StopResult) -> TransientError:
    return TransientError(
        "STOP_TIMED_OUT",
        f"stopping {one.pipeline}: still running after {one.seconds:.0f} s",
        context={"run": one.run, "doing": one.doing},
        hint="the request remains: it stops after its current batch\ncheck again: penstock status FILE",
    )
