"""Results of cases for machines: JSON, and JUnit XML as CI servers read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from penstock.ops.cases.rows import Kind, Row, RowDiff, TableDiff, to_plain
from penstock.ops.cases.run import CaseResult, FileResult


def results_json(results: Sequence[FileResult]) -> dict[str, Any]:
    """For `--json`."""
    return {
        "passed": all(result.passed for result in results),
        "files": [
            {
                "file": str(result.file),
                "pipeline": result.pipeline,
                "lane": result.lane,
                "passed": result.passed,
                "cases": [_case(case) for case in result.cases],
            }
            for result in results
        ],
    }


def _case(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "notes": list(result.notes),
        "tables": [
            {"name": table.name, "passed": table.passed, "rows": [_row(row) for row in table.rows]}
            for table in result.tables
        ],
    }


def _row(row: RowDiff) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "columns": list(row.columns),
        "expected": None if row.expected is None else dict(row.expected),
        "seen": None if row.seen is None else to_plain(dict(row.seen)),
    }


def junit_xml(results: Sequence[FileResult]) -> str:
    """One suite for each file, one test for each case."""
    root = Xml.Element("testsuites")
    for result in results:
        failed = sum(not case.passed for case in result.cases)
        seconds = sum(case.seconds for case in result.cases)
        about = {"tests": str(len(result.cases)), "failures": str(failed), "errors": "0", "time": f"{seconds:.3f}"}
        suite = Xml.SubElement(root, "testsuite", {"name": result.pipeline, "file": str(result.file), **about})
        for case in result.cases:
            about = {"name": case.case.name, "classname": result.pipeline, "time": f"{case.seconds:.3f}"}
            test = Xml.SubElement(suite, "testcase", about)
            if not case.passed:
                lines = failure_lines(case)
                Xml.SubElement(test, "failure", {"message": _printable(lines[0])}).text = _printable("\n".join(lines))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def failure_lines(result: CaseResult) -> list[str]:
    """What is not as expected, a line for each row."""
    lines = list(result.notes)
    for table in result.tables:
        if not table.passed:
            lines.append(f"{table.name}: {summary(table)}")
            lines += [f"  {_line(row)}" for row in table.rows if row.kind != "same"]
    return lines


def summary(table: TableDiff) -> str:
    """The differences of a table, in words."""
    words: dict[Kind, str] = {
        "same": "as expected",
        "differs": "different",
        "missing": "missing",
        "unexpected": "unexpected",
    }
    counts = [(table.count(kind), text) for kind, text in words.items()]
    return ", ".join(f"{count} {text}" for count, text in counts if count)


def _line(row: RowDiff) -> str:
    if row.expected is None or row.seen is None:
        return f"{row.kind}: {_flow(row.expected or row.seen or {})}"
    cells = (f"{name}: expected {_cell(row.expected, name)}, seen {_cell(row.seen, name)}" for name in row.columns)
    return f"differs: {_flow(row.expected)}: {'; '.join(cells)}"


def _cell(row: Row, name: str) -> str:
    return repr(to_plain(row[name])) if name in row else "no such column"


def _flow(row: Row) -> str:
    shown = {name: to_plain(value) for name, value in row.items() if not name.startswith("_penstock")}
    return ", ".join(f"{name}: {value!r}" for name, value in shown.items())


def _printable(text: str) -> str:
    """Remove characters that XML cannot represent."""
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text)
