"""A table of edge values and the expressions that are evaluated over it, by Arrow and by Spark."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal

import pyarrow as pa

NAN, INF = float("nan"), float("inf")
DAY_US = 86_400_000_000

_VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "b": (pa.bool_(), [True, False]),
    "c": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "i16": (pa.int16(), [-32768, -1, 0, 2, 32767]),
    "i32": (pa.int32(), [-(2**31), -1, 0, 1, 5, 2024, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), -(2**53) - 1, -1, 0, 1, 5, 2**53 + 1, 2**63 - 1]),
    "f32": (pa.float32(), [NAN, -INF, -1.5, -0.0, 0.0, 0.1, 1.5, 16777216.0, 3.4e38, 1e-45, INF]),
    "f64": (pa.float64(), [NAN, -INF, -1.5, -0.0, 0.0, 0.1, 1.5, 5e-324, 9007199254740992.0, 1.7e308, INF]),
    "g64": (pa.float64(), [NAN, -INF, -1.5, -0.0, 0.0, 0.1, 2.0, 0.30000000000000004, 1.7e308, INF]),
    "dec": (pa.decimal128(10, 2), [Decimal(t) for t in ("-99999999.99", "-0.01", "0.00", "1.50", "99999999.99")]),
    "big": (pa.decimal128(38, 10), [Decimal(t) for t in ("-" + "9" * 28 + ".9999999999", "0E-10", "1.5000000000")]),
    "s": (pa.string(), ["", " ", "  pad ", "\tTab ", "a", "abc", "ABC", "a%b", "a\nb", "é", "日本語", "😀x", "ß", "İ"]),
    "t": (pa.string(), ["", "a", "b", "abc", "\u00e9", "e\u0301", "\U0001f600", "\uffff", "a%b", " a"]),
    "bin": (pa.binary(), [b"", b"a", b"\x00\xff", b"\x80"]),
    "d": (pa.date32(), [-719162, -141428, -1, 0, 1, 59, 11016, 19782, 20088, 2932896, -719163, 2**31 - 1, -(2**31)]),
    "near": (pa.date32(), [-719162, -141428, -577738, -1, 0, 11016, 19782, 20088, 2932896, 20_000_000]),
    "ts": (
        pa.timestamp("us", tz="UTC"),
        [
            *(-1, 0, 1, 999_999, -DAY_US - 1, -62135596800000000, 253402300799999999, 1709210096123456),
            *(-12219292800000001, 1735689599999999, 9 * 10**18, -9 * 10**18, 1704067200000000),
        ],
    ),
    "j32": (pa.int32(), [-(2**31), -7, -1, 0, 1, 3, 46341, 2**31 - 1]),
    "j64": (pa.int64(), [-(2**63), -(2**32), -1, 0, 1, 3, 3037000500, 2**62, 2**63 - 1]),
    "k8": (pa.int8(), [-128, -3, 0, 2, 100, 127]),
    "wide": (
        pa.decimal128(38, 2),
        [Decimal(t) for t in ("-" + "9" * 36 + ".99", "-0.05", "0.00", "7.25", "9" * 36 + ".99")],
    ),
    "cent": (pa.decimal128(5, 2), [Decimal(t) for t in ("-999.99", "-0.05", "0.00", "0.05", "1.25", "2.50", "999.99")]),
    "tiny": (
        pa.decimal128(20, 12),
        [Decimal(t) for t in ("-1E-12", "0E-12", "0.000000500000", "12345678.000000000001")],
    ),
    "num": (
        pa.string(),
        [
            *("0", "7", "-7", "+7", " 42 ", "\t-1\n", "007", "1.5"),
            *("-0.005", "1e3", "1E-2", ".5", "5.", "", " ", "abc", "1 2"),
            *("127", "128", "-128", "-129", "2147483647"),
            *("2147483648", "-2147483648", "9223372036854775807", "1.5f", "2d"),
            *("9223372036854775808", "-9223372036854775808", "99999999.994", "99999999.995"),
            *("1e400", "-1e-400", "NaN", "nan"),
            *("Infinity", "-inf", "+INF", "0x10", "0x1p3", "- 1"),
            *("--1", "1_000", "١", "\x7f5\x7f", "\u00a05", "1e", "0.1"),
            *("12345678901234567890123456789012345678901", "0.00000000000000000000000000000000000000049"),
            *("1e38", "1e37"),
            *("000000000000000000000000000000000000000000000001", "1e-3000000000", "0e50"),
            *("-0", "+", "123456789012345678.5"),
        ],
    ),
    "word": (
        pa.string(),
        [
            *("t", "TRUE", " true ", "tRue", "f", "False", "y", "no", "YES"),
            *("N", "0", "1", "", "on", "2", "\tn", "\x7fy", "trué"),
        ],
    ),
    "written": (
        pa.string(),
        [
            *("2024-02-29", "2023-02-29", "2024-2-9", " 2024-02-29 "),
            *("2024", "2024-03", "2024-02-29T10:00", "2024-02-29 x"),
            *("0001-01-01", "0000-01-01", "-0001-01-01", "+2024-01-01"),
            *("99999-12-31", "9999999-01-01", "202-01-01", "2024-13-01"),
            *("2024-00-10", "2024-02-30", "2024-2-", "2024-", ""),
            *("x", "2024-02-29Z", "20240229", "1582-10-10", "2024/02/29"),
            *("5881580-07-11", "5881580-07-12", "-2024-02-29", "2024-02 ", "2024-02T", "\x7f2024-02-29"),
        ],
    ),
    "mixed": (
        pa.string(),
        ["a,b,c", ",", "", "abc", "a,,b", "日本,語", "x" * 30, "a.b.c", ",a", "b,", "😀,😀", "aXbXc", "  x  "],
    ),
    "arr": (pa.list_(pa.int32()), [[], [1], [1, None, 3], [None], [5, 4, 3, 2, 1]]),
    "lists": (
        pa.list_(pa.struct([("price", pa.float64()), ("name", pa.string())])),
        [[], [{"price": 1.5, "name": "a"}], [None, {"price": None, "name": "b"}]],
    ),
    "tags": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("b", None), ("a", 2)]]),
    "ntz": (pa.timestamp("us"), [-1, 0, -62135596800000000, 253402300799999999, 1709210096123456]),
}
_STRUCT = pa.struct([("X", pa.int32()), ("y", pa.string()), ("deep", pa.struct([("z", pa.float64())]))])
_COORDINATES = pa.struct([("topic", pa.string()), ("offset", pa.int64())])


def edge_table() -> pa.Table:
    """Every edge value at least twice, NULLs among them, met by changing neighbours; all pairs of doubles."""
    chance = random.Random(7)
    pairs = list(itertools.product([*_VALUES["f64"][1], None], [*_VALUES["g64"][1], None]))
    columns: dict[str, pa.Array] = {"row": pa.array(range(len(pairs)), pa.int64())}
    for name, (kind, values) in _VALUES.items():
        spread = list(itertools.islice(itertools.cycle([*values, None]), len(pairs)))
        chance.shuffle(spread)
        columns[name] = pa.array(spread, kind)
    columns["f64"] = pa.array([left for left, _ in pairs], pa.float64())
    columns["g64"] = pa.array([right for _, right in pairs], pa.float64())
    rows = range(len(pairs))
    inner = [None if n % 5 == 0 else {"X": n, "y": str(n), "deep": None if n % 3 else {"z": n / 2}} for n in rows]
    columns["st"] = pa.array(inner, _STRUCT)
    columns["_penstock"] = pa.array([{"topic": "t", "offset": n} for n in rows], _COORDINATES)
    return pa.table(columns)


def _split(text: str) -> list[str]:
    return [case.strip() for case in text.replace("\n", ";;").split(";;") if case.strip()]


_COMPARED = """
i8 i16 ;; i8 i64 ;; i32 i64 ;; i32 f32 ;; i64 f64 ;; f32 f64 ;; f64 g64 ;; i32 1 ;; i64 1 ;;
i64 3000000000 ;; i32 1.5 ;; i64 1.50 ;; i8 -1.5 ;; f64 1.5 ;; f32 1.5 ;; f32 0.1 ;; f64 0.1 ;;
f64 1e0 ;; f32 1.5D ;; f64 0 ;; f64 -0.0 ;; f64 5 ;; i32 dec ;; i64 dec ;; dec 1.5 ;; dec 1 ;;
big 1.5 ;; big dec ;; i32 big ;; dec 0 ;; s t ;; s 'a' ;; s '' ;; 'abc' t ;; b c ;;
b true ;; bin bin ;; d near ;; d DATE '2024-02-29' ;; d DATE'0001-01-01' ;;
ts TIMESTAMP '2024-02-29 12:34:56.123456' ;; near ts ;; near ntz ;; ts ntz ;; ntz ntz ;;
d '2024-02-29' ;; ts '2024-01-01' ;; ts '2024-02-29 12:34:56.123456' ;;
ts TIMESTAMP '1969-12-31T23:59:59Z' ;; i32 NULL ;; f64 NULL ;; s NULL ;; b NULL ;; d NULL ;;
-2147483648 i32 ;; -9223372036854775808 i64 ;; 1L i32 ;; 5S i8 ;; 3Y i8
"""
_PAIRS = [pair.split(" ", 1) for pair in _split(_COMPARED)]
COMPARISONS = [
    f"{left} {operator} {right}"
    for left, right in _PAIRS
    if not left.startswith(("'", "DATE"))
    for operator in ("=", "<>", "<", "<=", ">", ">=", "<=>")
] + [
    "f64 == g64",
    "f64 != g64",
    "'abc' = t",
    "s IS DISTINCT FROM t",
    "s IS NOT DISTINCT FROM t",
    "f64 IS DISTINCT FROM g64",
]

LOGIC = """
b AND c ;; b OR c ;; NOT b ;; ! b ;; NOT b AND c ;; b OR c AND NOT b ;; b AND NULL ;; b OR NULL
NOT NULL OR b ;; NOT i32 = 5 ;; b = c AND i32 > 0 ;; b IS NULL ;; b IS NOT NULL ;; b IS TRUE
b IS NOT TRUE ;; b IS FALSE ;; b IS NOT FALSE ;; NOT b IS NULL ;; isnull(s) ;; isnotnull(s)
st IS NULL ;; (i32 = 1) IS NULL ;; i32 = 1 IS NULL ;; (b = c) = b ;; b = (c OR b) ;; isnan(f64)
isnan(f32) ;; NOT isnan(g64) ;; _penstock IS NOT NULL ;; i32 IN (1) ;; i32 IN (1, 5, NULL)
i32 NOT IN (1, 5, NULL) ;; i32 NOT IN (1, 5) ;; i32 IN (NULL, 1L) ;; i64 IN (1, 1.5)
f64 IN (0.0, 1.5) ;; f64 IN (g64, 1.5) ;; f32 IN (0.1, 1.5) ;; s IN ('a', '', 'é')
s IN (t, 'abc') ;; s NOT IN (t, NULL) ;; d IN (DATE '2024-02-29') ;; b IN (true)
s IN ('a','b','c','d','e','f','g','h','i','j','k','l','') ;; i32 IN (1,2,3,4,5,6,7,8,9,10,11,12,13)
dec IN (1.5, 0) ;; 1 IN (i32, i64) ;; i32 IN (1,2,3,4,5,6,7,8,9,10,11,12,NULL)
i32 BETWEEN 0 AND 5 ;; f64 BETWEEN 0 AND g64 ;; f64 NOT BETWEEN -1.5 AND 1.5
i32 BETWEEN 0 AND NULL ;; s BETWEEN 'a' AND t ;; d BETWEEN '2024-01-01' AND '2024-12-31'
ts BETWEEN '2024-01-01' AND '2024-12-31' ;; i32 BETWEEN 0 AND 5 AND b ;; f64 BETWEEN g64 AND NULL
f64 IN (f64) ;; f64 NOT IN (g64, f64)
"""
BRANCHES = """
CASE WHEN b THEN i32 WHEN c THEN i64 ELSE 0 END ;; CASE WHEN b THEN i32 END
CASE WHEN i32 > 0 THEN 'x' ELSE s END ;; IF(b, f64, i32)
CASE i32 WHEN 1 THEN 'one' WHEN 5 THEN 'five' WHEN NULL THEN 'null' END
CASE f64 WHEN g64 THEN 1 WHEN 0 THEN 2 ELSE 3 END ;; IF(b, f32, i32) ;; IF(NULL, 1, 2)
IF(b, NULL, s) ;; IF(b, near, ts) ;; IF(b, near, ntz) ;; IF(b, ts, ntz) ;; IF(b, dec, i32)
IF(b, dec, big) ;; IF(b, 1.5, f64) ;; IF(b, 1.5, 2) ;; IF(b, 1.5, 10.25) ;; IF(b, i8, 1)
IF(b, f32, 1.5) ;; IF(b, f32, f64) ;; IF(b, dec, NULL) ;; IF(b, bin, NULL) ;; IF(b, 1, 3000000000)
nvl2(s, i32, i64) ;; coalesce(s, t) ;; coalesce(s, 'none') ;; coalesce(i32, i64, 0)
coalesce(i32, 1.5) ;; coalesce(f64, 0) ;; nvl(s, t) ;; ifnull(f32, f64) ;; coalesce(NULL, i32)
coalesce(s) ;; nullif(s, 'a') ;; nullif(i32, i64) ;; nullif(f64, g64) ;; nullif(f64, 0)
coalesce(d, DATE '1970-01-01') ;; nvl(b, false) ;; nullif(i8, 1)
CASE WHEN CAST(NULL AS BOOLEAN) THEN 1 WHEN b IS NULL THEN 2 ELSE 3 END ;; CASE WHEN f64 > 0 THEN f64 ELSE -f64 END
coalesce(dec, 0) ;; coalesce(ts, near)
"""
STRINGS = """
length(s) ;; char_length(s) ;; character_length(t) ;; len(s) ;; length(bin) ;; length('日本')
concat(s, t) ;; s || t ;; concat(s, '-', t) ;; concat(s) ;; s || NULL ;; trim(s) ;; ltrim(s)
rtrim(s) ;; trim(BOTH FROM s) ;; trim(LEADING FROM s) ;; trim(TRAILING FROM s) ;; substring(s, 1, 2)
substring(s, 0, 1) ;; substr(s, 2) ;; substring(s, 2, 0) ;; substring(s, 1, -1) ;; substring(s, 100)
substring(s FROM 2 FOR 1) ;; substring(s, 2, 2147483647) ;; startswith(s, 'a') ;; endswith(s, 'b')
contains(s, 'b') ;; contains(s, '') ;; startswith(s, '') ;; startswith(s, NULL) ;; contains(s, '本')
s LIKE 'a' ;; s LIKE 'a%' ;; s LIKE '%b' ;; s LIKE '%b%' ;; s LIKE '%' ;; s LIKE '_' ;; s LIKE 'a_b'
s LIKE '_%' ;; s LIKE '%_' ;; s LIKE 'a%b' ;; s LIKE '' ;; s LIKE '__' ;; s LIKE '%本%'
s NOT LIKE 'a%' ;; s LIKE '%.%' ;; s LIKE '_b_' ;; s LIKE '%%' ;; s LIKE 'a%%' ;; s LIKE '[a]%'
s LIKE '_(%' ;; length(concat(s, t)) ;; concat(trim(s), 'x') = t ;; s LIKE '%a%b%'
"abc" = s ;; trim(s) = '' ;; substring(s, 1, 1) || substring(s, 2)
"""
MOMENTS = """
date(ts) ;; to_date(ts) ;; CAST(ts AS DATE) ;; ts::date ;; date(d) ;; to_date(near)
CAST(near AS TIMESTAMP) ;; CAST(ntz AS DATE) ;; CAST(ntz AS TIMESTAMP) ;; CAST(ts AS TIMESTAMP_NTZ)
CAST(near AS TIMESTAMP_NTZ) ;; year(ts) ;; month(ts) ;; day(ts) ;; dayofmonth(ts) ;; quarter(ts)
dayofyear(ts) ;; dayofweek(ts) ;; weekday(ts) ;; weekofyear(ts) ;; year(d) ;; month(d) ;; day(d)
quarter(d) ;; dayofyear(d) ;; dayofweek(d) ;; weekday(d) ;; weekofyear(d) ;; hour(ts) ;; minute(ts)
second(ts) ;; hour(ntz) ;; minute(ntz) ;; second(ntz) ;; year(ntz) ;; date_trunc('YEAR', ts)
date_trunc('quarter', ts) ;; date_trunc('MON', ts) ;; date_trunc('month', near)
date_trunc('WEEK', ts) ;; date_trunc('DD', ts) ;; date_trunc('day', ts) ;; date_trunc('HOUR', ts)
date_trunc('minute', ts) ;; date_trunc('SECOND', ts) ;; date_trunc('MILLISECOND', ts)
date_trunc('week', near) ;; date_trunc('yy', near) ;; date_trunc('DAY', near) ;; DATE '2024-02-29'
TIMESTAMP '2024-02-29 12:34:56.5' ;; TIMESTAMP '2024-02-29' ;; year(DATE '9999-12-31')
CAST('2024-02-29' AS DATE) ;; date_trunc('DAY', ts) = ts ;; year(ts) = 2024 AND month(ts) = 2
timestamp(near) ;; date('2024-02-29') ;; CAST('2024-02-29 01:02:03' AS TIMESTAMP)
"""
NUMBERS = """
f64 + g64 ;; f64 - g64 ;; f64 * g64 ;; f64 + 1 ;; f64 * 1.1 ;; f64 - i32 ;; f64 + i64 ;; f32 + f32
f32 * f32 ;; f32 * f64 ;; f32 + i8 ;; f32 * 1.5 ;; -f64 ;; -f32 ;; -(f64 + g64) ;; f64 / 2
f64 / 0.1 ;; f64 / 1e-300 ;; i32 / 2 ;; i64 / 3 ;; f32 / 3 ;; f32 / 3.0 ;; 1 * f64 ;; f64 + NULL
f64 * (g64 + 1) ;; f64 - g64 - 1 ;; f64 + g64 * 2 ;; i8 / 7L ;; CAST(i8 AS SMALLINT)
CAST(i8 AS INT) ;; CAST(i16 AS BIGINT) ;; CAST(i32 AS BIGINT) ;; i32::bigint ;; CAST(i32 AS DOUBLE)
CAST(i64 AS DOUBLE) ;; double(i64) ;; CAST(i64 AS FLOAT) ;; CAST(i32 AS FLOAT)
CAST(f32 AS DOUBLE) ;; CAST(f64 AS FLOAT) ;; CAST(i32 AS DECIMAL(10,0))
CAST(i32 AS DECIMAL(20,5)) ;; CAST(i64 AS DECIMAL(19,0)) ;; CAST(i64 AS DECIMAL(38,10))
CAST(i8 AS DECIMAL(3,0)) ;; CAST(i8 AS DECIMAL) ;; CAST(dec AS DECIMAL(12,4))
CAST(dec AS DECIMAL(38,2)) ;; CAST(i8 AS STRING) ;; CAST(i16 AS STRING) ;; CAST(i32 AS STRING)
CAST(i64 AS STRING) ;; string(i64) ;; CAST(b AS STRING) ;; CAST(b AS INT) ;; CAST(b AS BIGINT)
CAST(b AS DOUBLE) ;; CAST(s AS STRING) ;; CAST(s AS BINARY) ;; TRY_CAST(i32 AS BIGINT)
CAST(NULL AS INT) ;; CAST(NULL AS STRING) ;; CAST(1 AS DOUBLE) ;; 1 ;; 3000000000
12345678901234567890 ;; -5 ;; - 5 ;; -2147483648 ;; -9223372036854775808 ;; 1.5 ;; -0.05 ;; .5 ;; 5.
0.00 ;; 100.0 ;; 1e3 ;; 1.5E-3 ;; 1L ;; 1S ;; 1Y ;; 1.5D ;; 1.5F ;; 'text' ;; ''
"double" ;; true ;; FALSE ;; -1.5e0 ;; 1e3D ;; CAST(1.25 AS FLOAT) ;; CAST(7 AS TINYINT)
"""
NAMES = """
st.x ;; ST.Y ;; `st`.`X` ;; st.deep.z ;; st.deep ;; st ;; _penstock.offset ;; _PENSTOCK.Offset < 5
I32 ;; `i32` ;; length(st.y) ;; st.deep.z > 1.5 ;; coalesce(st.x, 0)
"""


INTEGERS = """
i32 + j32 ;; i32 - j32 ;; i32 * j32 ;; i64 + j64 ;; i64 - j64 ;; i64 * j64 ;; i8 + k8 ;; i8 - k8 ;; i8 * k8
i16 + i8 ;; i16 * i16 ;; i32 + i64 ;; i32 * i64 ;; i32 + 1 ;; 1 + i32 ;; i64 - 1 ;; i32 * 2 ;; i8 + 1 ;; i8 + k8 + i8
-i32 ;; -i64 ;; -i8 ;; -i16 ;; abs(i32) ;; abs(i64) ;; abs(i8) ;; abs(i16) ;; abs(f64) ;; abs(dec) ;; negative(i32)
i32 + 2147483647 + -2147483647 ;; 1 + i32 + j32 ;; i32 + (1 + j32) ;; 2 * i32 * 3 ;; i32 + 1 - 1 + 1 ;; i32 + (j32 + i8)
i32 * 2 + j32 * 3 + 1 ;; i64 + i32 + 1 ;; i32 + 1 + i64 ;; i64 * 2 * j32 ;; i32 * 0 * j32 ;; (i32 + j32) * 2
i32 - 1 + 2
i32 + i32 + 1 ;; 5 + 7 ;; 5 + 7 + i32 ;; i32 + NULL ;; 3 * 4L ;; i32 + (j32 + i32) + 1
i32 / j32 ;; i64 / j64 ;; i32 / 0 ;; f64 / g64 ;; f32 / i32 ;; 1 / j32 ;; i32 div j32 ;; i64 div j64 ;; i64 div -1
i8 div k8
i32 div 3 ;; i32 % j32 ;; i64 % j64 ;; i8 % k8 ;; i64 % -1 ;; i32 % 3 ;; mod(i32, j32) ;; f64 % g64 ;; f32 % f32
f64 % 0.7 ;; i32 % 1.5
f64 % i32 ;; i16 % i64 ;; 7 % j32 ;; (i32 + j32) / i8 ;; i32 / (j32 / i8) ;; i32 div 0
round(i32) ;; round(f64) ;; round(f64, 2) ;; round(f64, 0) ;; round(g64, 1) ;; round(f64 / 3, 4)
round(i64 / 100, 1) ;; round(dec) ;; round(dec, 1)
round(dec, 2) ;; round(dec, 5) ;; round(cent, 1) ;; round(tiny, 6) ;; round(wide, 1) ;; round(i32 / 8, 2)
floor(f64) ;; ceil(f64) ;; floor(f32)
ceil(f32) ;; floor(i32) ;; ceil(i64) ;; floor(dec) ;; ceil(dec) ;; floor(tiny) ;; ceiling(cent) ;; floor(f64 * 1e10)
floor(i8)
greatest(i32, j32) ;; least(i32, i64, 5) ;; greatest(f64, g64) ;; least(f64, g64) ;; greatest(f32, f64, 1)
greatest(s, t) ;; least(s, t, 'b')
greatest(d, near) ;; least(ts, near) ;; greatest(dec, 1) ;; greatest(b, c) ;; least(i32, NULL, 3)
greatest(dec, big) ;; greatest(i32 + 1, j32)
try_add(i32, j32) ;; try_add(i64, j64) ;; try_subtract(i32, j32) ;; try_subtract(i64, j64) ;; try_multiply(i32, j32)
try_multiply(i64, j64)
try_divide(i32, j32) ;; try_divide(f64, g64) ;; try_mod(i32, j32) ;; try_add(i8, k8) ;; try_multiply(i8, k8)
try_divide(dec, cent) ;; try_add(wide, wide) ;; try_multiply(wide, cent) ;; try_divide(i32, 0) ;; try_mod(cent, dec)
"""
DECIMALS = """
dec + dec ;; dec - cent ;; dec * cent ;; dec + 1 ;; dec * 2 ;; dec - 1.5 ;; dec * 1.25 ;; dec + i32 ;; dec * i32
dec * i64 ;; i8 * cent ;; big + dec
big * 2 ;; big + big ;; big - 1 ;; big * dec ;; wide + wide ;; wide - cent ;; wide * cent ;; wide * 2
wide + 0.001 ;; tiny * tiny ;; tiny * big ;; tiny + dec
dec / 3 ;; dec / cent ;; dec / i32 ;; i32 / dec ;; cent / cent ;; tiny / cent ;; 1 / cent ;; dec / 0.3 ;; i64 / cent
dec / 7.0 ;; cent / i8
dec % 3 ;; dec % cent ;; cent % 0.7 ;; i32 % cent ;; cent % i8 ;; dec div 3 ;; dec div cent ;; i32 div cent ;; -dec
-tiny ;; abs(tiny) ;; dec + f64 ;; f64 * cent
dec * f32 ;; dec > f64 ;; dec = 1.5 ;; f64 = cent ;; dec / f64 ;; dec % f64 ;; (dec + cent) * 2 ;; dec * cent * 2
dec * (1 + cent) ;; (dec * cent) / 2
dec - dec ;; 10 * cent ;; 100 - cent ;; dec * -1 ;; dec + 0 ;; wide / 3 ;; big / 3
"""
CASTS = """
CAST(i64 AS INT) ;; CAST(i32 AS SMALLINT) ;; CAST(i16 AS TINYINT) ;; CAST(i64 AS TINYINT) ;; CAST(f64 AS INT)
CAST(f64 AS BIGINT) ;; CAST(f32 AS INT)
CAST(f32 AS BIGINT) ;; CAST(f64 AS TINYINT) ;; CAST(g64 AS SMALLINT) ;; CAST(dec AS INT) ;; CAST(dec AS TINYINT)
CAST(wide AS BIGINT) ;; CAST(big AS INT)
CAST(tiny AS INT) ;; CAST(tiny AS BIGINT) ;; CAST(dec AS DECIMAL(8,1)) ;; CAST(dec AS DECIMAL(9,0))
CAST(dec AS DECIMAL(5,3)) ;; CAST(cent AS DECIMAL(4,1))
CAST(cent AS DECIMAL(3,2)) ;; CAST(wide AS DECIMAL(38,10)) ;; CAST(big AS DECIMAL(10,2))
CAST(tiny AS DECIMAL(8,6)) ;; CAST(i32 AS DECIMAL(5,0)) ;; CAST(i64 AS DECIMAL(10,2))
CAST(i8 AS DECIMAL(2,1)) ;; CAST(b AS DECIMAL(3,1)) ;; CAST(b AS DECIMAL(1,1)) ;; CAST(dec AS DOUBLE)
CAST(wide AS DOUBLE) ;; CAST(tiny AS DOUBLE)
CAST(big AS FLOAT) ;; CAST(cent AS FLOAT) ;; CAST(i32 AS BOOLEAN) ;; CAST(f64 AS BOOLEAN) ;; CAST(dec AS BOOLEAN)
CAST(dec AS STRING) ;; CAST(tiny AS STRING)
CAST(wide AS STRING) ;; CAST(big AS STRING) ;; CAST(d AS STRING) ;; CAST(near AS STRING) ;; CAST(ts AS STRING)
CAST(i32 AS TIMESTAMP) ;; CAST(i64 AS TIMESTAMP)
CAST(ts AS BIGINT) ;; CAST(num AS INT) ;; CAST(num AS BIGINT) ;; CAST(num AS TINYINT) ;; CAST(num AS SMALLINT)
CAST(num AS DOUBLE) ;; CAST(num AS DECIMAL(10,2))
CAST(num AS DECIMAL(38,0)) ;; CAST(num AS DECIMAL(38,38)) ;; CAST(num AS DECIMAL(3,3)) ;; CAST(word AS BOOLEAN)
CAST(written AS DATE) ;; to_date(written) ;; date(written)
TRY_CAST(num AS INT) ;; TRY_CAST(num AS BIGINT) ;; TRY_CAST(num AS TINYINT) ;; TRY_CAST(num AS SMALLINT)
TRY_CAST(num AS DOUBLE) ;; TRY_CAST(num AS DECIMAL(10,2))
TRY_CAST(num AS DECIMAL(38,0)) ;; TRY_CAST(num AS DECIMAL(38,38)) ;; TRY_CAST(num AS DECIMAL(5,5))
TRY_CAST(word AS BOOLEAN) ;; TRY_CAST(written AS DATE) ;; TRY_CAST(i64 AS INT)
TRY_CAST(f64 AS INT) ;; TRY_CAST(f64 AS BIGINT) ;; TRY_CAST(f32 AS TINYINT) ;; TRY_CAST(wide AS BIGINT)
TRY_CAST(dec AS DECIMAL(5,1)) ;; TRY_CAST(i64 AS DECIMAL(5,2))
TRY_CAST(s AS INT) ;; TRY_CAST(t AS DOUBLE) ;; TRY_CAST(s AS DATE) ;; TRY_CAST(s AS BOOLEAN)
TRY_CAST(s AS DECIMAL(5,2)) ;; int(f64) ;; num::int ;; TRY_CAST(i32 + 1 AS TINYINT)
CAST('12' AS INT) ;; CAST('1.5' AS DOUBLE) ;; CAST(' 7 ' AS BIGINT) ;; CAST(1.5 AS INT) ;; CAST('true' AS BOOLEAN)
TRY_CAST('x' AS INT) ;; CAST(1.255 AS DECIMAL(5,2))
"""
TEXTS = """
concat(i32, s) ;; s || i64 ;; concat(dec, '-', near) ;; concat_ws('-', s, t) ;; concat_ws(',', s, i32, t)
concat_ws(t, s, 'x') ;; concat_ws('-', s) ;; concat_ws(NULL, s, t)
trim('a' FROM s) ;; trim(BOTH 'xa' FROM mixed) ;; trim(LEADING 'a' FROM mixed) ;; trim(TRAILING 'cb' FROM mixed)
btrim(mixed) ;; btrim(mixed, 'ax') ;; ltrim('a', mixed) ;; rtrim('c', mixed)
trim('' FROM s) ;; left(mixed, 2) ;; left(mixed, 0) ;; left(mixed, -1) ;; right(mixed, 2) ;; right(mixed, 0)
right(mixed, -3) ;; right(mixed, 100) ;; substring(mixed, -2) ;; substring(mixed, -3, 2)
substring(mixed, -100, 3) ;; substring(mixed, -4, 2) ;; substr(mixed, -1, 5) ;; substring(mixed, -2, 0)
lpad(mixed, 4, 'xy') ;; lpad(mixed, 8, '日😀') ;; rpad(mixed, 6, '*') ;; lpad(mixed, 0, 'x')
lpad(mixed, -1, 'x') ;; rpad(mixed, 7, '') ;; lpad(mixed, 3) ;; rpad(mixed, 9) ;; replace(mixed, ',', ';')
replace(mixed, 'b') ;; replace(mixed, '', 'x') ;; replace(s, 'a', '') ;; replace(mixed, '😀', 'é')
split_part(mixed, ',', 1) ;; split_part(mixed, ',', 2) ;; split_part(mixed, ',', -1) ;; split_part(mixed, ',', 9)
split_part(mixed, ',', -9) ;; split_part(mixed, '.', 2) ;; split_part(mixed, '😀', 2)
instr(mixed, ',') ;; instr(mixed, '') ;; instr(mixed, '語') ;; locate('b', mixed) ;; position('c' IN mixed)
position('c', mixed) ;; instr(mixed, 'zz') ;; instr(num, '1') ;; repeat(mixed, 2) ;; repeat(mixed, 0)
repeat(mixed, -1) ;; reverse(mixed) ;; octet_length(mixed) ;; octet_length(bin) ;; md5(mixed) ;; sha1(s)
sha2(mixed, 256) ;; sha2(mixed, 0) ;; sha2(bin, 512) ;; sha2(s, 224) ;; sha2(s, 384) ;; md5(bin) ;; sha(s)
upper(s) ;; lower(s) ;; upper(mixed) ;; lower(t) ;; ucase(s) ;; lcase(concat(s, 'ΑΣ')) ;; upper('straße')
lower(i32) ;; length(i32) ;; length(near) ;; startswith(i64, '1') ;; contains(mixed, ',') ;; md5(concat(s, t))
length(CAST(ts AS STRING))
size(arr) ;; size(tags) ;; cardinality(arr) ;; array_size(arr) ;; arr[0] ;; arr[2] ;; arr[i8] ;; arr[-1]
element_at(arr, 1) ;; element_at(arr, -1) ;; try_element_at(arr, 2) ;; try_element_at(arr, -3)
lists[0].price ;; lists[1].name ;; lists[0] ;; size(lists) ;; tags['a'] ;; tags['zz'] ;; arr[0] + 1
try_element_at(lists, 1).name ;; IF(size(arr) > 1, arr[1], 0)
"""
TIMES = """
date_add(d, 1) ;; date_add(near, i8) ;; date_add(ts, 5) ;; date_sub(near, 30) ;; date_sub(near, i16)
date_add(d, i32) ;; date_sub(d, i32) ;; near + 1 ;; near - 7 ;; near + i8 ;; datediff(near, ts)
datediff(d, near) ;; date_diff(ts, near) ;; dateadd(near, 3) ;; near + INTERVAL 1 DAY ;; near - INTERVAL '2' WEEK
near + INTERVAL 1 MONTH ;; near - INTERVAL 13 MONTHS ;; near + INTERVAL 4 YEARS
near + INTERVAL 3 HOURS ;; ts + INTERVAL 1 HOUR ;; ts - INTERVAL '30' MINUTES ;; ts + INTERVAL 10 DAYS
ts - INTERVAL 1 SECOND ;; ts + INTERVAL 1 MONTH ;; ts - INTERVAL 2 YEAR ;; ts + INTERVAL -5 DAY
ts + INTERVAL 1 WEEK ;; add_months(near, 1) ;; add_months(near, -25) ;; add_months(ts, 1) ;; last_day(near)
last_day(ts) ;; trunc(near, 'MM') ;; trunc(d, 'YEAR') ;; trunc(near, 'week') ;; trunc(ts, 'quarter')
unix_date(d) ;; date_from_unix_date(i32) ;; unix_timestamp(ts) ;; unix_timestamp(near) ;; unix_seconds(ts)
unix_millis(ts) ;; unix_micros(ts) ;; timestamp_seconds(i32) ;; timestamp_seconds(i64)
timestamp_millis(i64) ;; timestamp_millis(i32) ;; timestamp_micros(i64) ;; timestamp_micros(i8)
date_format(ts, 'yyyy-MM-dd') ;; date_format(ts, 'yyyyMMdd') ;; date_format(near, 'yyyy/MM')
date_format(ts, 'HH:mm:ss') ;; date_format(ts, 'yyyy-MM-dd HH:mm:ss.SSS')
date_format(ts, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'") ;; date_format(ts, 'dd.MM.yyyy') ;; to_timestamp(ts)
to_timestamp(near)
ts > near + INTERVAL 1 DAY ;; date_add(near, i8 + 1) ;; year(date_add(near, 1))
date_trunc('HOUR', ts + INTERVAL 30 MINUTES) ;; d + INTERVAL 1 MONTH ;; last_day(d)
timestamp_seconds(i64 div 1000)
"""
GUARDED = """
IF(j32 <> 0, i32 / j32, 0) ;; IF(j32 = 0, NULL, i32 % j32)
CASE WHEN j32 = 0 THEN 0 WHEN j32 < 0 THEN i32 div j32 ELSE i32 % j32 END ;; coalesce(i32, 1 / j32)
coalesce(try_divide(1, j32), i32 + 1)
j32 <> 0 AND i32 / j32 > 1 ;; j32 = 0 OR 10 / j32 > 1 ;; b AND 1 / j32 > 0 ;; b OR 1 / j32 > 0 ;; 1 / j32 > 0 AND b
NOT (b AND i32 + 1 > 0) ;; i32 + 10 div j32 ;; f64 + i32 / j32 ;; 10 / j32 + i32
i32 / NULL ;; (1 / j32) / i32 ;; i32 / (1 / j32) ;; NULL + 1 / j32 ;; IF(b, CAST(num AS INT), -1)
IF(b, CAST(i64 AS INT), i32 + 1) ;; CASE WHEN CAST(num AS DOUBLE) > 1 THEN 1 ELSE 0 END
CASE i32 / j32 WHEN 1 THEN 'one' ELSE 'other' END ;; nvl2(i32, 1 / j32, 5) ;; (1 / j32) IS NULL ;; 1 / j32 <=> i32
1 / j32 IN (1.0, 0.5) ;; concat(s, 10 div j32) ;; concat_ws('-', s, 10 div j32)
greatest(i32, 10 div j32) ;; IF(b, IF(c, 1 / j32, 2), 1 / (j32 - 1)) ;; coalesce(i8, i16, i32 + j32, 0)
IF(1 / j32 > 0, 1, 2) ;; TRY_CAST(i32 / j32 AS INT) ;; try_divide(1, i32 / j32) ;; CAST(num AS INT) > 5 OR b
b AND c AND i32 / j32 > 0 ;; (b OR c) AND i32 + j32 > 0 ;; length(CAST(i32 + 1 AS STRING)) ;; abs(i32) + abs(j32)
IF(isnan(f64), 0, CAST(f64 AS INT)) ;; CASE WHEN b THEN i32 + 1 END
"""


LINE_BREAKS = ["s LIKE '%\n%'", "contains(s, '\n')", "s = 'a\nb'", "i32\n> 0"]


FAILING = """
i32 + j32 ;; i64 * j64 ;; i8 + k8 ;; i16 * i16 ;; -i32 ;; -i8 ;; abs(i64) ;; abs(i16) ;; i32 / j32 ;; i32 div j32
i64 div j64 ;; i32 % j32 ;; f64 % g64
dec / cent ;; dec % cent ;; dec div cent ;; wide + wide ;; wide * cent ;; CAST(i64 AS INT) ;; CAST(f64 AS INT)
CAST(wide AS BIGINT) ;; CAST(dec AS DECIMAL(5,3))
CAST(i64 AS DECIMAL(10,2)) ;; CAST(num AS INT) ;; CAST(num AS DOUBLE) ;; CAST(num AS DECIMAL(10,2))
CAST(word AS BOOLEAN) ;; CAST(written AS DATE)
ts + INTERVAL 100000000 DAYS ;; d + INTERVAL 1 MONTH ;; timestamp_seconds(i64) ;; timestamp_millis(i64) ;; arr[2]
element_at(arr, 1)
coalesce(i32, 1 / j32) ;; b AND 1 / j32 > 0 ;; b OR 1 / j32 > 0 ;; IF(b, CAST(num AS INT), -1) ;; 10 / j32 + i32
concat(s, 10 div j32) ;; i32 / (1 / j32) ;; try_divide(1, i32 / j32)
"""


_GROUPS = [LOGIC, BRANCHES, STRINGS, MOMENTS, NUMBERS, NAMES, INTEGERS, DECIMALS, CASTS, TEXTS, TIMES, GUARDED]


def all_cases() -> list[str]:
    """Every case, each an expression that has an Arrow form."""
    listed = [case for text in _GROUPS for case in _split(text)]
    return [*COMPARISONS, *listed, *LINE_BREAKS]


def some_cases() -> list[str]:
    """Each two operands compared by two or three of the operators, and every case that is no comparison."""
    return [*COMPARISONS[::3], *all_cases()[len(COMPARISONS) :]]


def failing_cases() -> list[str]:
    """Those of them that fail on some row of the table, each function once or twice."""
    return _split(FAILING)
