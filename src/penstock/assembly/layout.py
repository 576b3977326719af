"""The layout of a stateful flow: the steps before its state, the stateful steps, and the steps of each batch after
them.

The watermark is set directly before the first step that needs it, whatever is between the two in the file: the late
rows are then exactly those that this step would drop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.contracts import Decoder, StatefulTransform, Transform
from penstock.transforms import Enrich, Join, Watermark


@dataclass(frozen=True)
class StreamInput:
    """One source of the stream, up to its watermark."""

    name: str
    topics: tuple[str, ...] | None
    decoder: Decoder
    before: tuple[Transform, ...]
    watermark: Watermark | None
    late_for: StatefulTransform | None
    """The step that drops late rows."""

    def over_arrow(self) -> tuple[Transform, ...]:
        """The first steps, which run with the decoder: those that have an exact Arrow form."""
        schema = self.decoder.schema
        found: list[Transform] = []
        for step in self.before:
            if step.no_arrow_form(schema) is not None:
                break
            found.append(step)
            schema = step.output(schema)
        return tuple(found)


@dataclass(frozen=True)
class Layout:
    """A flow with state in its parts."""

    inputs: tuple[StreamInput, ...]
    join: Join | None
    kept: tuple[Transform, ...]
    """From the first stateful step to the last; a join comes before them."""
    after: int
    """The index of the first step that runs in each batch."""

    @property
    def tables(self) -> set[str]:
        """The tables that are joined before the last step with state."""
        steps = (*(step for one in self.inputs for step in one.before), *self.kept)
        return {step.table for step in steps if isinstance(step, Enrich)}

    def with_steps(self, change: Callable[[Sequence[Transform]], tuple[Transform, ...]]) -> Layout:
        """The same with its steps changed."""
        inputs = tuple(replace(one, before=change(one.before)) for one in self.inputs)
        return replace(self, inputs=inputs, kept=change(self.kept))

    @property
    def by_the_clock(self) -> bool:
        """Whether a step has timers that go by the time of day."""
        return any(getattr(step, "time_mode", None) == "processing" for step in self.kept)

    @property
    def changes(self) -> bool:
        """Whether rows come again when they change."""
        return any(getattr(step, "emit", "final") == "changes" for step in self.kept)


def lay_out(
    decoder: Decoder,
    topics: tuple[str, ...] | None,
    steps: Sequence[Transform],
    sides: Sequence[tuple[str, tuple[str, ...], Decoder, Sequence[Transform]]] = (),
) -> Layout | None:
    """The layout of a flow, or None if it is stateless."""
    places = [at for at, step in enumerate(steps) if isinstance(step, StatefulTransform)]
    if not places:
        return None
    first, last = places[0], places[-1]
    if sides:
        join = steps[first]
        assert isinstance(join, Join), "checked when the file was loaded"
        inputs = tuple(_input(name, of, decoder_of, own, join) for name, of, decoder_of, own in sides)
        ordered = tuple(sorted(inputs, key=lambda one: one.name != join.left.name))
        return Layout(ordered, join, tuple(steps[first + 1 : last + 1]), last + 1)
    step = steps[first]
    assert isinstance(step, StatefulTransform)
    return Layout(
        (_input("input", topics, decoder, steps[:first], step),), None, tuple(steps[first : last + 1]), last + 1
    )


def _input(
    name: str, topics: tuple[str, ...] | None, decoder: Decoder, steps: Sequence[Transform], late_for: StatefulTransform
) -> StreamInput:
    watermark = next((step for step in steps if isinstance(step, Watermark)), None)
    before = tuple(step for step in steps if not isinstance(step, Watermark))
    return StreamInput(name, topics, decoder, before, watermark, late_for)
