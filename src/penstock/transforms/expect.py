"""`expect`: rules that rows have to keep, as two steps.

The first computes a BOOLEAN column for each rule, in whichever way the lane computes columns. The second judges by
these columns, over Arrow in both lanes, and takes them away again. A rule is kept where its condition is true, and
broken where it is false or NULL, as in `where`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.config.step_columns import without
from penstock.errors import DefinitionError, TerminalError
from penstock.model import COMPUTED, COORDINATES, Refusal, Split
from penstock.transforms.columns import find_column, place_in_words, records_of
from penstock.transforms.derive import Derive
from penstock.transforms.expressions.parsing import invalid
from penstock.transforms.expressions.terms import sql_name
from penstock.transforms.step import OnError, Step, StepExpression

Flags = npt.NDArray[np.bool_]

BROKEN = "EXPECTATION_BROKEN"
"""The code of a row that goes to the quarantine."""


@dataclass(frozen=True, slots=True)
class ExpectRule:
    """A condition, and what becomes of the rows that break it. Broken ones are counted, whatever the action."""

    name: str
    condition: str
    action: Literal["drop", "quarantine", "warn", "fail"] = "quarantine"

    @property
    def column(self) -> str:
        """The column that says whether a row keeps the rule."""
        return f"{COMPUTED}rule_{self.name}"


def expect_steps(rules: Sequence[ExpectRule], on_error: OnError = "fail") -> tuple[Expect, ApplyRules]:
    """The two steps, one after the other, that hold rows to the rules. `on_error` is about a rule that fails itself."""
    return Expect(rules, on_error), ApplyRules(rules)


class Expect(Derive):
    """Computes for each rule whether a row keeps it."""

    def __init__(self, rules: Sequence[ExpectRule], on_error: OnError = "fail") -> None:
        super().__init__({rule.column: rule.condition for rule in rules}, on_error)
        self.rules = tuple(rules)

    def __repr__(self) -> str:
        return f"expect {', '.join(rule.name for rule in self.rules)}"

    @property
    def expressions(self) -> list[StepExpression]:
        """The rules, in the order of the file."""
        return [StepExpression(f"expect {rule.name}", rule.condition) for rule in self.rules]

    def check_type(self, number: int, kind: pa.DataType) -> None:
        """Raise where a rule is not BOOLEAN."""
        _check_boolean(self.rules[number], kind)


class ApplyRules(Step):
    """Does with each row what the strongest of its broken rules says: fail, quarantine, drop, warn."""

    def __init__(self, rules: Sequence[ExpectRule]) -> None:
        self.rules = tuple(rules)

    def __repr__(self) -> str:
        return f"act on broken rules: {', '.join(f'{rule.name} {rule.action}' for rule in self.rules)}"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns without those of the rules. Raises for a rule that is not BOOLEAN or cannot be applied."""
        for rule in self.rules:
            _check_boolean(rule, schema.field(find_column(rule.column, schema.names)).type)
        left = without(((field.name, field) for field in schema), (rule.column for rule in self.rules))
        names = [name for name, _ in left]
        for rule in self.rules:
            if rule.action == "quarantine" and COORDINATES not in names:
                raise DefinitionError(
                    "EXPECT_NEEDS_COORDINATES",
                    f"rule {rule.name} sends rows to the quarantine, and these no longer say which record they are of",
                    context={"needed": COORDINATES, "columns": ", ".join(names)},
                    hint=f"keep `{COORDINATES}` in the step that leaves it out, or set another action",
                )
        return pa.schema([field for _, field in left])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """ApplyRules the rows. Raises `EXPECTATION_FAILED` where one breaks a rule of action fail."""
        good = rows.select(self.output(rows.schema).names)
        broken = ~np.stack([_kept(rows.column(find_column(rule.column, rows.schema.names))) for rule in self.rules])
        counts = {rule.name: int(hits.sum()) for rule, hits in zip(self.rules, broken, strict=True)}
        self._fail(good, broken)
        refused = self._by("quarantine", broken)
        gone = refused | self._by("drop", broken)
        if not gone.any():
            return Split(good, counts=counts)
        refusals = tuple(self._refusals(good, broken, refused))
        return Split(good.filter(pa.array(~gone)), refused=refusals, counts=counts)

    def _by(self, action: str, broken: Flags) -> Flags:
        """The rows that break a rule of this action."""
        return np.asarray(broken[[rule.action == action for rule in self.rules]].any(axis=0))

    def _fail(self, rows: pa.RecordBatch, broken: Flags) -> None:
        for rule, hits in zip(self.rules, broken, strict=True):
            if rule.action != "fail" or not hits.any():
                continue
            first = place_in_words(rows, int(hits.argmax()))
            raise TerminalError(
                "EXPECTATION_FAILED",
                f"checking the rows: rule {rule.name} is broken, and its action is fail",
                context={"rule": rule.condition, "rows": str(hits.sum()), **first},
                hint="correct the rule, or set its action to quarantine, drop or warn",
            )

    def _refusals(self, rows: pa.RecordBatch, broken: Flags, refused: Flags) -> Iterator[Refusal]:
        if not refused.any():
            return
        records = records_of(rows, np.flatnonzero(refused).tolist())
        if None in records:
            raise TerminalError(
                "EXPECT_WITHOUT_RECORD",
                "quarantining rows: some that break a rule no longer say which record they are of",
                context={"column": COORDINATES, "rules": ", ".join(rule.name for rule in self.rules)},
                hint="put `expect` in front of the step that makes rows without a record, or set another action",
            )
        # Rows that break the same rules share one message.
        patterns, which = np.unique(broken[:, refused], axis=1, return_inverse=True)
        messages = [self._message(pattern) for pattern in patterns.T]
        for record, pattern in zip(records, which.tolist(), strict=True):
            assert record is not None
            yield Refusal(record, BROKEN, messages[pattern])

    def _message(self, pattern: Flags) -> str:
        rules = [rule for rule, hit in zip(self.rules, pattern, strict=True) if hit]
        return f"the row breaks {', '.join(f'{rule.name} ({rule.condition.strip()})' for rule in rules)}"


def _kept(column: pa.Array) -> Flags:
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _check_boolean(rule: ExpectRule, kind: pa.DataType) -> None:
    if kind != pa.bool_():
        raise invalid(rule.condition, f"rule {rule.name} gives {sql_name(kind)}, it has to give BOOLEAN")
