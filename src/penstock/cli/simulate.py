"""`penstock simulate`: a pipeline on paper, at a rate that this machine cannot make."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import File, Json, duration
from penstock.cli.render import out, print_json, table
from penstock.errors import MissingError

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.config import PipelineConfig
    from penstock.flow.cost import Cost
    from penstock.flow.simulation import Burst
    from penstock.ops.simulate import Measured, SimulationReport

_WIDE = 24
_LONGEST_SECONDS = 7 * 86_400
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6}
_SHORT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DEFAULT_FIXED = 0.5
_BURST_AFTER = 300.0


def simulate(
    file: File,
    rate: Annotated[str, typer.Option(metavar="N", help="Records per second: 500000, 500k, 0.5M.", show_default=False)],
    burst: Annotated[
        list[str] | None,
        typer.Option(metavar="TIMES:LENGTH[@START]", help="A burst: 10x:60s, 10x:60s@10m, 2M:60s; may be repeated."),
    ] = None,
    span: Annotated[str, typer.Option("--for", metavar="TIME", help="How long to simulate.")] = "1 hour",
    backlog: Annotated[str, typer.Option(metavar="N", help="The backlog at the start.")] = "0",
    partitions: Annotated[int | None, typer.Option(min=1, help="Defaults to that of the last run.")] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores in total, or of each executor; defaults to those of the last run.")
    ] = None,
    executors: Annotated[int | None, typer.Option(min=1, help="The number of machines, each with --cores.")] = None,
    hot: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="The share of the hottest partition: 20%; by default, all are equal."),
    ] = None,
    within: Annotated[str, typer.Option(metavar="TIME", help="The target time to catch up.")] = "10 minutes",
    row_cost: Annotated[
        str | None, typer.Option(metavar="TIME", help="CPU time per row, such as 8us; by default measured.")
    ] = None,
    fixed_cost: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time of an empty batch, such as 500ms; by default measured.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a pipeline at a rate that this machine cannot produce: backlog over time, time to catch up, cores
    needed. No JVM, no broker; nothing is run or changed.

    The cost of a batch comes from the history of the pipeline's own runs, or from --row-cost and --fixed-cost.

    penstock simulate orders.yaml --rate 500k --burst 10x:60s --partitions 200 --executors 10 --cores 4
    """
    from penstock.cli.simulate_text import assumptions, decisions, findings
    from penstock.config import load
    from penstock.metrics import BatchMetrics
    from penstock.metrics.history import RunStarted, history_of
    from penstock.ops.simulate import SimulationRequest, measure, simulate_pipeline, whole_partitions

    base, seconds = _count(rate, "--rate"), duration(span, "--for").total_seconds()
    if seconds > _LONGEST_SECONDS:
        raise typer.BadParameter("at most 7 days", param_hint="--for")
    bursts = tuple(_burst(one, base, seconds) for one in burst or ())
    if executors is not None and cores is None:
        raise typer.BadParameter("add --cores for the cores of each machine", param_hint="--executors")
    per_row = None if row_cost is None else _short(row_cost, "--row-cost")
    per_batch = None if fixed_cost is None else _short(fixed_cost, "--fixed-cost")
    config = load(file)
    history = history_of(config.checkpoint)
    measured = measure(history.read(BatchMetrics, RunStarted))
    if measured is None and per_row is None:
        raise _unknown_cost(config, file.name, str(history.path))
    in_all = cores * (executors or 1) if cores is not None else measured.cores if measured else 1
    parts = partitions or (measured.partitions if measured else None) or in_all
    asked = SimulationRequest(
        base,
        seconds,
        in_all,
        parts,
        _cost(measured, per_row, per_batch),
        bursts,
        _count(backlog, "--backlog"),
        duration(within, "--within").total_seconds(),
        None if hot is None else _share(hot, parts),
        whole_partitions(config) is not None,
        measured.record_bytes if measured else 0.0,
    )
    report = simulate_pipeline(config, asked)
    given = frozenset(name for name, value in (("row", per_row), ("fixed", per_batch)) if value is not None)
    assumed = assumptions(config, asked, measured, given)
    if as_json:
        head = {"pipeline": config.name, "assumptions": [line.strip() for line in assumed]}
        print_json({**head, **report.as_json()})
        return
    out.print(f"[bold]{escape(config.name)}[/] on paper")
    for line in assumed:
        out.print(f"  [dim]{escape(line)}[/]")
    out.print("")
    _show_rows(report)
    out.print("")
    if changes := decisions(report):
        out.print("\n".join(f"[dim]{escape(line)}[/]" for line in changes) + "\n")
    for line in findings(report, measured):
        out.print(escape(line))


def _show_rows(report: SimulationReport) -> None:
    from penstock.wording import spell

    columns = ("until", "rate", "waiting", "cap", "batch", "took")
    rows = table(*columns[:3], "", *columns[3:], numbers=columns)
    most = max(row.backlog for row in report.rows) or 1.0
    for row in report.rows:
        last = row.batch.batch if row.batch else None
        rows.add_row(
            spell(row.until),
            f"{_compact(row.rate)}/s",
            _compact(row.backlog),
            "█" * math.ceil(_WIDE * row.backlog / most),
            _compact(last.cap) if last else "-",
            _compact(last.offsets) if last else "-",
            spell(last.seconds) if last else "-",
        )
    out.print(rows)


def _compact(number: float) -> str:
    """`950`, `12.3k`, `4.6M`, `187M`, `2.1G`."""
    for unit in ("", "k", "M"):
        if number < 999.5:
            return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:,.1f}G"


def _unknown_cost(config: PipelineConfig, file: str, history: str) -> MissingError:
    return MissingError(
        "COST_UNKNOWN",
        f"pipeline {config.name}: the cost of a batch is unknown",
        context={"history of its runs": f"no batches in {history}"},
        hint=f"run it once, on realistic records: penstock run {file} --available-now\n"
        "or set the cost: --row-cost 10us --fixed-cost 1s",
    )


def _cost(measured: Measured | None, per_row: float | None, per_batch: float | None) -> Cost:
    from penstock.flow.cost import Cost

    known = Cost(measured.fixed, measured.per_offset) if measured else Cost(_DEFAULT_FIXED, 0.0)
    return Cost(known.fixed if per_batch is None else per_batch, known.per_offset if per_row is None else per_row)


def _count(text: str, option: str) -> float:
    found = re.fullmatch(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kKmM]?)", text.strip())
    if found is None:
        raise typer.BadParameter(f'"{text}" is not a number >= 0: write 500000, 500k or 0.5M', param_hint=option)
    return float(found[1].replace(",", "").replace("_", "")) * _UNITS[found[2].lower()]


def _burst(text: str, rate: float, span: float) -> Burst:
    from penstock.flow.simulation import Burst

    option = "--burst"
    found = re.fullmatch(r"\s*([^:@]+):([^:@]+)(?:@([^:@]+))?", text)
    if found is None:
        raise typer.BadParameter(
            f'"{text}" is not a burst: write rate, duration and start, such as 10x:60s or 2M:60s@10m',
            param_hint=option,
        )
    much = found[1].strip()
    times = much.lower().endswith("x")
    height = _count(much[:-1], option) * rate if times else _count(much, option)
    length = duration(found[2], option).total_seconds()
    start = min(_BURST_AFTER, span / 6) if found[3] is None else duration(found[3], option).total_seconds()
    if start + length > span:
        raise typer.BadParameter(f'"{text}" ends after the simulated time: use a longer --for', param_hint=option)
    return Burst(height, start, length)


def _short(text: str, option: str) -> float:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|µs|ms|s)\s*", text)
    if found is None or float(found[1]) <= 0:
        raise typer.BadParameter(f'"{text}" is not a time above 0: write 8us, 0.5ms or 1s', param_hint=option)
    return float(found[1]) * _SHORT[found[2]]


def _share(text: str, partitions: int) -> float:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*", text)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 < share < 1:
        raise typer.BadParameter(f'"{text}" is not a share: write 20% or 0.2', param_hint="--hot")
    return max(share, 1 / partitions)
