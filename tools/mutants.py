"""Does the suite notice? Small random faults are put into the code one by one, and the tests that reach them are run.

    python tools/mutants.py --count 100 --seed 1 --work FOLDER

Needs the package `coverage`. FOLDER gets a copy of the repository for each worker, the map of which test reaches which
line (made once, by running the default suite under coverage; `--map` takes one that is there), and `mutants.jsonl`.
A mutant that survives is one line of code that no test of the default suite depends on, or a change without effect.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
PACKAGES = ("assembly", "preflight", "engine", "supervision", "sinks", "ops")
SECONDS = 400
"""A run of tests that takes longer hangs because of the mutant."""
MOST_OF_A_FILE = 200
"""How many tests of a file are run for a line that no test reaches by itself."""
_COMPARES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


@dataclass(frozen=True)
class Mutant:
    """One fault: a piece of a file, and what stands there instead."""

    file: str
    line: int
    begin: int
    end: int
    before: str
    after: str


def mutants_of(path: Path, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant of a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _code(ast.parse(text)):
        for old, new in _changes(node):
            assert old.end_lineno is not None and old.end_col_offset is not None
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            before = text.encode()[begin:end].decode()
            yield Mutant(str(path.relative_to(root)), old.lineno, begin, end, before, new)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, no bodies of protocols, and not `frozen` or `slots` of a dataclass."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns") or (name == "decorator_list" and isinstance(tree, ast.ClassDef)):
            continue
        for child in value if isinstance(value, list) else [value]:
            protocol = isinstance(child, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in child.bases)
            if isinstance(child, ast.AST) and not protocol:
                yield child
                yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _COMPARES[type(node.ops[0])]()
        yield node, f"({ast.unparse(ast.Compare(node.left, [other], node.comparators))})"
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(ast.BoolOp(other_op, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other_sign = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield node, f"({ast.unparse(ast.BinOp(node.left, other_sign, node.right))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node, str(node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node.value, "None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield node, "pass"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def chosen(packages: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Some of all mutants, the same for a seed as long as the code is."""
    files = sorted(file for package in packages for file in (ROOT / "src/penstock" / package).rglob("*.py"))
    every = [mutant for file in files for mutant in mutants_of(file)]
    return random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311  the same for a seed is what is wanted


@dataclass(frozen=True)
class Reached:
    """Which tests reach a line, and how long each takes."""

    lines: dict[str, dict[str, list[int]]]
    tests: list[str]
    seconds: dict[str, float]

    def by(self, mutant: Mutant) -> list[str]:
        """The tests that reach a mutant, the quickest first."""
        lines = self.lines.get(mutant.file, {})
        # Of a statement over several lines only some count as reached.
        near = next((lines[str(n)] for n in range(mutant.line, mutant.line - 6, -1) if str(n) in lines), None)
        constant = near is None
        if near is None:
            # What runs at the import belongs to no test. Those that use the file are run, the quickest of them.
            near = [number for reached in lines.values() for number in reached]
        found = sorted({self.tests[n] for n in near}, key=lambda test: (self.seconds.get(test, 1.0), test))
        return found[:MOST_OF_A_FILE] if constant else found


def make_map(work: Path, workers: int) -> Path:
    """Run the default suite under coverage, and keep which test reaches which line."""
    settings = work / "coveragerc"
    settings.write_text(f"[run]\nsource = {ROOT / 'src/penstock'}\nparallel = true\npatch = subprocess\n")
    report = work / "durations.json"
    environment = {**os.environ, "COVERAGE_FILE": str(work / "coverage"), "PENSTOCK_MUTANT_DURATIONS": str(report)}
    pytest = ["-m", "pytest", "-n", str(workers), "-m", "not long", "-p", "reached_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", *pytest]
    plugin = work / "reached_plugin.py"
    plugin.write_text(_PLUGIN)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(work), os.environ.get("PYTHONPATH")]))
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return collect_map(work)


_PLUGIN = """
import json, os
from pathlib import Path
import coverage, pytest
seconds = {}
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    return (yield)
def pytest_runtest_logreport(report):
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + (report.duration if report.when == "call" else 0.0)
def pytest_sessionfinish():
    name = os.environ["PENSTOCK_MUTANT_DURATIONS"]
    Path(f"{name}.{os.getpid()}").write_text(json.dumps(seconds))
    current = coverage.Coverage.current()
    if current is not None:
        current.stop()
        current.save()
"""


def collect_map(work: Path) -> Path:
    """The map, from what coverage left."""
    import coverage

    data = coverage.CoverageData(basename=str(work / "coverage"), no_disk=False)
    for part in work.glob("coverage.*"):
        one = coverage.CoverageData(basename=str(part))
        one.read()
        data.update(one)
    tests: dict[str, int] = {}
    lines: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        name = str(Path(file).relative_to(ROOT))
        for line, contexts in data.contexts_by_lineno(file).items():
            reached = sorted({tests.setdefault(c, len(tests)) for c in contexts if "::" in c})
            if reached:
                lines.setdefault(name, {})[str(line)] = reached
    seconds: dict[str, float] = {}
    for report in work.glob("durations.json.*"):
        for test, took in json.loads(report.read_text()).items():
            seconds[test] = max(took, seconds.get(test, 0.0))
    target = work / "map.json"
    target.write_text(json.dumps({"lines": lines, "tests": list(tests), "seconds": seconds}))
    return target


def judge(mutant: Mutant, tree: Path, reached: Reached) -> tuple[str, float]:
    """Put the mutant into a tree, run the tests that reach it, take it out again."""
    tests = reached.by(mutant)
    if not tests:
        return "not reached", 0.0
    file, began = tree / mutant.file, time.monotonic()
    whole = file.read_bytes()
    file.write_bytes(whole[: mutant.begin] + mutant.after.encode() + whole[mutant.end :])
    try:
        verdict = _run(tests, tree)
    finally:
        file.write_bytes(whole)
    return verdict, time.monotonic() - began


def _run(tests: Sequence[str], tree: Path) -> str:
    listed = tree / "mutant-tests.txt"
    listed.write_text("\n".join(tests))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DEBUG_TEMPROOT": str(tree),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"@{listed}"]
    with (tree / "mutant.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
    return {0: "survived", -1: "killed by time"}.get(status, "killed")


def main() -> int:
    """Choose, judge, and say which survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--map", type=Path, help="a map that an earlier run made of the same code")
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    asked = parser.parse_args()
    work: Path = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    reached = Reached(**json.loads((asked.map or make_map(work, asked.workers)).read_text()))
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(asked.workers):
        tree = work / f"tree{number}"
        shutil.rmtree(tree, ignore_errors=True)
        hidden = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, ignore=hidden)
        trees.put(tree)
    counts: dict[str, int] = {}

    def one(mutant: Mutant) -> None:
        tree = trees.get()
        try:
            verdict, took = judge(mutant, tree, reached)
        finally:
            trees.put(tree)
        counts[verdict] = counts.get(verdict, 0) + 1
        with (work / "mutants.jsonl").open("a") as log:
            log.write(json.dumps({**asdict(mutant), "verdict": verdict, "seconds": round(took, 1)}) + "\n")
        print(f"{verdict:14} {mutant.file}:{mutant.line}  {mutant.before!r} -> {mutant.after!r}", flush=True)

    with ThreadPoolExecutor(asked.workers) as pool:
        list(pool.map(one, chosen(asked.packages, asked.seed, asked.count)))
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
