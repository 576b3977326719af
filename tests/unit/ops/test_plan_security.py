"""What `plan` says of options that let a stranger pass for the brokers."""

from __future__ import annotations

from pathlib import Path

from penstock.assembly.build import build
from penstock.config import load
from penstock.ops.plan import _unverified


def test_plan_warns_of_every_option_that_turns_verification_off(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(
        """
name: orders
source:
  type: kafka
  brokers: a:1
  topics: [orders]
  security: {}
  options: {ssl.endpoint.identification.algorithm: none}
decode: {format: json, schema: "order_id BIGINT"}
sinks:
  - {name: same, type: kafka, topic: one}
  - name: own
    type: kafka
    topic: two
    brokers: b:2
    security: {}
    options: {enable.ssl.certificate.verification: false}
  - {name: lake, type: delta, path: lake}
checkpoint: checkpoints/orders
"""
    )
    told = _unverified(build(load(file)))
    assert [line.split(" allows a man-in-the-middle")[0] for line in told] == [
        "source: the option ssl.endpoint.identification.algorithm",
        "sink same: the option ssl.endpoint.identification.algorithm",
        "sink own: the option enable.ssl.certificate.verification",
    ]
