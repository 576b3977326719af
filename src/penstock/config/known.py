"""What is known about the columns at a step, and the checks of names and expressions against it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.config.ddl import ColumnType
from penstock.config.expressions import ExpressionError, Reference, read_expression
from penstock.config.fields import COORDINATES
from penstock.config.problems import Path, did_you_mean

_FUNCTIONS_WITHOUT_PARENTHESES = {"user"}


class Report(Protocol):
    """Takes what is wrong at a path."""

    def __call__(
        self,
        path: Path,
        message: str,
        *,
        context: Iterable[str] = (),
        hint: str | None = None,
        offset: int | None = None,
        at_key: bool = False,
    ) -> None:
        """Report a problem at a value, at its key, or at an offset into its text."""
        ...


@dataclass(slots=True)
class Known:
    """The columns at some step. `types` is None once they cannot be known."""

    types: dict[str, ColumnType | None] | None
    decoded: bool = True
    gone: dict[str, str] = field(default_factory=dict)
    """Columns that an earlier step took away, and how."""
    watermark: str | None = None
    """The column of the event time, where there is a watermark."""
    closed: str | None = None
    """The step that ended the event time."""
    needs_quarantine: list[Path] = field(default_factory=list)
    """The settings that send records to the quarantine."""

    def names(self) -> tuple[str, ...]:
        """The names, without the coordinates."""
        return tuple(name for name in self.types or () if name != COORDINATES)

    def missing(
        self, report: Report, path: Path, name: str, *, offset: int | None = None, at_key: bool = False
    ) -> None:
        """Report a column that is not there, with those that are."""
        place = "in the decoded schema" if self.decoded else "there at this step"
        label = "decoded columns" if self.decoded else "columns here"
        context = [f"{label}: {', '.join(self.names()) or 'none'}"]
        hint = did_you_mean(name, self.names())
        if name in self.gone:
            context, hint = [*context, self.gone[name]], None
        report(path, f'column "{name}" is not {place}', context=context, hint=hint, offset=offset, at_key=at_key)

    def has(self, report: Report, path: Path, name: str, *, at_key: bool = False) -> bool:
        """Whether a column is there; reported if not."""
        if self.types is None or name in self.types:
            return True
        self.missing(report, path, name, at_key=at_key)
        return False


def check_expression(text: str, known: Known, path: Path, report: Report) -> None:
    """Report what is wrong with an expression over the known columns."""
    try:
        references = read_expression(text)
    except ExpressionError as error:
        report(path, error.message, offset=error.offset, hint=error.hint)
        return
    for reference in references:
        check_reference(reference, known, path, report)


def check_reference(reference: Reference, known: Known, path: Path, report: Report, *, fold: bool = False) -> None:
    """Report a column or struct field that is not there. `fold` ignores the case, as Spark does."""
    if known.types is None:
        return None
    name, *fields = reference.parts
    if fold:
        name = next((column for column in known.types if column.lower() == name.lower()), name)
    if name not in known.types:
        if name.lower() not in _FUNCTIONS_WITHOUT_PARENTHESES:
            known.missing(report, path, name, offset=reference.offsets[0])
        return None
    found, at = known.types[name], name
    for part, offset in zip(fields, reference.offsets[1:], strict=True):
        if found is None or found.name in ("MAP", "ARRAY"):
            return None
        if found.name != "STRUCT":
            message = f'column "{at}" is {found} and has no field "{part}"'
            return report(path, message, offset=offset)
        inner = {column.name.lower(): column.type for column in found.fields}
        names = [column.name for column in found.fields]
        if part.lower() not in inner:
            context = [f"fields of {at}: {', '.join(names)}"]
            hint = did_you_mean(part, names)
            return report(path, f'"{at}" has no field "{part}"', context=context, hint=hint, offset=offset)
        found, at = inner[part.lower()], f"{at}.{part}"
    return None


def check_columns(names: Sequence[str], known: Known, path: Path, report: Report) -> None:
    """Report the names that are not columns or are there twice."""
    for index, name in enumerate(names):
        if name in names[:index]:
            report((*path, index), f'column "{name}" is here twice')
        elif name == COORDINATES:
            report((*path, index), f'"{COORDINATES}" differs for every record and cannot be used here')
        else:
            known.has(report, (*path, index), name)


def check_new(
    name: str,
    known: Known,
    path: Path,
    report: Report,
    *,
    replaces: bool = False,
    without: Iterable[str] = (),
) -> None:
    """Report a name that a new column cannot have."""
    if name == COORDINATES:
        report(path, f'"{COORDINATES}" is the column of the coordinates; choose another name', at_key=replaces)
        return
    for other in known.types or ():
        if other.lower() == name.lower() and not (replaces and other == name) and other not in without:
            case = "" if other == name else "; case makes no difference in a table"
            report(path, f'the column "{other}" is there already{case}', at_key=replaces)
