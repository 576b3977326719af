"""What a test runs its pipeline on: the stand-in for Spark, which is the default, or Spark itself.

def test_x(session, ...)                    the stand-in: for what is not about Spark
@ON_BOTH def test_x(session, ...)           the stand-in and Spark: the proof that they agree
@ON_BOTH_LONG def test_x(session, ...)       the same, Spark in `make long` only
@LANES def test_x(session, lane, ...)       the direct lane on the stand-in, the frame lane on Spark
@LANES_LONG def test_x(session, lane, ...)  the same, the frame lane in `make long` only
def test_x(spark, ...)                      Spark alone: state, SQL, frames, jars, processes
"""

from __future__ import annotations

import pytest

_FRAME = ("frame", "spark")

ON_BOTH = pytest.mark.parametrize("session", ["local", "spark"], indirect=True)
_SPARK_LONG = pytest.param("spark", marks=pytest.mark.long)
ON_BOTH_LONG = pytest.mark.parametrize("session", ["local", _SPARK_LONG], indirect=True)
LANES = pytest.mark.parametrize(("lane", "session"), [("direct", "local"), _FRAME], indirect=["session"])
LANES_LONG = pytest.mark.parametrize(
    ("lane", "session"), [("direct", "local"), pytest.param(*_FRAME, marks=pytest.mark.long)], indirect=["session"]
)
