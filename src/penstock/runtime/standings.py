"""What each sink's own token says: which batch it holds, whole or in part. No JVM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from penstock.contracts import Sink, SlotSink
from penstock.errors import PenstockError
from penstock.model import BatchToken, Guarantee
from penstock.quarantine import RefusingQuarantine
from penstock.runtime.targets import Targets


@dataclass(frozen=True)
class Standing:
    """What one sink's own token says."""

    sink: str
    guarantee: Guarantee
    token: BatchToken | None
    torn: str | None
    """How the slots of a Kafka sink stand whose last batch is not whole."""
    error: str | None = None
    """Why it could not be asked."""
    begun: BatchToken | None = None
    """Of a torn sink: the newest batch that some slot holds."""
    sparse: bool = False
    """A quarantine, and the like: it keeps no token of a batch that has nothing for it."""
    taken_back: PenstockError | None = None
    """What the sink would say to the next batch of its token's query, where batches of it were taken back."""
    fault: PenstockError | None = None
    """The error that `error` tells of."""

    @property
    def holds(self) -> BatchToken | None:
        """The newest batch of which it has anything."""
        return self.begun or self.token


class HasTargets(Protocol):
    """A pipeline, as far as its sinks go."""

    @property
    def targets(self) -> Targets:
        """Every sink."""
        ...


def standings(pipeline: HasTargets) -> list[Standing]:
    """Ask every sink for its own token, all at once; no JVM. The sinks come first, then what may be sparse."""
    targets = pipeline.targets
    refused = [sink for sinks in targets.rejects.values() for sink in sinks]
    gaps = [targets.gaps] if targets.gaps is not None else []
    others = [one for one in (*targets.quarantines, *refused, *gaps) if not isinstance(one, RefusingQuarantine)]
    asked = [*((sink, False) for sink in targets.sinks), *((sink, True) for sink in others)]
    if not asked:
        return []
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda one: _standing(*one), asked))


def _standing(sink: Sink, sparse: bool) -> Standing:
    try:
        token = sink.last_commit()
        torn = sink.torn() if isinstance(sink, SlotSink) else None
        begun = sink.begun() if isinstance(sink, SlotSink) and torn is not None else None
    except PenstockError as error:
        told = f"{error.code} {error.line}"
        return Standing(sink.name, sink.guarantee, None, None, told, sparse=sparse, fault=error)
    # A Kafka sink in its first batch tells of the batch before, which there is not.
    token = token if token is not None and token.batch_id >= 0 else None
    taken_back = _refusal(sink, token) if token is not None and not isinstance(sink, SlotSink) else None
    return Standing(sink.name, sink.guarantee, token, torn, begun=begun, sparse=sparse, taken_back=taken_back)


def _refusal(sink: Sink, token: BatchToken) -> PenstockError | None:
    """What the sink has against its own newest token, if anything."""
    try:
        sink.holds(token)
    except PenstockError as error:
        return error
    return None
