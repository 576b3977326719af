"""Records a real `penstock demo` as docs/images/demo.svg: `python docs/record_demo.py`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path

from rich import _export_format
from rich.console import Console
from rich.segment import Segment

from penstock.cli import render

IMAGE = Path(__file__).parent / "images" / "demo.svg"
WIDTH = 96


def record(image: Path) -> None:
    """Run the demo in an empty folder and draw what it printed, with paths relative to that folder."""
    screen = Console(record=True, width=WIDTH, highlight=False, soft_wrap=True)
    render.out = screen
    from penstock.cli.dev import demo

    screen.print("[bold green]$[/] penstock demo")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        demo(Path("penstock-demo"), events=200_000, keep=False)
        here = os.path.realpath(folder) + os.sep
    screen._record_buffer[:] = [
        # Runs of blanks stand alone: some viewers cut them off at the ends of a piece of text.
        Segment(text, part.style)
        for part in Segment.filter_control(screen._record_buffer)
        for text in re.split(r"(^ +| +$| {2,})", part.text.replace(here, ""), flags=re.MULTILINE)
        if text
    ]
    image.parent.mkdir(exist_ok=True)
    svg = screen.export_svg(title="penstock demo", code_format=_without_web_fonts(), unique_id="demo")
    image.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE))


def _without_web_fonts() -> str:
    """Rich's picture, drawn with the reader's own fonts: a picture must not call a host."""
    plain = re.sub(r"@font-face \{\{.*?\}\}", "", _export_format.CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return plain.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace")


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGE)
