"""Records whose time is beyond the last timestamp, whatever their format: bad ones, and the others go on.

Kafka's times are 64 bits of milliseconds. A reader that cannot say such a time in microseconds says the last one there
is; the quarantine has null for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Decoder, TellingDecoder
from penstock.decoders.framing import JudgingDecoder
from penstock.decoders.refusal import TIMESTAMP_OUT_OF_RANGE, Reason, refuse
from penstock.model import Split, beyond_timestamps
from penstock.registry import RegisteredSchema

_REASON = Reason(TIMESTAMP_OUT_OF_RANGE, "the record's time is after the year 9999, which no timestamp can be")


def timed(decoder: Decoder) -> Decoder:
    """A decoder that refuses records whose time is beyond the last timestamp."""
    return _JudgingTimedDecoder(decoder) if isinstance(decoder, JudgingDecoder) else TimedDecoder(decoder)


@dataclass(frozen=True)
class TimedDecoder:
    """Implements `contracts.Decoder`: `inner` for the records whose time can be said."""

    inner: Decoder

    @property
    def schema(self) -> pa.Schema:
        """That of the decoder inside."""
        return self.inner.schema

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        beyond = beyond_timestamps(raw.column("timestamp"))
        if beyond is None:
            return self.inner.decode(raw)
        split = self.inner.decode(raw.filter(pc.invert(beyond)))
        late = refuse(raw, dict.fromkeys(pc.indices_nonzero(beyond).to_pylist(), _REASON))
        return Split(split.good, pa.concat_batches([split.bad, late]), split.refused, split.counts)

    def notices(self) -> list[str]:
        """What the decoder inside has to say."""
        return self.inner.notices() if isinstance(self.inner, TellingDecoder) else []


class _JudgingTimedDecoder(TimedDecoder):
    """The same for a decoder that judges schemas."""

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """What the decoder inside says."""
        return self.inner.refuses(schema) if isinstance(self.inner, JudgingDecoder) else None
