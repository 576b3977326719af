import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.config.problems import InvalidDefinition
from penstock.config.yaml_source import Document, read_document


def read(tmp_path: Path, text: str) -> Document:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text, encoding="utf-8")
    return read_document(file)


@contextmanager
def peak_below(most_bytes: int) -> Iterator[None]:
    """What the block allocates at any one time stays below this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InvalidDefinition) as raised:
        read(tmp_path, text)
    (problem,) = raised.value.problems
    return f"{problem.line}:{problem.column} {problem.message}"


def test_read_document_alias_bomb_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    with peak_below(10_000_000):
        message = refusal(tmp_path, "\n".join(lines))
    assert message.startswith("1:1 the file expands to ")
    assert message.endswith("values; a pipeline file has at most 20,000")


def test_read_document_file_of_ten_megabytes_is_refused_without_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    with file.open("wb") as opened:
        opened.truncate(10_000_000)
    with peak_below(5_000_000), pytest.raises(InvalidDefinition) as raised:
        read_document(file)
    assert str(raised.value) == f"{file}:1:1 the file has 10,000,000 bytes; a pipeline file has at most 1,048,576"


def test_read_document_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match="no such file"):
        read_document(tmp_path / "nowhere.yaml")


def test_read_document_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match="reading the file: Is a directory"):
        read_document(tmp_path)


def test_read_document_deep_nesting_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a: " + "[" * 60 + "]" * 60).endswith("nested more than 40 levels deep")


def test_read_document_control_character_is_placed(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a: 1\nb: x\x07y") == "2:5 a character that YAML does not allow: 7"


def test_read_document_keys_stay_text_whatever_yaml_thinks_of_them(tmp_path: Path) -> None:
    source = read(tmp_path, "on: 1\n0: 2\n2026-01-01: 3\n")
    assert source.data == {"on": 1, "0": 2, "2026-01-01": 3}


def test_read_document_times_stay_text(tmp_path: Path) -> None:
    assert read(tmp_path, "start: 2026-01-31T08:00:00Z").data == {"start": "2026-01-31T08:00:00Z"}


def test_read_document_byte_order_mark_is_not_content(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: orders\n")
    assert read_document(file).data == {"name": "orders"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('é: "schön x"', (1, 11)),
        ("a: schön x", (1, 10)),
        ("a:\n  - where: 'schön x'", (2, 19)),
        ("a: |\n    schön\n    x", (3, 5)),
        ('a: "sch\\u00f6n x"', (1, 4)),
        ("a: >\n    schön\n    x", (1, 4)),
    ],
    ids=["quoted", "plain", "nested", "block", "escaped falls back", "folded falls back"],
)
def test_spot_offset_into_text_gives_place_in_file(tmp_path: Path, text: str, place: tuple[int, int]) -> None:
    spots = read(tmp_path, text).positions.values
    spot = next(spot for spot in spots.values() if "x" in spot.text)
    assert spot.at(spot.text.index("x")) == place


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "1:" + "59:" * 330_000 + "59", "1." + "0" * 5000])
def test_read_document_number_without_end_is_refused_at_once(tmp_path: Path, number: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"name: {number}\n")
    began = time.process_time()
    [problem] = read_document(file).problems
    assert problem.message == f"a number of {len(number):,} characters"
    assert time.process_time() - began < 10
