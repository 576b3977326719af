"""Why a pipeline is slow or stuck: evidence collected once, causes as pure functions of it, ranked."""

from penstock.ops.diagnosis.cause import Cause, Diagnosis
from penstock.ops.diagnosis.diagnosing import diagnose

__all__ = ["Cause", "Diagnosis", "diagnose"]
