"""The modules of a folder that a module of it imports, and those that these import, told from their text: nothing runs.

An import counts wherever it stands, inside a function too. A module that is imported by a name made at run time is not
found; `cluster.extra_files` names it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_files(folder: Path, module_name: str) -> frozenset[Path]:
    """The files below the folder that belong to a module, its packages' `__init__.py` among them."""
    found: set[Path] = set()
    left = [module_name]
    seen: set[str] = set()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        for file, package in _files(folder, name):
            if file not in found:
                found.add(file)
                left += _imports(file, package)
    return frozenset(found)


def _files(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """The file of a module and those of the packages that it is in, each with the package that it resolves names in."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        stem, inner = folder.joinpath(*parts[:end]), ".".join(parts[:end])
        if (stem / "__init__.py").is_file():
            yield stem / "__init__.py", inner
        elif (file := stem.with_name(f"{stem.name}.py")).is_file():
            yield file, ".".join(parts[: end - 1])


def _imports(file: Path, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".") if package else []
            above = around[: len(around) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            # What is imported from a package may be a module of it.
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")
