"""How much a batch may take, where the file gives no fixed number: the aim and the bounds of flow control."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from penstock.config.fields import Count, Duration, Section, Size


def _to_memory(value: Any) -> Any:
    return None if value == "auto" else value


Memory = Annotated[
    Size | None,
    BeforeValidator(_to_memory),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "examples": ["auto", "2 GiB"]}),
]


class FlowConfig(Section):
    """The aim and the bounds of flow control, which sets how many offsets the next batch takes."""

    target_batch: Duration = Field(
        default=timedelta(seconds=20), description="How long a batch should take while there is a backlog."
    )
    max_batch: Duration = Field(
        default=timedelta(minutes=2), description="How long no batch may take, as far as it can be foreseen."
    )
    min_offsets: Count = Field(default=1000, description="The fewest offsets that a batch is cut down to.")
    max_offsets: Count | None = Field(
        default=None, description="The most offsets that a batch is ever given. Left out, there is no such bound."
    )
    memory: Memory = Field(
        default=None,
        description="The most bytes of messages in one batch, such as `2 GiB`. `auto` goes by how full the memory of "
        "the machines is.",
    )
