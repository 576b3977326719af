from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
name: orders
source:
  type: kafka
  brokers: localhost:9092
  topics: [orders]
decode:
  format: json
  schema: "order_id BIGINT NOT NULL, amount DOUBLE"
quarantine:
  table: lake/quarantine
sinks:
  - name: out
    type: delta
    path: lake/orders
checkpoint: checkpoints/orders
trigger: {available_now: true}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes `orders.yaml`: the good file with some texts replaced."""

    def written(*replaced: tuple[str, str]) -> Path:
        text = GOOD
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "orders.yaml"
        file.write_text(text)
        return file

    return written
