"""Flow control: how many offsets the next batch takes, as a pure function of the batches before."""

from penstock.flow.controller import REASONS, Decision, decide
from penstock.flow.cost import REMEMBERED, Cost, Observed, estimate

__all__ = ["REASONS", "REMEMBERED", "Cost", "Decision", "Observed", "decide", "estimate"]
