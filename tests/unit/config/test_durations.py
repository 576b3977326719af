from datetime import timedelta

import pytest

from penstock.config.fields import parse_duration, parse_size, show_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 seconds", 10_000),
        ("1 second", 1000),
        ("500 ms", 500),
        ("500ms", 500),
        ("2 minutes", 120_000),
        ("1.5 hours", 5_400_000),
        ("1 day", 86_400_000),
        (" 3 S ", 3000),
    ],
)
def test_parse_duration_written_form_gives(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("text", ["", "10", "ten seconds", "10 sconds", "-1 s", "1e3 s", "0 s", "1 2 s"])
def test_parse_duration_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unit|number|longer"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("10 MiB", 10 * 1024**2), ("1 GB", 10**9), ("64kib", 65536), ("123", 123), ("1.5 KiB", 1536), ("7 bytes", 7)],
)
def test_parse_size_written_form_gives(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["500 ms", "10 seconds", "1 minute", "90 seconds", "36 hours", "2 days"])
def test_show_duration_gives_back_what_was_written(text: str) -> None:
    assert show_duration(parse_duration(text)) == text
