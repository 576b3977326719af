"""The names that a Python module has when it is imported, told from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def top_names(text: str) -> set[str] | None:
    """Every name that the module may have; None where only running it could tell. Raises `SyntaxError`."""
    names = {name for statement in ast.parse(text).body for name in _bound(statement)}
    return None if names & {"*", "__getattr__"} else names


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    # An `if` or a `try` holds statements that run in the module too.
    for node in ast.walk(statement):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
