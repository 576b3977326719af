"""Why a pipeline is slow or stuck: evidence collected once, causes as pure functions of it, ranked."""

from penstock.ops.diagnosis.diagnosing import diagnose
from penstock.ops.diagnosis.evidence import Cause, Diagnosis

__all__ = ["Cause", "Diagnosis", "diagnose"]
