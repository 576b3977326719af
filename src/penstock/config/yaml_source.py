"""Reads YAML text into plain values with their positions.

Nothing is lost silently: duplicate keys, empty values, tags and numbers that YAML 1.1 reads differently are problems. A
file that is too large or too deep is refused while its events are parsed, before anything is built from it: PyYAML
composes nodes by recursion in C, where too many levels end the process. One whose aliases multiply is refused before
they are expanded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from penstock.config.fields import may_hold_secret
from penstock.config.problems import InvalidDefinition, Path, Positions, Problem, Spot, TextError

MAX_BYTES = 1024 * 1024
MAX_VALUES = 20_000
MAX_DEPTH = 40
_LONGEST_NUMBER = 40

TAG = "tag:yaml.org,2002:"
_ORDINARY_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|(0|[1-9][0-9_]*)?\.[0-9]+([eE][-+][0-9]+)?)")
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that no path, client or file accepts."""
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TAGS = ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
_OPENED = {
    "while parsing a flow sequence": "the list opened with [",
    "while parsing a flow mapping": "the mapping opened with {",
    "while parsing a block mapping": "the mapping that starts",
    "while parsing a block collection": "the list that starts",
    "while scanning a quoted scalar": "the text whose quote opens",
}
_RESOLVER: Any = yaml.resolver.Resolver()
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Document:
    """A YAML file as read: its values, their positions, and the problems found so far."""

    positions: Positions
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[Path] = field(default_factory=set)
    """Paths that already have a problem; nothing more is reported for them."""
    filled: set[Path] = field(default_factory=set)
    """Paths whose values came, wholly or in part, through a reference."""

    def written(self, *path: str | int) -> bool:
        """Whether the file has this key, valid or not."""
        return value_at(self.data, path) is not None or path in self.broken

    def report(
        self,
        path: Path,
        message: str,
        *,
        context: Iterable[str] = (),
        hint: str | None = None,
        offset: int | None = None,
        at_key: bool = False,
    ) -> None:
        """Add a problem, unless the path is part of something already reported."""
        if any(path[:end] in self.broken for end in range(1, len(path) + 1)):
            return
        if path in self.filled:
            offset = None
        problem = self.positions.problem(path, message, context=context, hint=hint, offset=offset, at_key=at_key)
        self.problems.append(problem)

    def report_error(self, path: Path, error: TextError) -> None:
        """Add what is wrong with the text at a path."""
        self.report(path, error.message, offset=error.offset, hint=error.hint)


@dataclass(frozen=True, slots=True)
class Given:
    """One section as the file has it: which of its keys are there, valid or not, and the problems with them."""

    document: Document
    path: Path

    def __contains__(self, key: str) -> bool:
        return self.document.written(*self.path, key)

    def __getitem__(self, key: str) -> Any:
        return value_at(self.document.data, (*self.path, key))

    def at(self, *keys: str | int) -> Path:
        """The path of something inside the section."""
        return (*self.path, *keys)

    def section(self, key: str) -> Given | None:
        """The section under a key, if there is one."""
        return Given(self.document, (*self.path, key)) if isinstance(self[key], dict) else None

    def report(
        self, at: str | Path, message: str, hint: str | None = None, *, context: Iterable[str] = (), at_key: bool = True
    ) -> None:
        """Report a problem at a key of the section, or at a path inside it; at the empty path it is the section's."""
        inside = (at,) if isinstance(at, str) else at
        self.document.report((*self.path, *inside), message, context=context, hint=hint, at_key=at_key)

    def refuse(self, keys: Iterable[str], why: str, hint: str) -> None:
        """Report each of these keys that is there."""
        for key in keys:
            if key in self:
                self.report(key, f"{key} {why}", hint)

    def at_most_one(self, keys: Sequence[str]) -> None:
        """Report more than one of some keys, at the second one in the file."""
        positions = self.document.positions.keys
        given = sorted((key for key in keys if key in self), key=lambda key: positions[*self.path, key].line)
        if len(given) > 1:
            line = positions[*self.path, given[0]].line
            message = f"only one of {', '.join(keys[:-1])} and {keys[-1]} can be given; {given[0]} is at line {line}"
            self.report(given[1], message, f"remove {' or '.join(given)}")

    def at_least_one(self, keys: Sequence[str]) -> None:
        """Report that none of some keys is there."""
        if not any(key in self for key in keys):
            self.report((), f"one of {', '.join(keys[:-1])} and {keys[-1]} is needed")


def read_document(
    file: FilePath, keys: str = "name, source, decode, sinks, checkpoint", *, any_value: bool = False
) -> Document:
    """Read a file that is a mapping with the given keys. Raises `InvalidDefinition` otherwise.

    `any_value` is for values without a type: null is allowed, and ambiguous words such as `NO` are problems.
    """
    name = str(file)
    text = _read_text(file, name)
    root = _compose(name, text)
    if not isinstance(root, yaml.MappingNode):
        raise InvalidDefinition([_not_a_mapping(name, root, keys, any_value)])
    return _Reading(name, text, any_value).read(root)


def _compose(name: str, text: str) -> yaml.Node | None:
    try:
        _check_bounds(name, text)
        root: yaml.Node | None = yaml.compose(text, Loader=Loader)
        return root
    except yaml.MarkedYAMLError as error:
        raise InvalidDefinition([_syntax_problem(name, text, error)]) from None
    except yaml.reader.ReaderError as error:
        where = text[: error.position] if isinstance(error.position, int) else ""
        line, column = where.count("\n") + 1, len(where) - where.rfind("\n")
        message = f"a character that YAML does not allow: {error.character!r}"
        raise InvalidDefinition([Problem(name, line, column, "", message)]) from None


def _check_bounds(name: str, text: str) -> None:
    """Refuse a file that is too deep or has too many values, also those of its aliases: before it is built."""

    def refusal(event: Any, message: str) -> InvalidDefinition:
        mark = event.start_mark
        return InvalidDefinition([Problem(name, mark.line + 1, mark.column + 1, "", message)])

    values, sizes = 0, dict[str | None, int]()
    first: Any = None
    opened: list[tuple[Any, int]] = [(None, 0)]  # Each collection with the values in it so far, the file first.
    for event in yaml.parse(text, Loader=Loader):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            start, size = opened.pop()
            sizes[start.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            around = next((start for start, _ in opened[1:] if start.anchor == event.anchor), None)
            if around is not None:
                raise refusal(around, "an alias (*) that contains itself")
            size = sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = size = 1
        opened[-1] = (opened[-1][0], opened[-1][1] + size)
        if isinstance(event, yaml.NodeEvent):
            values, first = values + 1, first or event
        if len(opened) > MAX_DEPTH + 2:
            raise refusal(event, f"nested more than {MAX_DEPTH} levels deep")
        if values > MAX_VALUES:
            raise refusal(event, f"the file has more than {MAX_VALUES:,} values, the maximum")
    total = opened[0][1]
    if total > MAX_VALUES:
        raise refusal(first, f"the file expands to {total:,} values; a pipeline file has at most {MAX_VALUES:,}")


def _read_text(file: FilePath, name: str) -> str:

    def refuse(message: str, hint: str | None = None, at: tuple[int, int] = (1, 1)) -> InvalidDefinition:
        return InvalidDefinition([Problem(name, *at, "", message, (), hint)])

    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > MAX_BYTES:
                raise refuse(f"the file has {size:,} bytes; a pipeline file has at most {MAX_BYTES:,}")
            content = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse("no such file", "to start a new pipeline: penstock init") from None
    except OSError as error:
        raise refuse(f"reading the file: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise refuse(f"the file is larger than {MAX_BYTES:,} bytes, the maximum for a pipeline file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        at = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise refuse("the file is not valid UTF-8 here", "save it as UTF-8", at) from None


def _not_a_mapping(name: str, root: Any, keys: str, cases: bool) -> Problem:
    expected = (f"expected: a mapping with {keys}",)
    if root is None and cases:
        return Problem(name, 1, 1, "", "the file is empty", expected)
    if root is None:
        return Problem(name, 1, 1, "", "the file is empty", (), "to start a new pipeline: penstock init")
    kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
    line, column = root.start_mark.line + 1, root.start_mark.column + 1
    return Problem(name, line, column, "", f"the file is {kind}", expected)


def _syntax_problem(name: str, text: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = (error.problem or "cannot be read").removeprefix("but ").replace("did not find expected", "expected")
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    hint = None
    if problem == "found another document":
        problem, hint = "the file has several documents", "one file is one pipeline: remove the ---"
    elif problem == "expected key":
        problem, hint = "expected a key here", "check the lines before it for an unclosed quote or wrong indentation"
    elif "\t" in here[: max(column, len(here) - len(here.lstrip()))]:
        problem, hint = "a tab in the indentation", "indent YAML with spaces"
    elif "${" in here:
        hint = 'inside [ ] and { } a reference needs quotes: "${env:NAME}"'
    elif here.lstrip().startswith(("@", "`")) or here[column - 1 : column] in ("@", "`", "%"):
        hint = "quote a value that starts with this character"
    context: tuple[str, ...] = ()
    if error.context_mark and error.context in _OPENED and hint is None:
        context = (f"in {_OPENED[error.context]} at line {error.context_mark.line + 1}",)
    return Problem(name, line, column, "", f"not valid YAML: {problem}", context, hint)


_BROKEN: Any = object()
"""Placeholder for a value with a problem."""


class _Reading:
    """One walk over the nodes of a file."""

    def __init__(self, name: str, text: str, any_value: bool) -> None:
        self._document, self._text, self._any_value = Document(Positions(name)), text, any_value

    def read(self, root: yaml.MappingNode) -> Document:
        self._document.data = self._mapping(root, ())
        return self._document

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        positions, broken = self._document.positions, self._document.broken
        positions.values[path] = self._spot(node)
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_spot = self._spot(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == TAG + "merge":
                what = "merge keys (<<)" if isinstance(key_node, yaml.ScalarNode) else "keys that are not plain text"
                self._add(path, key_spot, f"{what} are not supported", "write the keys out")
                continue
            key: str = key_node.value
            here = (*path, key)
            if key in found or here in broken:
                line = positions.keys[here].line
                self._add(here, key_spot, f'duplicate key "{key}"; first at line {line}')
                continue
            positions.keys[here] = key_spot
            value = self._value(value_node, here)
            if value is _BROKEN:
                broken.add(here)
            else:
                found[key] = value
        return found

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._document.positions.values[path] = spot = self._spot(node)
        if node.tag.removeprefix(TAG) not in _TAGS:
            return self._add(
                path, spot, f"the tag {node.tag.replace(TAG, '!!')} is not supported", "write a plain value"
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
            self._document.broken.update((*path, index) for index, item in enumerate(items) if item is _BROKEN)
            return [None if item is _BROKEN else item for item in items]
        return self._scalar(node, path, spot)

    def _scalar(self, node: Any, path: Path, spot: Spot) -> Any:
        tag, text = node.tag.removeprefix(TAG), spot.text
        shown = "this" if may_hold_secret(path) else text
        if tag == "null":
            return (
                None if self._any_value else self._add(path, spot, "the value is missing", "add one, or remove the key")
            )
        if tag == "bool":
            if self._any_value and text.lower() not in ("true", "false"):
                return self._add(path, spot, f"YAML 1.1 reads {text} as true or false", f'quote it: "{text}"')
            if text.lower() in _BOOLEANS:
                return _BOOLEANS[text.lower()]
            message = f"YAML 1.1 reads {shown} as true or false, but it is neither"
            return self._add(path, spot, message, "write true or false")
        if tag in ("int", "float"):
            hint = "quote it if it is text"
            if len(text) > _LONGEST_NUMBER:
                return self._add(path, spot, f"a number of {len(text):,} characters", hint)
            number = read_number(node)
            if number is None:
                return self._add(path, spot, f"YAML 1.1 reads {shown} as a number, and it is not", hint)
            if not _ORDINARY_NUMBER.fullmatch(text):
                read = "another number" if may_hold_secret(path) else number
                return self._add(path, spot, f"YAML 1.1 reads {shown} as {read}", f"write it plainly, or {hint}")
            return number
        if _UNUSABLE.search(text):
            return self._add(
                path, spot, "a character that is not allowed in a value: a zero byte or half a surrogate pair"
            )
        return text

    def _add(self, path: Path, spot: Spot, message: str, hint: str | None = None) -> Any:
        positions = Positions(self._document.positions.file, {path: spot})
        self._document.problems.append(positions.problem(path, message, hint=hint))
        return _BROKEN

    def _spot(self, node: yaml.Node) -> Spot:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        if not isinstance(node, yaml.ScalarNode):
            return Spot(line, column)
        written = self._text[node.start_mark.index : node.end_mark.index]
        return Spot(line, column, node.value, _line_starts(node.value, written, line, column))


def read_plain(text: str) -> int | float | bool | str | None:
    """A text as YAML 1.1 reads it without quotes; None for text that looks like a number and is not one."""
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    if tag == f"{TAG}bool":
        return _BOOLEANS[text.lower()]
    if tag in (f"{TAG}int", f"{TAG}float"):
        return read_number(yaml.ScalarNode(tag, text)) if len(text) <= _LONGEST_NUMBER else None
    return text if tag == f"{TAG}str" else None


def read_number(node: yaml.ScalarNode) -> int | float | None:
    """The value of a scalar that YAML 1.1 reads as a number; None if it has none, as in `0b_`."""
    constructor = yaml.constructor.SafeConstructor()
    is_int = node.tag == f"{TAG}int"
    try:
        return constructor.construct_yaml_int(node) if is_int else constructor.construct_yaml_float(node)
    except (ValueError, IndexError, OverflowError):
        return None


def _line_starts(value: str, written: str, line: int, column: int) -> tuple[tuple[int, int], ...]:
    if written == value:
        return ((line, column),) if "\n" not in value else ()
    if written[1:-1] == value and "\n" not in value:
        return ((line, column + 1),)
    if not written.startswith("|"):
        return ()
    starts = []
    raw_lines = written.split("\n")[1:]
    for number, text in enumerate(value.rstrip("\n").split("\n")):
        raw = raw_lines[number] if number < len(raw_lines) else ""
        if not raw.endswith(text):
            return ()
        starts.append((line + 1 + number, len(raw) - len(text) + 1))
    return tuple(starts)


def value_at(data: Mapping[str, Any], path: Path) -> Any:
    """The value at a path, or None."""
    found: Any = data
    for part in path:
        inside = isinstance(found, dict) and part in found
        inside = inside or (isinstance(found, list) and isinstance(part, int) and part < len(found))
        if not inside:
            return None
        found = found[part]
    return found


def put(data: dict[str, Any], path: Path, value: Any) -> None:
    """Replace the value at a path."""
    holder: Any = value_at(data, path[:-1])
    holder[path[-1]] = value
