"""What the user's own code raised, as people look for it: the message, and the last line of theirs it came through."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError, TerminalError

_MOST = 200


def said(error: BaseException) -> str:
    """The type and the first line of the message."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def place_of(error: BaseException, folder: str) -> str:
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
        context={"raised": said(error), "at": place_of(error, folder)},
    )


@contextmanager
def told(step: str, folder: str) -> Iterator[None]:
    """What the user's code raises in here as an error of Penstock's."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise step_failed(step, folder, error) from error
