import pytest

from penstock.config.expressions import ExpressionError, read_expression, read_query


def columns(text: str) -> list[str]:
    return sorted({".".join(reference.parts) for reference in read_expression(text)})


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("amount >= 0 AND NOT b", ["amount", "b"]),
        ("address.city = 'x'", ["address.city"]),
        ("_penstock.offset > 5", ["_penstock.offset"]),
        ("a.b.c.d.e.f IS NULL", ["a.b.c.d.e.f"]),
        ("items[0].price > m['k'].z", ["items", "m"]),
        ("transform(xs, x -> x.price + y)", ["xs", "y"]),
        ("aggregate(xs, 0, (acc, x) -> acc + x)", ["xs"]),
        ("timestampadd(HOUR, 1, t) > current_timestamp()", ["t"]),
        ("extract(day FROM t) + datediff(DAY, a, b)", ["a", "b", "t"]),
        ("date '2026-01-01' < date(t) + interval 1 day", ["t"]),
        ('`odd name` = "text"', ["odd name"]),
        ("CASE WHEN a THEN b ELSE c END", ["a", "b", "c"]),
        ("try_cast(a AS DECIMAL(5, 2)) <=> b", ["a", "b"]),
        ("some_function(a, 'b')", ["a"]),
        ("1 = 1", []),
    ],
)
def test_read_expression_valid_text_gives_its_columns(text: str, used: list[str]) -> None:
    assert columns(text) == used


def test_read_expression_reference_knows_its_offset() -> None:
    (first, second) = read_expression("aa > 1\n AND bb.cc = 2")
    assert (first.offsets, second.offsets) == ((0,), (12, 15))


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("", 0, "empty"),
        ("a >= ", 2, 'missing after ">="'),
        ("a > 1)", 5, r'unexpected "\)"'),
        ("(a > 1", 5, r"expected \) after"),
        ("amount amount2", 7, 'unexpected "amount2"'),
        ("a\n  && b", 4, 'unexpected "&&"'),
        ("a = 'x", 4, "unclosed"),
        ("a; b", 1, "several statements"),
        ("cast(a AS foo)", 10, "not a type"),
        ("SELECT 1", 0, "expected an expression"),
        ("DROP TABLE x", 0, "expected an expression"),
        ("*", 0, "expected an expression"),
        ("a IN (SELECT b FROM t)", 13, "subqueries"),
        ("a > max(b)", 4, "MAX is not possible"),
        ("explode(xs)", 0, "EXPLODE is not possible"),
        ("rank() OVER (ORDER BY a) = 1", 0, "a window is not possible"),
    ],
)
def test_read_expression_refused_text_is_placed(text: str, offset: int, words: str) -> None:
    with pytest.raises(ExpressionError, match=words) as raised:
        read_expression(text)
    assert raised.value.offset == offset


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("SELECT * FROM input", ("*",)),
        ("SELECT a, b.c, d + 1 AS e FROM input", ("a", "c", "e")),
        ("SELECT *, a + 1 AS b FROM input i WHERE i.c > 0", ("*", "b")),
        ("SELECT a + 1 FROM input", None),
        ("SELECT * EXCEPT (a) FROM input", None),
        ("WITH x AS (SELECT a FROM input) SELECT * FROM x", None),
        ("WITH x AS (SELECT a FROM input) SELECT a AS b FROM x", ("b",)),
        ("SELECT a FROM input UNION ALL SELECT b FROM input", ("a",)),
        ("SELECT i.a, d.b FROM input i JOIN dim d ON i.k = d.k", ("a", "b")),
    ],
)
def test_read_query_outputs_are_known_where_they_can_be(text: str, outputs: tuple[str, ...] | None) -> None:
    assert read_query(text).outputs == outputs


def test_read_query_references_leave_out_the_tables_name_and_the_select_lists_own() -> None:
    query = read_query("SELECT i.a.x, input.b AS c, c + 1 AS d FROM input AS i WHERE d > e GROUP BY c")
    assert {".".join(reference.parts) for reference in query.references} == {"a.x", "b", "e"}


def test_read_query_with_other_tables_claims_no_references() -> None:
    assert read_query("SELECT x FROM input JOIN dim USING (k)").references == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT * FROM inputs", "the query reads inputs, not input"),
        ("SELECT 1", "the query reads no table, not input"),
        ("SELECT * FROM input LIMIT 5", "LIMIT over a stream"),
        ("SELECT * FROM input ORDER BY a", "ORDER BY over a stream"),
        ("SELECT * FROM input LIMIT 5 OFFSET 2", "LIMIT over a stream"),
        ("INSERT INTO t SELECT * FROM input", "expected one SELECT"),
        ("SELECT * FROM input; SELECT 2", "several statements"),
        ("SELECT FROM WHERE", "not Spark SQL"),
    ],
)
def test_read_query_refused_text_says_why(text: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        read_query(text)


def test_read_query_limit_inside_is_allowed() -> None:
    assert read_query("SELECT a FROM input WHERE a IN (SELECT b FROM dim ORDER BY b LIMIT 3)").outputs == ("a",)
