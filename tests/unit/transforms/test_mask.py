"""Values that are not to be read. That Spark gives the same values is in tests/lanes."""

from __future__ import annotations

import hashlib
import pickle

import pyarrow as pa
import pytest

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Mask, MaskRule

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("email", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("parts", pa.list_(pa.int32())),
        COORDINATES_FIELD,
    ]
)
EMAILS = ["a@b.c", None, "", "größe😀", "a@b.c"]
ROWS = pa.RecordBatch.from_pylist(
    [{"id": n, "email": email, "amount": n / 4, "parts": [n] if n else None} for n, email in enumerate(EMAILS)],
    schema=SCHEMA,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def masked(column: str, rule: MaskRule, rows: pa.RecordBatch = ROWS) -> list[object]:
    good = Mask({column: rule}).apply(rows).good
    good.validate(full=True)
    assert good.schema == Mask({column: rule}).output(rows.schema)
    return list(good.column(column).to_pylist())


def test_mask_by_hash_gives_the_sha256_of_the_text_and_keeps_null() -> None:
    assert masked("email", MaskRule("hash")) == [None if e is None else sha(e) for e in EMAILS]


def test_mask_by_hash_with_a_salt_puts_it_in_front() -> None:
    assert masked("email", MaskRule("hash", "söl")) == [None if e is None else sha(f"söl{e}") for e in EMAILS]


def test_mask_by_hash_of_numbers_takes_their_text() -> None:
    assert masked("id", MaskRule("hash", "s"), ROWS.slice(2)) == [sha("s2"), sha("s3"), sha("s4")]


def test_mask_by_redaction_gives_three_stars_for_any_type() -> None:
    assert masked("email", MaskRule("redact")) == ["***", None, "***", "***", "***"]
    assert masked("parts", MaskRule("redact")) == [None, "***", "***", "***", "***"]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(0, ["*****", None, "", "******", "*****"]), (2, ["***.c", None, "", "****e😀", "***.c"]), (9, EMAILS)],
)
def test_mask_that_keeps_the_last_counts_characters(keep: int, expected: list[str | None]) -> None:
    assert masked("email", MaskRule("keep_last", keep=keep)) == expected


def test_mask_makes_strings_in_place() -> None:
    mask = Mask({"ID": MaskRule("hash"), "parts": MaskRule("redact")})
    output = mask.output(SCHEMA)
    assert output.names == SCHEMA.names
    assert output.field("id") == pa.field("id", pa.string(), nullable=False)
    assert output.field("parts").type == pa.string()
    assert output.field("amount") == SCHEMA.field("amount")


def test_mask_of_a_double_that_is_read_needs_spark_and_redacted_does_not() -> None:
    assert "DOUBLE" in (Mask({"amount": MaskRule("hash")}).no_arrow_form(SCHEMA) or "")
    assert Mask({"amount": MaskRule("redact"), "email": MaskRule("hash")}).no_arrow_form(SCHEMA) is None


def test_mask_never_shows_its_salt() -> None:
    rule = MaskRule("hash", salt="pepper")
    mask = Mask({"email": rule, "id": MaskRule("keep_last", keep=4)})
    assert mask.select(SCHEMA.names) is None
    assert "pepper" not in repr(mask) + repr(rule) + str(rule)
    assert repr(mask) == "mask email: hash, id: keep the last 4"


def test_mask_without_a_salt_is_one_query() -> None:
    assert Mask({"EMAIL": MaskRule("hash")}).select(["id", "email"]) == (
        "SELECT `id`, sha2(CAST(`email` AS STRING), 256) AS `email` FROM input"
    )


def test_mask_of_an_unknown_or_reserved_column_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Mask({"mail": MaskRule("redact")}).no_arrow_form(SCHEMA)
    assert caught.value.code == "COLUMN_UNKNOWN"
    with pytest.raises(DefinitionError) as caught:
        Mask({COORDINATES: MaskRule("redact")})
    assert caught.value.code == "COLUMN_RESERVED"


def test_mask_pickled_masks_the_same() -> None:
    mask = Mask({"email": MaskRule("hash", "s")})
    assert pickle.loads(pickle.dumps(mask)).apply(ROWS).good.equals(mask.apply(ROWS).good)
