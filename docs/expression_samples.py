"""Expressions for the reference page: every form that Arrow has, and some that are left to Spark."""

from __future__ import annotations

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int16()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("flag", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("address", pa.struct([pa.field("city", pa.string())])),
    ]
)

SAMPLES = {
    "Columns and constants": ["name", "address.city", "12.5", "'text'", "true", "coalesce(name, NULL)"],
    "Comparison": [
        "id = 1",
        "id <> 1",
        "amount < 10",
        "amount <= 10",
        "amount > 10",
        "amount >= 10",
        "name <=> NULL",
        "name IS NOT DISTINCT FROM 'a'",
        "name IS DISTINCT FROM 'a'",
        "id IN (1, 2, 3)",
        "amount BETWEEN 1 AND 2",
        "name LIKE 'a%'",
        "name IS NULL",
        "name IS NOT NULL",
        "flag IS TRUE",
        "isnull(name)",
        "isnotnull(name)",
        "isnan(amount)",
    ],
    "Logic": ["flag AND amount > 1", "flag OR amount > 1", "NOT (flag)"],
    "Choice": [
        "CASE WHEN amount > 10 THEN 'big' ELSE 'small' END",
        "CASE small WHEN 1 THEN 'one' END",
        "if(flag, 1, 2)",
        "nvl2(name, 1, 2)",
        "nullif(name, '')",
        "coalesce(name, 'none')",
        "nvl(name, 'none')",
        "ifnull(name, 'none')",
    ],
    "Arithmetic of floating-point numbers": ["amount + 1", "amount - 1", "amount * 2", "amount / 2", "-amount"],
    "Conversion that cannot fail": [
        "CAST(small AS BIGINT)",
        "CAST(id AS STRING)",
        "CAST(at AS DATE)",
        "try_cast(small AS INT)",
    ],
    "Text": [
        "length(name)",
        "concat(name, '-', address.city)",
        "name || '!'",
        "trim(name)",
        "ltrim(name)",
        "rtrim(name)",
        "substring(name, 1, 3)",
        "startswith(name, 'a')",
        "endswith(name, 'a')",
        "contains(name, 'a')",
    ],
    "Dates and times": [
        "date(at)",
        "to_date(at)",
        "year(at)",
        "quarter(at)",
        "month(at)",
        "weekofyear(at)",
        "day(at)",
        "dayofmonth(at)",
        "dayofyear(at)",
        "dayofweek(at)",
        "weekday(at)",
        "hour(at)",
        "minute(at)",
        "second(at)",
        "date_trunc('hour', at)",
    ],
}

LEFT_TO_SPARK = [
    "id + 1",
    "amount / id",
    "price / 3",
    "CAST(name AS INT)",
    "upper(name)",
    "name RLIKE 'a.*'",
    "date_add(day, 1)",
    "from_json(name, 'a INT')",
]
