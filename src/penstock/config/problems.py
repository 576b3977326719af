"""Problems of a pipeline file with their locations, and the error that contains them all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.errors import DefinitionError

Path = tuple[str | int, ...]
"""The path of a value inside the file: `("sinks", 0, "keys")`."""


def path_text(path: Path) -> str:
    """A path as a person writes it: `sinks[0].keys`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a misspelling of."""
    by_folded = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the likely word, if there is one."""
    found = suggest(word, known)
    return f'did you mean "{found}"?' if found else None


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong: where, what, both sides of the fact, and what to do."""

    file: str
    line: int
    column: int
    path: str
    message: str
    context: tuple[str, ...] = ()
    hint: str | None = None

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column} " + (f"{self.path}: " if self.path else "")
        rest = [*self.context, *(self.hint.splitlines() if self.hint else ())]
        return head + "\n  ".join([self.message, *rest])


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a scalar or collection starts, and the original text of a scalar."""

    line: int
    column: int
    text: str = ""
    line_starts: tuple[tuple[int, int], ...] = ()
    """Where each line of the text starts in the file; empty where escapes or folding hide that."""

    def at(self, offset: int) -> tuple[int, int]:
        """The line and column in the file of a place inside the text."""
        before = self.text[:offset].split("\n")
        if len(before) > len(self.line_starts):
            return self.line, self.column
        line, column = self.line_starts[len(before) - 1]
        return line, column + len(before[-1])


@dataclass(frozen=True, slots=True)
class Positions:
    """Where everything in a pipeline file is."""

    file: str
    values: dict[Path, Spot] = field(default_factory=dict)
    keys: dict[Path, Spot] = field(default_factory=dict)

    def problem(
        self,
        path: Path,
        message: str,
        *,
        context: Iterable[str] = (),
        hint: str | None = None,
        offset: int | None = None,
        at_key: bool = False,
    ) -> Problem:
        """A problem at a path: at its value, at its key, or at an offset into its text."""
        line, column = self._place(path, offset, at_key)
        return Problem(self.file, line, column, path_text(path), message, tuple(context), hint)

    def written(self, path: Path) -> str:
        """The value as the file has it, cut short, for a message. References are never resolved here."""
        spot = self.values.get(path)
        text = spot.text if spot else ""
        return text if len(text) <= 60 else text[:57] + "..."

    def _place(self, path: Path, offset: int | None, at_key: bool) -> tuple[int, int]:
        if path in self.values:
            spot = self.keys.get(path, self.values[path]) if at_key else self.values[path]
            return spot.at(offset) if offset is not None else (spot.line, spot.column)
        # Missing keys are reported at the key of their section.
        for end in range(len(path) - 1, 0, -1):
            found = self.keys.get(path[:end]) or self.values.get(path[:end])
            if found:
                return found.line, found.column
        return 1, 1


class TextError(ValueError):
    """A syntax error in embedded text, with its offset."""

    def __init__(self, message: str, offset: int = 0, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.offset, self.hint = message, offset, hint


class InvalidDefinition(DefinitionError):  # noqa: N818 - named for what the user's file is
    """A pipeline file with everything that is wrong with it, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems)))
        count = len(self.problems)
        super().__init__("INVALID_DEFINITION", f"{count} problem{'s' if count != 1 else ''} in the pipeline file")

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def __reduce__(self) -> tuple[object, ...]:
        return InvalidDefinition, (self.problems,)
