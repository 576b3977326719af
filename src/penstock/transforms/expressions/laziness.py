"""What Spark's optimizer may do with a piece that fails on a row: where it could change the outcome, Spark evaluates.

A failure counts only where the piece is evaluated. The branches of CASE and of its kin are never evaluated for other
rows; Spark's optimizer keeps to that. It does not keep to the order of operands: a piece that is there
twice may be computed first, once for both places, and equal conditions are drawn together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from penstock.transforms.expressions.terms import NoFormError

Key = tuple[str, ...]
Place = Literal["always", "operand", "branch"]

_BACKWARDS = (exp.Div, exp.IntDiv, exp.Mod)
_BACKWARDS_NAMES = {"mod", "try_mod", "try_divide"}
_CHOICES = (exp.If, exp.Case, exp.Nvl2, exp.Coalesce)
_TOLERANT = (*_CHOICES, exp.Or, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Anonymous)
_WORD = re.compile(r"'[^']*'|\w+|[^\w\s()]+")
_SAME = {">": "<", ">=": "<=", "null": "false"}


@dataclass(frozen=True, slots=True)
class Failure:
    """A piece that may fail: what it is, and whether the evaluation is sure to come there."""

    key: Key
    place: Place


def failures(tree: exp.Expr, failing: Collection[int]) -> tuple[Failure, ...]:
    """The pieces of `tree` whose ids are `failing`."""
    return tuple(
        Failure(_key(node), _place(node))
        for node in tree.walk()
        if id(node) in failing and not isinstance(node, exp.Paren)
    )


def repeated(found: Sequence[Failure]) -> bool:
    """Whether Spark may compute a piece for rows that would not have come to it, as it is needed in several places."""
    counts = Counter(failure.key for failure in found)
    always = {failure.key for failure in found if failure.place == "always"}
    return any(
        counts[failure.key] > 1 and failure.place == "operand" and failure.key not in always for failure in found
    )


def check(tree: exp.Expr, failing: Collection[int]) -> None:
    """Raise `NoFormError` where the optimizer may draw together what is equal, and not evaluate the rest."""
    for node in tree.walk():
        if isinstance(node, exp.And | exp.Or) and not isinstance(_above(node), exp.And | exp.Or | exp.Not):
            _check_distinct(list(_atoms(node)), failing)
        elif isinstance(node, exp.If | exp.Case | exp.Nvl2):
            values = [n for n in node.walk() if n.arg_key in ("true", "false", "default") and _choice(n) is node]
            if len({_key(value) for value in values}) < len(values) and _fails(node, failing):
                raise NoFormError("a choice between equal values that may fail is left to Spark")
        elif isinstance(node, exp.EQ | exp.NEQ | exp.NullSafeEQ | exp.NullSafeNEQ):
            _check_distinct([node.this, node.expression], failing)


def check_filter(tree: exp.Expr, failing: Collection[int]) -> None:
    """Raise where a filter may look for NULLs sooner or later than where that is written."""
    parts = list(conjuncts(tree))
    for part in parts:
        others = [other for other in parts if other is not part]
        if not others or not _fails(part, failing):
            continue
        shared = {name for other in others for name in _names(other)} & set(_names(part))
        if shared and any(isinstance(node, _TOLERANT) for node in part.walk()):
            raise NoFormError("a condition that may fail, next to another one about the same column")
        if any(_tests_null(other) for other in others):
            # Spark tests for IS NOT NULL last, unless it is about a column of the other condition.
            raise NoFormError("IS NOT NULL next to a condition that may fail is left to Spark")


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that AND connects at the top."""
    if isinstance(node, exp.Paren):
        yield from conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


def _check_distinct(nodes: Sequence[exp.Expr], failing: Collection[int]) -> None:
    if any(_fails(node, failing) for node in nodes) and len({_key(node) for node in nodes}) < len(nodes):
        raise NoFormError("equal conditions or operands next to one that may fail are left to Spark")


def _atoms(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.And | exp.Or):
        yield from _atoms(node.this)
        yield from _atoms(node.expression)
    elif isinstance(node, exp.Paren | exp.Not):
        yield from _atoms(node.this)
    else:
        yield node


def _fails(node: exp.Expr, failing: Collection[int]) -> bool:
    return any(id(inner) in failing for inner in node.walk())


def _key(node: exp.Expr) -> Key:
    """Equal for pieces that Spark may find equal: the order of operands does not count."""
    return tuple(sorted(_SAME.get(word, word) for word in _WORD.findall(node.sql("spark").lower())))


def _tests_null(node: exp.Expr) -> bool:
    if isinstance(node, exp.Not):
        return isinstance(node.this.unnest(), exp.Is)
    return isinstance(node, exp.Anonymous) and node.name.lower() == "isnotnull"


def _names(node: exp.Expr) -> Iterator[str]:
    for column in node.find_all(exp.Column):
        yield column.parts[0].name.lower()


def _above(node: exp.Expr) -> exp.Expr | None:
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return parent


def _choice(node: exp.Expr) -> exp.Expr | None:
    parent = node.parent
    return parent.parent if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case) else parent


def _place(node: exp.Expr) -> Place:
    place: Place = "always"
    while node.parent is not None:
        step = _step(node, node.parent)
        if step == "branch":
            return "operand" if place == "operand" else "branch"
        if step == "operand":
            place = "operand"
        node = node.parent
    return place


def _step(node: exp.Expr, parent: exp.Expr) -> Place:
    if isinstance(parent, _CHOICES) and node.arg_key != "this":
        return "always" if isinstance(parent, exp.Case) and node.arg_key == "ifs" and not node.index else "branch"
    if isinstance(parent, exp.Anonymous):
        return "always" if not node.index and parent.name.lower() not in _BACKWARDS_NAMES else "operand"
    first = "expression" if isinstance(parent, _BACKWARDS) else "this"
    return "always" if node.arg_key == first else "operand"
