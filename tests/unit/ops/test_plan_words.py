"""What `penstock plan` says of the batches that a run would make."""

from __future__ import annotations

from pathlib import Path

from tests.batches import finished
from tests.unit.ops.diagnosis.evidences import config

from penstock.metrics.history import history_of
from penstock.ops.plan import flow_words


def test_flow_words_tell_a_fixed_cap_and_what_flow_control_aims_at(tmp_path: Path) -> None:
    assert flow_words(config(tmp_path, source={"max_offsets": 1500})) == "a fixed cap of 1,500 offsets a batch"
    adaptive = config(tmp_path)
    assert flow_words(adaptive).startswith("batches of about ")
    assert flow_words(adaptive).endswith("; a small one at first")
    history = history_of(adaptive.checkpoint)
    for number in range(5):
        history.add(finished(number, offsets=1000, cap=1000, lag=5000))
    assert flow_words(adaptive).endswith(" offsets based on earlier batches")
