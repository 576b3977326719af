"""Every error code of `docs/reference/errors.md` is raised by a test that names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
_PAGE = TESTS.parent / "docs/reference/errors.md"


def test_every_documented_error_code_is_expected_by_a_test() -> None:
    expected: set[str] = set()
    for file in TESTS.rglob("test_*.py"):
        expected |= codes_expected(file.read_text())
    assert sorted(documented() - expected) == [], "write a test that raises it, or delete the code"


def test_codes_expected_leaves_out_what_a_test_raises_itself_or_only_allows() -> None:
    source = '''
"""IN_A_DOCSTRING"""
raise TransientError("RAISED_BY_THE_TEST", "x")
answer = lambda: MissingError("RAISED_BY_THE_TEST_TOO", "x", context={"why": "IN_ITS_CONTEXT"})
assert error.code in ("ALLOWED", "ALLOWED_TOO")
if error.code == "PASSED_OVER": pass
match error.code:
    case "PASSED_OVER_TOO": pass
assert error.code == "ASSERTED"
assert "IN_A_TEXT" in printed and "NOT_THERE" not in printed
with pytest.raises(PenstockError, match=r"MATCHED.*x"): pass
CASES = [(1, "IN_A_TABLE")]
'''
    assert codes_expected(source) == {"ASSERTED", "IN_A_TEXT", "MATCHED", "IN_A_TABLE"}


def documented() -> set[str]:
    """The codes of the reference page, which another test holds to the source."""
    codes = set(re.findall(r"^\| `([A-Z0-9_]+)` \|", _PAGE.read_text(), re.MULTILINE))
    assert len(codes) > 200
    return codes


def codes_expected(source: str) -> set[str]:
    """The words in capitals that a test module expects: not those that it raises, allows or passes over itself."""
    tree = ast.parse(source)
    skipped = {id(inner) for node in _not_expected(tree) for inner in ast.walk(node)}
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped
    )
    return {word for text in texts for word in re.findall(r"(?<![A-Z0-9_])[A-Z][A-Z0-9_]+(?![A-Z0-9_])", text)}


def _not_expected(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant() as docstring):
                yield docstring
            case ast.Call(ast.Name(name), [_, *_]) if name.endswith("Error"):
                yield node
            case ast.Compare(ops=[ast.NotIn() | ast.NotEq()]):
                yield node
            case ast.Compare(ops=[ast.In()], comparators=[ast.Tuple() | ast.List() | ast.Set() as allowed]):
                yield allowed
            case ast.If(condition) | ast.While(condition):
                yield condition
            case ast.MatchValue():
                yield node
