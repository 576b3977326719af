"""`penstock test` and `penstock preview`: the pipeline's own cases, and real messages, without writing anything.

A passed case is a line, a failed one also a table of expected against actual rows.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.arguments import File, Json
from penstock.cli.render import out, print_json, show_error, table, visible
from penstock.errors import PenstockError, TerminalError
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.cases.rows import Row, RowDiff, TableDiff
    from penstock.ops.cases.run import CaseResult, FileResult, SparkWhenNeeded
    from penstock.ops.preview import Preview

_SAME_SHOWN = 3
_WIDEST = 40
_WIDEST_ROW = 200
_QUARANTINE_COLUMNS = ("topic", "partition", "offset", "code", "message")
_POLL_SECONDS = 0.3
_CODE = ("*.py", "*.sql", "*/*.py", "*/*.sql")


def test(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The pipeline files.", show_default=False)],
    case: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this case; may be repeated.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again when a file next to the pipeline is saved.")
    ] = False,
    update: Annotated[bool, typer.Option("--update", help="Write the actual results into failing cases.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, for CI.")] = None,
    as_json: Json = False,
) -> None:
    """Run the pipeline's own cases, in FILE.test.yaml next to it: no broker, no network; exit 4 if one fails."""
    from penstock.ops.cases.run import SparkWhenNeeded

    pipelines = [_pipeline_of(file) for file in files]
    session = SparkWhenNeeded()
    try:
        if watch:
            _watch(pipelines, case or (), update, junit, session)
        elif not all(result.passed for result in _run(pipelines, case or (), update, junit, as_json, session)):
            raise typer.Exit(TerminalError.exit_code)
    finally:
        session.stop()


def preview(
    file: File,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many messages.")] = 20,
    start: Annotated[
        Literal["latest", "earliest"], typer.Option("--from", help="The newest messages, or the oldest.")
    ] = "latest",
    as_json: Json = False,
) -> None:
    """Run real messages through the pipeline and show the results; nothing is written anywhere."""
    from penstock.config import load
    from penstock.ops.preview import preview as run_preview

    found = run_preview(load(file), limit, start)
    if as_json:
        print_json(_preview_json(found))
    else:
        _show_preview(found)


def _watch(
    files: Sequence[Path], names: Sequence[str], update: bool, junit: Path | None, session: SparkWhenNeeded
) -> None:
    """Run the cases again whenever a file they may depend on is saved, until Ctrl-C."""
    try:
        while True:
            before = _modified(files)
            try:
                _run(files, names, update, junit, False, session)
            except PenstockError as error:
                show_error(error)
            # Do not run again for what --update wrote.
            before |= {
                file: saved for file, saved in _modified(files).items() if update and file.name.endswith(".test.yaml")
            }
            out.print("[dim]waiting for a change; Ctrl-C ends[/]")
            while (now := _modified(files)) == before:
                time.sleep(_POLL_SECONDS)
            changed = {file for file in now.keys() | before.keys() if now.get(file) != before.get(file)}
            out.print(f"[dim]changed: {escape(', '.join(sorted(file.name for file in changed)))}[/]")
            if any(file.suffix == ".py" for file in changed):
                _forget_modules(now)
                session.stop()
    except KeyboardInterrupt:
        out.print()


def _pipeline_of(file: Path) -> Path:
    """The pipeline file, whether it or its case file is named."""
    name = file.name
    return file.with_name(name.replace(".test.", ".", 1)) if ".test." in name and file.suffix else file


def _run(
    files: Sequence[Path],
    names: Sequence[str],
    update: bool,
    junit: Path | None,
    as_json: bool,
    session: SparkWhenNeeded,
) -> list[FileResult]:
    from penstock.ops.cases.reports import junit_xml, results_json
    from penstock.ops.cases.run import run_file
    from penstock.ops.cases.update import apply_update

    began = time.perf_counter()
    results = []
    for file in files:
        result = run_file(file, session, names)
        if not as_json:
            _show_file(result)
        if update and (updated := apply_update(result.file, result.cases)):
            if not as_json:
                where = escape(str(result.file))
                out.print(f"  [yellow]wrote the actual results into {where}:[/] {escape(', '.join(updated))}")
            result = run_file(file, session, names)
        results.append(result)
    if junit is not None:
        junit.parent.mkdir(parents=True, exist_ok=True)
        junit.write_text(junit_xml(results), encoding="utf-8")
    if as_json:
        print_json(results_json(results))
        return results
    cases = [case for result in results for case in result.cases]
    failed = sum(not case.passed for case in cases)
    verdict = f"[red]{failed} failed[/]" if failed else "[green]all passed[/]"
    out.print(f"{counted(len(cases), 'case')}: {verdict}, {time.perf_counter() - began:.1f} s")
    return results


def _modified(files: Sequence[Path]) -> dict[Path, int]:
    """When each file that a result may depend on was saved: in the pipeline's folder, or one folder below it."""
    from penstock.config.cases import case_file_of

    watched = {near for file in files for near in (file, case_file_of(file))}
    for folder in {file.parent for file in files}:
        watched |= {near for pattern in _CODE for near in folder.glob(pattern) if not near.parent.name.startswith(".")}
    return {file: file.stat().st_mtime_ns for file in watched if file.exists()}


def _forget_modules(files: Iterable[Path]) -> None:
    """Let the next import read what was saved; modules that import each other are all read again."""
    ours = {str(file.resolve()) for file in files if file.suffix == ".py"}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in ours and not name.startswith("penstock."):
            del sys.modules[name]
    importlib.invalidate_caches()


def _show_file(result: FileResult) -> None:
    out.print(f"[bold]{escape(str(result.file))}[/]  {result.lane} lane: {escape(result.lane_reason)}")
    for case in result.cases:
        mark = "[green]ok  [/]" if case.passed else "[bold red]FAIL[/]"
        out.print(f"  {mark}  {escape(case.case.name)}  [dim]{case.seconds:.2f} s[/]")
        if not case.passed:
            _show_failure(case)


def _show_failure(result: CaseResult) -> None:
    from penstock.ops.cases.reports import summary

    for note in result.notes:
        out.print(f"        {escape(note)}")
    if result.error is not None and result.error.hint:
        out.print(f"        {escape(result.error.hint)}")
    for diff in result.tables:
        if not diff.passed:
            out.print(f"        {escape(diff.name)}: {summary(diff)}")
            out.print(_diff_table(diff))


def _diff_table(diff: TableDiff) -> Any:
    """Row by row: expected above actual, the cells that differ marked with `!`."""
    from penstock.ops.cases.rows import shown_columns

    named = list(dict.fromkeys(name for row in diff.rows for name in row.expected or ()))
    columns = named or list(dict.fromkeys(name for row in diff.rows for name in shown_columns(row.seen or {})))
    columns += [name for row in diff.rows for name in row.columns if name not in columns]
    drawn = table("        ", *columns)
    same = [row for row in diff.rows if row.kind == "same"]
    for row in (*same[:_SAME_SHOWN], *(row for row in diff.rows if row.kind != "same")):
        for label, style, cells in _lines(row):
            drawn.add_row(Text(f"        {label}", style), *(_cell(cells, name, row, style) for name in columns))
    if len(same) > _SAME_SHOWN:
        drawn.add_row(Text(f"        and {counted(len(same) - _SAME_SHOWN, 'row')} more as expected", "dim"))
    return drawn


def _lines(row: RowDiff) -> list[tuple[str, str, Row]]:
    match row.kind:
        case "same":
            return [("as expected", "dim", row.seen or {})]
        case "missing":
            return [("missing", "red", row.expected or {})]
        case "unexpected":
            return [("unexpected", "yellow", row.seen or {})]
    return [("expected", "", row.expected or {}), ("seen", "", row.seen or {})]


def _cell(cells: Row, name: str, row: RowDiff, style: str) -> Text:
    differs = name in row.columns and cells is row.seen
    if name not in cells:
        return Text("! no such column" if differs else "", "bold red")
    return Text(f"! {cell_text(cells[name])}" if differs else cell_text(cells[name]), "bold red" if differs else style)


def cell_text(value: Any, widest: int = _WIDEST) -> str:
    """A value in a table, shortened."""
    from penstock.ops.cases.rows import to_plain

    plain = to_plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)
    text = visible(text.replace("\n", "\\n"))
    return text if len(text) <= widest else f"{text[: widest - 3]}..."


def _show_preview(preview: Preview) -> None:
    from penstock.ops.cases.rows import shown_columns

    out.print(f"[bold]{escape(preview.pipeline)}[/]  {counted(preview.messages, 'message')}, {preview.lane} lane")
    for name, rows in preview.seen.sinks.items():
        out.print(f"\nsink [bold]{escape(name)}[/]: {counted(len(rows), 'row')}")
        if rows:
            columns = list(dict.fromkeys(column for row in rows for column in shown_columns(row)))
            out.print(_row_table(columns, rows), soft_wrap=False)
    rejected = preview.seen.quarantine
    out.print(f"\nquarantine: {counted(len(rejected), 'record')}")
    if rejected:
        out.print(_row_table(_QUARANTINE_COLUMNS, rejected), soft_wrap=False)
    out.print("\n[dim]nothing was written[/]")


def _preview_json(preview: Preview) -> dict[str, Any]:
    from penstock.ops.cases.rows import to_plain

    rejected = [
        {name: row[name] for name in ("stage", *_QUARANTINE_COLUMNS, "key", "value")} for row in preview.seen.quarantine
    ]
    return {
        "pipeline": preview.pipeline,
        "lane": preview.lane,
        "messages": preview.messages,
        "sinks": {name: [to_plain(row) for row in rows] for name, rows in preview.seen.sinks.items()},
        "quarantine": [to_plain(row) for row in rejected],
        "counts": dict(preview.seen.counts),
    }


def _row_table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        number = all(isinstance(row.get(column), int | float | None) for row in rows)
        drawn.add_column(column, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        drawn.add_row(
            *(escape(cell_text(row[name], _WIDEST_ROW)) if row.get(name) is not None else "" for name in columns)
        )
    return drawn
