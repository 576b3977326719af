"""The user's own Python: `module.name` in the pipeline file's folder becomes the function or class it names.

Modules of the folder are imported under names of their own and are not left in `sys.modules`. So two pipelines in one
process never get each other's, an edited module is read anew, and what Spark sends of them to its workers goes by
value, not by a name that no worker knows. Which modules of the folder one imports, and which names it has, is read from
its text: nothing is imported for that.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import DefinitionError, PenstockError, TerminalError
from penstock.model.shipped import CODE, code_name


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


def top_names(text: str) -> set[str] | None:
    """Every name that the module may have; None where only running it would show them. Raises `SyntaxError`."""
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


_PRIVATE = "_penstock_user_"


def _here(folder: str) -> str:
    """Where a folder's code is for this process: what was sent along counts before the disk."""
    sent = os.environ.get(CODE)
    return str(Path(sent).absolute() / code_name(folder)) if sent else folder


@dataclass(frozen=True, slots=True)
class _Loaded:
    module: ModuleType
    files: dict[Path, int]
    """The folder's files that were imported, with the times at which they were changed last."""

    def is_current(self) -> bool:
        return all(_changed(file) == time for file, time in self.files.items())


_loaded: dict[tuple[str, str], _Loaded] = {}
_folders: set[str] = set()
"""What was put on the path here."""
_one_at_a_time = threading.RLock()


def find(folder: str, dotted: str) -> None:
    """Raise where the module or the name in it is certainly not there. None of the user's code is run."""
    file, name = _file(folder, dotted)
    try:
        names = top_names(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise _not_importable(folder, dotted, error) from error
    if names is not None and name not in names:
        raise _no_such_name(folder, dotted, names)


def load(folder: str, dotted: str) -> Any:
    """What `module.name` is in the folder, imported where it is not yet or where its files were changed."""
    folder = _here(folder)
    file, name = _file(folder, dotted)
    where = str(Path(folder).resolve())
    module_name = dotted.rpartition(".")[0]
    with _one_at_a_time:
        known = _loaded.get((where, module_name))
        if known is None or not known.is_current():
            try:
                known = _import(Path(where), module_name, file)
            except (Exception, SystemExit) as error:
                raise _not_importable(folder, dotted, error) from error
            _loaded[where, module_name] = known
    found = getattr(known.module, name, None)
    if found is None:
        raise _no_such_name(folder, dotted, vars(known.module))
    if not callable(found):
        raise DefinitionError(
            "STEP_NOT_CALLABLE",
            f"{dotted} is not a function or a class",
            context={"found": type(found).__name__, "in": file},
        )
    return found


def files_of(folder: str, dotted: str) -> frozenset[Path]:
    """The folder's files that `module.name` was imported from; none where it is not imported."""
    known = _loaded.get((str(Path(folder).resolve()), dotted.rpartition(".")[0]))
    return frozenset(known.files) if known is not None else frozenset()


def _file(folder: str, dotted: str) -> tuple[Path, str]:
    """The file of the module, and the name in it."""
    *parts, name = dotted.split(".")
    if not parts or not all(part.isidentifier() for part in (*parts, name)):
        raise DefinitionError(
            "STEP_NOT_FOUND",
            f'"{dotted}" is not a name in a module',
            hint="write module.function or package.module.name",
        )
    stem = Path(folder).resolve().joinpath(*parts)
    wanted = [stem.with_name(f"{stem.name}.py"), stem / "__init__.py"]
    for file in wanted:
        if file.is_file():
            return file, name
    beside = [file.stem for file in stem.parent.glob("*.py")]
    raise DefinitionError(
        "STEP_NOT_FOUND",
        f"there is no module {'.'.join(parts)} for {dotted}",
        context={
            "looked for": " or ".join(str(file.relative_to(Path(folder).resolve())) for file in wanted),
            "in": folder,
        },
        hint=_did_you_mean(stem.name, beside, ".".join([*parts[:-1], "{}", name])),
    )


def _import(folder: Path, module_name: str, file: Path) -> _Loaded:
    root = module_name.partition(".")[0]
    private = f"{_PRIVATE}{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}_{root}"
    before = set(sys.modules)
    with _on_path(folder):
        try:
            top = _execute(private, folder / root) if root != module_name else None
            module = (
                importlib.import_module(private + module_name.removeprefix(root))
                if top is not None
                else _execute(private, file)
            )
        finally:
            own = _own_modules(folder, private, set(sys.modules) - before)
            for name in own:
                del sys.modules[name]
    files = {Path(one.__file__) for one in own.values() if one.__file__}
    return _Loaded(module, {one: _changed(one) for one in files | {file}})


def _execute(name: str, path: Path) -> ModuleType:
    """Run a module's file, or a package's: a folder without `__init__.py` is a package too."""
    if path.is_dir() and not (path / "__init__.py").is_file():
        spec: ModuleSpec | None = ModuleSpec(name, None, is_package=True)
        assert spec is not None
        spec.submodule_search_locations = [str(path)]
    else:
        file = path / "__init__.py" if path.is_dir() else path
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if spec.loader is not None and spec.origin is not None:
        spec.loader.exec_module(module)
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """The folder first on the path for what its modules import; from then on last, for imports inside functions."""
    bytecode, path = sys.dont_write_bytecode, list(sys.path)
    sys.dont_write_bytecode = True
    sys.path[:] = [str(folder), *(entry for entry in path if entry not in _folders)]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        if str(folder) not in path:
            _folders.add(str(folder))
            sys.path.append(str(folder))
        sys.dont_write_bytecode = bytecode


def _own_modules(folder: Path, private: str, names: Iterable[str]) -> dict[str, ModuleType]:
    """Those that come from the folder itself: not from an environment or a library that lies somewhere below it."""
    own = {}
    for name in names:
        module, root = sys.modules[name], name.partition(".")[0]
        file = getattr(module, "__file__", None)
        locations = [Path(file)] if file else [Path(path) for path in getattr(module, "__path__", ())]
        is_beside = any(path.is_relative_to(folder / root) or path == folder / f"{root}.py" for path in locations)
        if root == private or is_beside:
            own[name] = module
    return own


def _changed(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _no_such_name(folder: str, dotted: str, names: Iterable[str]) -> DefinitionError:
    module_name, _, name = dotted.rpartition(".")
    public = sorted(one for one in names if not one.startswith("_"))
    return DefinitionError(
        "STEP_NOT_FOUND",
        f"there is no {name} in the module {module_name}",
        context={"names in it": ", ".join(public) or "none", "in": folder},
        hint=_did_you_mean(name, public, f"{module_name}.{{}}"),
    )


def _not_importable(folder: str, dotted: str, error: BaseException) -> DefinitionError:
    return DefinitionError(
        "STEP_NOT_IMPORTABLE",
        f"importing {dotted.rpartition('.')[0]} for {dotted}: it raises",
        context={"raised": first_line_of(error), "at": line_of(error, folder)},
        hint="the module is imported from the pipeline file's folder, with the Python that runs Penstock",
    )


def _did_you_mean(name: str, names: Iterable[str], form: str) -> str | None:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f'did you mean "{form.format(close[0])}"?' if close else None


# Errors of the user's own code: the message, and the innermost line of their code.

_MAX_CHARACTERS = 200


def first_line_of(error: BaseException) -> str:
    """The type and the first line of the message."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def line_of(error: BaseException, folder: str) -> str:
    """`rules.py:12`: the innermost line inside the folder, or the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename in (None, "<unknown>"):
        return f"line {error.lineno}"
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((Path(error.filename), error.lineno))
    root = Path(folder).resolve()
    for file, line in reversed(frames):
        if file.is_relative_to(root):
            return f"{file.relative_to(root)}:{line}"
    return f"{frames[-1][0].name}:{frames[-1][1]}" if frames else "no line of its own"


def step_failed(step: str, folder: str, error: BaseException) -> TerminalError:
    """The error for a step that raised."""
    return TerminalError(
        "STEP_FAILED",
        f"running {step}: it raised",
        context={"raised": first_line_of(error), "at": line_of(error, folder)},
    )


@contextmanager
def user_errors(step: str, folder: str) -> Iterator[None]:
    """Turns what the user's code raises inside into a `STEP_FAILED`."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise step_failed(step, folder, error) from error
