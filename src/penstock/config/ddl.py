"""Columns and their types as Spark SQL writes them: `order_id BIGINT NOT NULL, tags ARRAY<STRING>`, read without a JVM.

No Arrow here: checking a file does not need it. The text is cut into tokens by sqlglot's Spark dialect. Every error has
its offset in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.config.fields import COORDINATES
from penstock.config.problems import TextError, did_you_mean

SIMPLE: Mapping[str, str] = {
    "BOOLEAN": "bool_",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date32",
}
"""The types without parts, and the Arrow function that makes each."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A Spark SQL type."""

    name: str
    precision: int = 0
    scale: int = 0
    items: tuple[ColumnType, ...] = ()
    fields: tuple[Column, ...] = ()

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision}, {self.scale})"
        inner = [*map(str, self.items), *map(str, self.fields)]
        return f"{self.name}<{', '.join(inner)}>" if inner else self.name

    @property
    def nested(self) -> bool:
        """Whether it contains other values."""
        return self.name in ("ARRAY", "MAP", "STRUCT")


@dataclass(frozen=True, slots=True)
class Column:
    """A named type."""

    name: str
    type: ColumnType
    nullable: bool = True
    comment: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.nullable else " NOT NULL")


_ALIASES: Mapping[str, str] = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_INSTEAD: Mapping[str, str] = {
    "VARCHAR": "STRING",
    "CHAR": "STRING",
    "CHARACTER": "STRING",
    "TEXT": "STRING",
    "JSON": "STRING, or a STRUCT with named fields",
    "VARIANT": "STRING, or a STRUCT with named fields",
    "UUID": "STRING",
    "TIME": "STRING",
    "INTERVAL": "BIGINT with the unit of your choice",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP",
    "BOOL": "BOOLEAN",
    "INT64": "BIGINT",
    "INT32": "INT",
    "FLOAT64": "DOUBLE",
    "BYTES": "BINARY",
    "NUMBER": "DECIMAL(p, s), BIGINT or DOUBLE",
    "VOID": "a type: a column of only nulls is useless",
}
TYPES = (*SIMPLE, "DECIMAL", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY", "MAP", "STRUCT")
MAX_TYPE_DEPTH = 30


class ColumnsError(TextError):
    """A text of columns or of a type that is wrong."""


def read_columns(text: str) -> tuple[Column, ...]:
    """The columns that a text names. Raises `ColumnsError`."""
    parser = _Parser(text)
    columns = parser.columns(top=True)
    parser.end()
    return columns


def read_type(text: str) -> ColumnType:
    """The type that a text names. Raises `ColumnsError`."""
    parser = _Parser(text)
    found = parser.type()
    parser.end()
    return found


class _Parser:
    """Recursive descent over the tokens of a columns text."""

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._tokens: list[Token] = Spark().tokenize(text)
        except TokenError:
            raise ColumnsError("unclosed quote", max(text.rfind("'"), text.rfind("`"), 0)) from None
        self._next = 0
        self._depth = 0

    def columns(self, *, top: bool) -> tuple[Column, ...]:
        found: dict[str, Column] = {}
        while True:
            start = self._offset()
            column = self._column(top)
            other = found.setdefault(column.name.lower(), column)
            if other is not column:
                also = "" if other.name == column.name else f' (as "{other.name}"; names are case-insensitive)'
                raise ColumnsError(f'duplicate {self._noun(top)} "{column.name}"{also}', start)
            if not self._take(TokenType.COMMA):
                return tuple(found.values())

    def type(self) -> ColumnType:
        self._depth += 1
        if self._depth > MAX_TYPE_DEPTH:
            self._fail(f"types nested more than {MAX_TYPE_DEPTH} levels deep")
        start, name = self._offset(), self._word("a type")
        name = _ALIASES.get(name.upper(), name.upper())
        if name in SIMPLE or name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
            self._refuse_argument(name)
            found = ColumnType(name)
        elif name == "DECIMAL":
            found = self._decimal()
        elif name in ("ARRAY", "MAP", "STRUCT"):
            found = self._nested(name)
        else:
            instead = _INSTEAD.get(name)
            hint = f"use {instead}" if instead else did_you_mean(name, TYPES) or f"types: {', '.join(TYPES)}"
            raise ColumnsError(f"{name} is not a type that Penstock supports", start, hint)
        self._depth -= 1
        return found

    def end(self) -> None:
        if self._next < len(self._tokens):
            self._fail(f'unexpected "{self._tokens[self._next].text}"', "separate columns with commas")

    def _column(self, top: bool) -> Column:
        start, name = self._offset(), self._word(f"a {self._noun(top)} name")
        if top and name == COORDINATES:
            raise ColumnsError(f'"{COORDINATES}" is reserved for the coordinates; choose another name', start)
        self._take(TokenType.COLON)
        found = self.type()
        nullable, comment = True, None
        if self._take(TokenType.NOT):
            if not self._take(TokenType.NULL):
                self._fail("expected NULL after NOT")
            nullable = False
        if self._take(TokenType.COMMENT):
            if self._next >= len(self._tokens) or self._tokens[self._next].token_type != TokenType.STRING:
                self._fail("expected a comment in single quotes")
            comment = self._tokens[self._next].text
            self._next += 1
        return Column(name, found, nullable, comment)

    def _decimal(self) -> ColumnType:
        start = self._offset()
        if not self._take(TokenType.L_PAREN):
            return ColumnType("DECIMAL", 10, 0)
        precision, scale = self._number(), 0
        if self._take(TokenType.COMMA):
            scale = self._number()
        self._expect(TokenType.R_PAREN, ")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise ColumnsError(
                f"DECIMAL({precision}, {scale}) does not exist",
                start,
                "the first number is the total number of digits (1 to 38), the second the digits after the point",
            )
        return ColumnType("DECIMAL", precision, scale)

    def _nested(self, name: str) -> ColumnType:
        self._expect(TokenType.LT, f"< after {name}")
        if name == "STRUCT":
            found = ColumnType(name, fields=self.columns(top=False))
        elif name == "ARRAY":
            found = ColumnType(name, items=(self.type(),))
        else:
            key = self.type()
            self._expect(TokenType.COMMA, ", between the key's and the value's type")
            found = ColumnType(name, items=(key, self.type()))
        self._expect(TokenType.GT, f"> to close {name}")
        return found

    def _refuse_argument(self, name: str) -> None:
        if self._next < len(self._tokens) and self._tokens[self._next].token_type == TokenType.L_PAREN:
            self._fail(f"{name} takes no length", f"write {name}")

    def _word(self, expected: str) -> str:
        if self._next >= len(self._tokens):
            self._fail(f"expected {expected} at the end")
        token = self._tokens[self._next]
        quoted = token.token_type == TokenType.IDENTIFIER
        if not token.text or not (quoted or token.text.replace("_", "a").isalnum()):
            self._fail(f'expected {expected}, got "{token.text}"')
        if not quoted and token.text[0].isdigit():
            self._fail(f'expected {expected}, got "{token.text}"', "quote such a name with backticks")
        self._next += 1
        return token.text

    def _number(self) -> int:
        if self._next >= len(self._tokens) or not self._tokens[self._next].text.isdecimal():
            self._fail("expected a whole number")
        self._next += 1
        return int(self._tokens[self._next - 1].text)

    def _take(self, kind: TokenType) -> bool:
        if self._next < len(self._tokens) and self._tokens[self._next].token_type == kind:
            self._next += 1
            return True
        return False

    def _expect(self, kind: TokenType, what: str) -> None:
        if not self._take(kind):
            self._fail(f"expected {what}")

    def _offset(self) -> int:
        return self._tokens[self._next].start if self._next < len(self._tokens) else len(self._text.rstrip())

    def _fail(self, message: str, hint: str | None = None) -> NoReturn:
        raise ColumnsError(message, self._offset(), hint)

    @staticmethod
    def _noun(top: bool) -> str:
        return "column" if top else "field"
