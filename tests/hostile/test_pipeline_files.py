"""Hostile pipeline files: each ends in problems with a place, in time, and takes nothing else down."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.config import InvalidDefinition, load
from penstock.config.cases import read_case_document

DEFINITIONS = Path(__file__).parents[1] / "definitions"
LONGEST_SECONDS = 1.0
SCALARS = (
    "0b_", "0x_", "-0x_", "0o", "1:60:", "._", ".inf", ".nan", "-", "+", "=", "0b2", "1__", "1e999", "9" * 41,
    "!!int x", '!!int ""', '!!int "_"', "!!int 1.5", '!!int "!!python/name:os.system"', '!!int "["', "!!int '*a'",
    "!!float 0x1", "!!float x", "!!bool x", "!!null x", "!!map x", "!!str [a]", "!!seq {a: b}", "!!binary x", "!x y",
    "!!timestamp x", '"\\0"', '"\\ud800"', '"\\x07"', "~nobody-of-this-name/x", "${env:}", "${env:A\\0}",
    '"${file:\\0}"',
    "${file:~nobody-of-this-name/x}", "${file:.}", "${", "${}", "${env:PATH:-${", "*a", "&a [*a]", "<<", "<<: *a",
    "? [a]", "? {a: b}", "{", "[", "[[", "|", ">-", "|9", "%", "@", "`", "---", "...", "- - - -", "\t", "\x85",
    "\u2028",
)  # fmt: skip
TEXTS = (
    *("(" * 2000, "[" * 2000, "{a: " * 300, "- " * 2000, "NOT " * 2000),
    *("a.b" * 2000, "CASE WHEN " * 500, "struct<a:" * 500),
)


def mutated(chance: random.Random, seeds: list[str]) -> str:
    """A file of some good ones and bad ones, changed in one to three places."""
    text = chance.choice(seeds)
    for _ in range(chance.randint(1, 3)):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        match chance.choices(range(7), (30, 10, 15, 10, 15, 10, 10))[0]:
            case 0:
                key, colon, _ = lines[at].partition(":")
                lines[at] = f"{key}{colon} {chance.choice(SCALARS)}" if colon else chance.choice(SCALARS)
            case 1:
                key, colon, _ = lines[at].partition(":")
                lines[at] = f"{key}{colon} {chance.choice(TEXTS)}"
            case 2:
                del lines[at : at + chance.randint(1, 4)]
            case 3:
                lines[at:at] = lines[at : at + chance.randint(1, 4)] * chance.randint(1, 50)
            case 4:
                other = chance.choice(seeds).split("\n")
                start = chance.randrange(len(other))
                lines[at:at] = other[start : start + chance.randint(1, 6)]
            case 5:
                place = chance.randint(0, len(lines[at]))
                lines[at] = (
                    lines[at][:place] + chance.choice((*SCALARS, chr(chance.randrange(1, 300)))) + lines[at][place:]
                )
            case _:
                lines[at] = " " * chance.randint(0, 8) + lines[at].lstrip()
        text = "\n".join(lines)
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The schemas and other files to which the good files refer."""
    shutil.copytree(DEFINITIONS / "valid", tmp_path / "pipelines")
    return tmp_path / "pipelines"


@pytest.mark.parametrize(
    ("count", "part"),
    [(int(os.environ.get("PENSTOCK_FUZZ", "300")), 0)]
    + [pytest.param(5_000, part, marks=pytest.mark.long) for part in range(1, 11)],
)
def test_load_mutated_files_end_in_problems_within_a_second(folder: Path, count: int, part: int) -> None:
    seeds = [file.read_text(encoding="utf-8") for file in sorted((DEFINITIONS / "valid").glob("*.yaml"))]
    chance = random.Random(int(os.environ.get("PENSTOCK_SEED", "19")) * 100 + part)
    file, slowest, refused = folder / "mutated.yaml", 0.0, 0
    for _ in range(count):
        text = mutated(chance, seeds)
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        began = time.process_time()
        try:
            load(file)
        except InvalidDefinition as error:
            assert error.problems and str(error)
            refused += 1
        except BaseException:
            print(text)
            raise
        took = time.process_time() - began
        assert took < LONGEST_SECONDS, f"{took:.1f} s for\n{text}"
        slowest = max(slowest, took)
    assert refused > count / 2
    print(f"{count} files, {refused} refused, the slowest took {slowest * 1000:.0f} ms")


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("read", [load, read_case_document], ids=["pipeline", "cases"])
def test_load_scalar_is_read_or_refused(folder: Path, scalar: str, read: object) -> None:
    file = folder / "one.yaml"
    file.write_text(f"name: {scalar}\nvalue: {scalar}\nlist: [1, {scalar}]\n", encoding="utf-8")
    with pytest.raises(InvalidDefinition):
        read(file)  # type: ignore[operator]
        raise InvalidDefinition([])


@pytest.mark.parametrize(
    "text",
    ["[" * 500_000, "{a: " * 250_000, "- " * 250_000, "a: " + "[" * 500_000, "? " * 400_000, "[,]" * 300_000,
     "\n".join(" " * n + "a:" for n in range(1400)), "&a " + "[" * 100_000, "[x" * 300_000],
    ids=["flow", "mappings", "dashes", "value", "keys", "flat", "blocks", "anchor", "texts"],
)  # fmt: skip
def test_validate_endless_nesting_is_refused_and_the_process_lives(tmp_path: Path, text: str) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(text, encoding="utf-8")
    began = time.monotonic()
    code = "import sys; from penstock.cli.main import main; sys.argv = ['penstock', *sys.argv[1:]]; main()"
    words = [sys.executable, "-c", code, "validate", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, (done.returncode, done.stderr[-300:])
    assert "nested more than 40 levels deep" in done.stderr or "not valid YAML" in done.stderr, done.stderr[-300:]
    assert time.monotonic() - began < 20
