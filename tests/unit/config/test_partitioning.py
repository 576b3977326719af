from __future__ import annotations

import pytest

from penstock.config.sinks import PartitionText, parse_partition


@pytest.mark.parametrize(
    ("text", "entry", "written"),
    [
        ("country", PartitionText("country"), "country"),
        (" my column ", PartitionText("my column"), "my column"),
        ("days(event_time)", PartitionText("event_time", "day"), "days(event_time)"),
        ("Hour( t )", PartitionText("t", "hour"), "hours(t)"),
        ("months(t)", PartitionText("t", "month"), "months(t)"),
        ("years(t)", PartitionText("t", "year"), "years(t)"),
        ("bucket(16, id)", PartitionText("id", "bucket", 16), "bucket(16, id)"),
        ("truncate(8,name)", PartitionText("name", "truncate", 8), "truncate(8, name)"),
    ],
)
def test_parse_partition_of_an_entry_gives_column_and_transform(text: str, entry: PartitionText, written: str) -> None:
    assert parse_partition(text) == entry
    assert str(entry) == written


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a column or a transform"),
        ("days(t", "is not a column or a transform"),
        ("weeks(t)", 'unknown transform "weeks"'),
        ("days()", "days takes one column"),
        ("days(a, b)", "days takes one column"),
        ("bucket(id)", "bucket takes the number of buckets and a column"),
        ("bucket(0, id)", 'whole number above zero, not "0"'),
        ("bucket(x, id)", 'whole number above zero, not "x"'),
        ("truncate(-3, name)", 'the width is a whole number above zero, not "-3"'),
        ("bucket(3000000000, id)", "whole number above zero"),
    ],
)
def test_parse_partition_of_something_else_says_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r'^"') as refused:
        parse_partition(text)
    assert told in str(refused.value)
