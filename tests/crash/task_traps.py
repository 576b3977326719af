"""The points inside a task, where the Kafka sink commits. Importing this arms them; Spark's workers preload it.

`finish`: the rows are written, the slot is not committed. `finishing`: somewhere in the slot's commit. `finished`: this
slot is committed, nobody knows yet, and other slots may not be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash import traps

from penstock.contracts import SlotSink
from penstock.engine.outlet import Outlet
from penstock.model import Manifest

_outlet: Any = Outlet
_finish: Callable[..., list[Manifest]] = Outlet.finish


def _trapped(self: Outlet, *, defer: bool = False) -> list[Manifest]:
    if defer or not any(isinstance(inlet.sink, SlotSink) for inlet, _ in self._stages):
        return _finish(self, defer=defer)
    traps.reach("finish")
    with traps.within("finishing"):
        manifests = _finish(self)
    traps.reach("finished")
    return manifests


_outlet.finish = _trapped
