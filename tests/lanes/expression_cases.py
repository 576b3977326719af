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


LINE_BREAKS = ["s LIKE '%\n%'", "contains(s, '\n')", "s = 'a\nb'", "i32\n> 0"]


def all_cases() -> list[str]:
    """Every case, each an expression that has an Arrow form."""
    listed = [case for text in (LOGIC, BRANCHES, STRINGS, MOMENTS, NUMBERS, NAMES) for case in _split(text)]
    return [*COMPARISONS, *listed, *LINE_BREAKS]
