"""What was seen, written into the case file as what is expected.

Only the text of `expect` is replaced, in the cases that did not pass; all else of the file, comments and quotes among
it, stays byte for byte. Where `expect` named some columns, the same columns are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from penstock.config.cases import Case
from penstock.ops.cases.rows import Row, shown_columns, to_plain
from penstock.ops.cases.run import CaseResult, Output

_MOST = 1_000_000
_STEP = "  "


def apply_update(file: Path, results: Iterable[CaseResult]) -> list[str]:
    """Write what was seen into the cases that did not pass; their names. One that stopped has nothing to write."""
    wanted = {result.case.name: result for result in results if not result.passed and result.seen is not None}
    if not wanted:
        return []
    text = file.read_bytes().decode("utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    edits = []
    for node in _value(root, "cases").value:
        result = wanted.get(_value(node, "name").value)
        if result is not None and result.seen is not None:
            edits.append(_edit(text, node, expectation(result.case, result.seen)))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new.replace("\n", "\r\n" if "\r\n" in text else "\n") + text[end:]
    file.write_bytes(text.encode())
    return list(wanted)


def expectation(case: Case, seen: Output) -> dict[str, Any]:
    """The actual results, in the form of `expect`."""
    before = case.expect
    named = before.sinks if before is not None and before.sinks else dict.fromkeys(seen.sinks, ())
    body: dict[str, Any] = {"sinks": {name: _rows(rows, seen.sinks.get(name, [])) for name, rows in named.items()}}
    if seen.quarantine:
        body["quarantine"] = _rows(before.quarantine if before else (), seen.quarantine, _where_from(seen.quarantine))
    counted = before.counts if before is not None else {}
    if counted or (before is None and seen.counts):
        body["counts"] = {name: seen.counts.get(name, 0) for name in counted or seen.counts}
    if before is not None and before.state is not None:
        rows = seen.state or []
        body["state"] = _rows(before.state, rows) if isinstance(before.state, tuple) else len(rows)
    return body


def _rows(before: Sequence[Row], seen: Sequence[Row], otherwise: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Output rows with the columns named before; by default all that are compared."""
    named = list(dict.fromkeys(name for row in before for name in row)) or otherwise
    return [{name: to_plain(row[name]) for name in named or shown_columns(row) if name in row} for row in seen]


def _where_from(quarantine: Sequence[Row]) -> list[str]:
    """A record's code and as much of its place as distinguishes it from the others."""
    several = [name for name in ("topic", "partition") if len({row[name] for row in quarantine}) > 1]
    return ["code", *several, "offset"]


def _edit(text: str, case: yaml.MappingNode, body: Mapping[str, Any]) -> tuple[int, int, str]:
    """Where to cut, and what to put there."""
    found = next((pair for pair in case.value if pair[0].value == "expect"), None)
    if case.flow_style:
        flow = _flow(body)
        if found is not None:
            return found[1].start_mark.index, _end(found[1]), flow
        return _end(case.value[-1][1]), _end(case.value[-1][1]), f", expect: {flow}"
    column = case.value[0][0].start_mark.column
    block = _block(body, column + len(_STEP))
    if found is not None:
        key_end = found[0].end_mark.index + text[found[0].end_mark.index :].index(":") + 1
        return key_end, max(_end(found[1]), key_end), f"\n{block}"
    end = _end(case.value[-1][1])
    line_end = text.find("\n", end)
    at = len(text) if line_end < 0 else line_end - (text[line_end - 1] == "\r")
    return at, at, f"\n{' ' * column}expect:\n{block}"


def _end(node: Any) -> int:
    """Where the text of a node ends: a block node's own mark is after the blanks and comments that follow it."""
    if isinstance(node, yaml.ScalarNode):
        trailing = len(node.value) - len(node.value.rstrip("\n")) if node.style in ("|", ">") else 0
        return int(node.end_mark.index) - min(trailing, 1)
    if node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _value(node: yaml.MappingNode, key: str) -> Any:
    return next(value for name, value in node.value if name.value == key)


def _flow(value: Any) -> str:
    dumped = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_MOST)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _block(value: Mapping[str, Any], column: int) -> str:
    """A mapping in lines; a list has a line for each entry."""
    lines = []
    for name, inner in value.items():
        key = f"{' ' * column}{_flow(name)}:"
        if isinstance(inner, dict) and inner:
            lines += [key, _block(inner, column + len(_STEP))]
        elif isinstance(inner, list) and inner:
            lines += [key, *(f"{' ' * column}{_STEP}- {_flow(row)}" for row in inner)]
        else:
            lines.append(f"{key} {_flow(inner)}")
    return "\n".join(lines)
