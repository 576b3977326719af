"""The columns that a step of the file sees, and the checks of names and expressions against them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.config.ddl import ColumnsError, ColumnType, read_columns
from penstock.config.expressions import ExpressionError, Reference, read_expression
from penstock.config.fields import COORDINATES
from penstock.config.problems import Path, did_you_mean
from penstock.config.yaml_source import Document

Types = dict[str, ColumnType | None]
TIMESTAMP = ColumnType("TIMESTAMP")
_FUNCTIONS_WITHOUT_PARENTHESES = {"user"}
_OWN_PIPELINE = "write the result to a topic, and read that topic in a separate pipeline"


def step_at(path: Path) -> str:
    """How messages call the step at a path."""
    return f"{path[-3]}[{path[-2]}]"


@dataclass(slots=True)
class Scope:
    """The columns at some step, which each step changes as it does those of the rows."""

    file: Document
    types: Types | None = None
    """None if the names are only known to Spark; a type is None if only the type is unknown."""
    decoded: bool = True
    """Whether the columns are still those of the decoder."""
    gone: dict[str, str] = field(default_factory=dict)
    """Columns that an earlier step removed, and how."""
    watermark: str | None = None
    """The event-time column, if there is a watermark."""
    closed: str | None = None
    """The step that ended the event time."""
    needs_quarantine: list[Path] = field(default_factory=list)
    """The settings that send records to the quarantine."""

    def names(self) -> tuple[str, ...]:
        """The names, without the coordinates."""
        return tuple(name for name in self.types or () if name != COORDINATES)

    def type_of(self, name: str) -> ColumnType | None:
        """The type of a column, if known."""
        return (self.types or {}).get(name)

    def give(self, columns: Iterable[tuple[str, ColumnType | None]]) -> None:
        """Let these be the columns from here on."""
        self.types = dict(columns)

    def give_own(self, columns: Iterable[tuple[str, ColumnType | None]] | None, path: Path) -> None:
        """Let the columns be those that the step at a path makes itself; the coordinates of a record stay with them."""
        coordinates = self.type_of(COORDINATES)
        self.gone = dict.fromkeys(self.types or (), f"not in the output of {step_at(path)}")
        self.types = {**dict(columns), COORDINATES: coordinates} if columns is not None else None

    def give_declared(self, text: str | None, path: Path) -> None:
        """The same with the columns of the step's `schema:`, which is at the path."""
        columns = None
        try:
            columns = [(one.name, one.type) for one in read_columns(text)] if text is not None else None
        except ColumnsError as error:
            self.file.report_error(path, error)
        self.give_own(columns, path[:-1])

    def close(self, what: str, path: Path) -> None:
        """The event time ends with the step at a path."""
        self.closed, self.watermark = f"the {what} of {step_at(path)}", None

    def selected(self, names: Collection[str], reason: str) -> Scope:
        """The scope of these columns and the coordinates alone."""
        if self.types is None:
            return self
        left = {name: kind for name, kind in self.types.items() if name in (*names, COORDINATES)}
        return Scope(self.file, left, False, self.gone | {name: reason for name in self.types if name not in left})

    def has(self, path: Path, name: str, *, at_key: bool = False, coordinates: str | None = None) -> bool:
        """Whether a column exists, as far as known; reported if not. `coordinates` is the reason why the coordinates
        cannot be used."""
        if coordinates is not None and name == COORDINATES:
            message = f'"{COORDINATES}" carries the coordinates and {coordinates}'
            self.file.report(path, message, at_key=at_key)
            return False
        if self.types is None or name in self.types:
            return True
        self._report_missing(path, name, at_key=at_key)
        return False

    def check_expression(self, text: str, path: Path) -> None:
        """Report what is wrong with an expression over the columns."""
        try:
            references = read_expression(text)
        except ExpressionError as error:
            self.file.report_error(path, error)
            return
        for reference in references:
            self.check_reference(reference, path)

    def check_reference(self, reference: Reference, path: Path, *, fold: bool = False) -> None:
        """Report a column or struct field that is not there. `fold` ignores the case, as Spark does."""
        if self.types is None:
            return
        name, *fields = reference.parts
        if fold:
            name = next((column for column in self.types if column.lower() == name.lower()), name)
        if name not in self.types:
            if name.lower() not in _FUNCTIONS_WITHOUT_PARENTHESES:
                self._report_missing(path, name, offset=reference.offsets[0])
            return
        found, at = self.types[name], name
        for part, offset in zip(fields, reference.offsets[1:], strict=True):
            if found is None or found.name in ("MAP", "ARRAY"):
                return
            if found.name != "STRUCT":
                self.file.report(path, f'column "{at}" is {found} and has no field "{part}"', offset=offset)
                return
            inner = {column.name.lower(): column.type for column in found.fields}
            names = [column.name for column in found.fields]
            if part.lower() not in inner:
                context = [f"fields of {at}: {', '.join(names)}"]
                hint = did_you_mean(part, names)
                self.file.report(path, f'"{at}" has no field "{part}"', context=context, hint=hint, offset=offset)
                return
            found, at = inner[part.lower()], f"{at}.{part}"

    def check_columns(self, names: Sequence[str], path: Path) -> None:
        """Report names that are not columns or are duplicated."""
        for index, name in enumerate(names):
            if name in names[:index]:
                self.file.report((*path, index), f'duplicate column "{name}"')
            elif name == COORDINATES:
                self.file.report(
                    (*path, index), f'"{COORDINATES}" is different for every record and cannot be used here'
                )
            else:
                self.has((*path, index), name)

    def check_new(self, name: str, path: Path, *, replaces: bool = False, without: Iterable[str] = ()) -> None:
        """Report a name that a new column cannot have."""
        if name == COORDINATES:
            message = f'"{COORDINATES}" is reserved for the coordinates; choose another name'
            self.file.report(path, message, at_key=replaces)
            return
        for other in self.types or ():
            if other.lower() == name.lower() and not (replaces and other == name) and other not in without:
                case = "" if other == name else "; table columns are case-insensitive"
                self.file.report(path, f'column "{other}" already exists{case}', at_key=replaces)

    def check_quarantined(self, setting: Path, at: Path | None = None) -> None:
        """A setting sends records to the quarantine: they are found again by their coordinates."""
        self.needs_quarantine.append(setting)
        if self.types is not None and COORDINATES not in self.types:
            message = f'a record is quarantined by its coordinates, but the column "{COORDINATES}" is gone'
            self.file.report(at or setting, message, hint=f"select {COORDINATES} in the previous step", at_key=True)

    def check_event_time(self, path: Path, what: str, why: str) -> None:
        """Report a step that needs a watermark and has none."""
        if self.closed is not None:
            self.file.report(path, f"{what} is not possible after {self.closed}", hint=_OWN_PIPELINE, at_key=True)
        elif self.watermark is None:
            hint = "add before it - watermark: {column: ..., delay: 10 minutes}"
            self.file.report(path, f"{what} needs a watermark before it: {why}", hint=hint, at_key=True)
        elif self.types is not None and self.watermark and self.watermark not in self.types:
            message = f'the column "{self.watermark}" of the watermark is gone at this step'
            context = [self.gone[self.watermark]] if self.watermark in self.gone else []
            self.file.report(path, message, context=context, at_key=True)

    def check_watermark(self, column: str, path: Path) -> None:
        """Report a second watermark, and one that is not a TIMESTAMP."""
        if self.closed is not None:
            message = f"there is no event time after {self.closed}"
            self.file.report(path, message, hint=_OWN_PIPELINE, at_key=True)
        elif self.watermark:
            self.file.report(path, "there is already a watermark", hint="keep one of them", at_key=True)
        here = (*path, "column")
        kind = self.type_of(column)
        if self.has(here, column) and kind is not None and kind != TIMESTAMP:
            hint = f"cast it before: cast: {{{column}: TIMESTAMP}}"
            self.file.report(here, f'column "{column}" is {kind}; event time is a TIMESTAMP', hint=hint)
        self.watermark = column

    def _report_missing(self, path: Path, name: str, *, offset: int | None = None, at_key: bool = False) -> None:
        place = "in the decoded schema" if self.decoded else "available at this step"
        label = "decoded columns" if self.decoded else "columns here"
        context = [f"{label}: {', '.join(self.names()) or 'none'}"]
        hint = did_you_mean(name, self.names())
        if name in self.gone:
            context, hint = [*context, self.gone[name]], None
        self.file.report(
            path, f'column "{name}" is not {place}', context=context, hint=hint, offset=offset, at_key=at_key
        )
