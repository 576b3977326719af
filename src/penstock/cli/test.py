"""`penstock test`: a line for each case, and a table of expected against seen for one that fails."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.text import Text

from penstock.cli.render import out, print_json, show_error, table, visible
from penstock.config.cases import case_file_of
from penstock.errors import PenstockError, TerminalError
from penstock.ops.cases.reports import junit_xml, results_json, summary
from penstock.ops.cases.rows import Row, RowDiff, TableDiff, shown_columns, to_plain
from penstock.ops.cases.run import CaseResult, FileResult, SparkWhenNeeded, run_file
from penstock.ops.cases.update import apply_update
from penstock.wording import counted

_SAME_SHOWN = 3
_WIDEST = 40
_POLL_SECONDS = 0.3
_CODE = ("*.py", "*.sql", "*/*.py", "*/*.sql")


def test(files: Sequence[Path], names: Sequence[str], update: bool, junit: Path | None, as_json: bool) -> None:
    """Run the cases once; exit 4 where one fails."""
    session = SparkWhenNeeded()
    try:
        results = _run(files, names, update, junit, as_json, session)
    finally:
        session.stop()
    if not all(result.passed for result in results):
        raise typer.Exit(TerminalError.exit_code)


def watch(files: Sequence[Path], names: Sequence[str], update: bool, junit: Path | None) -> None:
    """Run the cases again whenever a file beside them is saved, until Ctrl-C."""
    session = SparkWhenNeeded()
    try:
        while True:
            before = _stamps(files)
            try:
                _run(files, names, update, junit, False, session)
            except PenstockError as error:
                show_error(error)
            # What --update wrote is no change to run again for.
            before |= {
                file: stamp for file, stamp in _stamps(files).items() if update and file.name.endswith(".test.yaml")
            }
            out.print("[dim]waiting for a change; Ctrl-C ends[/]")
            while (now := _stamps(files)) == before:
                time.sleep(_POLL_SECONDS)
            changed = {file for file in now.keys() | before.keys() if now.get(file) != before.get(file)}
            out.print(f"[dim]changed: {escape(', '.join(sorted(file.name for file in changed)))}[/]")
            if any(file.suffix == ".py" for file in changed):
                _forget_modules(now)
                session.stop()
    except KeyboardInterrupt:
        out.print()
    finally:
        session.stop()


def pipeline_of(file: Path) -> Path:
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
    began = time.perf_counter()
    results = []
    for file in files:
        result = run_file(file, session, names)
        if not as_json:
            _show_file(result)
        if update and (updated := apply_update(result.file, result.cases)):
            if not as_json:
                out.print(
                    f"  [yellow]wrote what was seen into {escape(str(result.file))}:[/] {escape(', '.join(updated))}"
                )
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


def _stamps(files: Sequence[Path]) -> dict[Path, int]:
    """When each file that a result may depend on was last written: beside the pipeline, or one folder below."""
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
    for note in result.notes:
        out.print(f"        {escape(note)}")
    if result.error is not None and result.error.hint:
        out.print(f"        {escape(result.error.hint)}")
    for diff in result.tables:
        if not diff.passed:
            out.print(f"        {escape(diff.name)}: {summary(diff)}")
            out.print(_diff_table(diff))


def _diff_table(diff: TableDiff) -> Any:
    """Row by row: expected above seen, the cells that differ marked with `!`."""
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
    """A value in a table, cut short."""
    plain = to_plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)
    text = visible(text.replace("\n", "\\n"))
    return text if len(text) <= widest else f"{text[: widest - 3]}..."
