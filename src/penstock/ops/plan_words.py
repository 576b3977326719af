"""What `plan` says of the run as a whole: when its batches start, how large they are, where its checkpoint is."""

from __future__ import annotations

from penstock.checkpoint import SparkCheckpoint
from penstock.config import PipelineConfig, show_duration
from penstock.flow import decide, observed_in
from penstock.metrics.history import history_of


def trigger_words(config: PipelineConfig) -> str:
    """When batches start."""
    if config.trigger.available_now:
        return "drain what is there, then stop"
    every = config.trigger.every
    return f"every {every.total_seconds():g} s" if every else "as fast as batches finish"


def flow_words(config: PipelineConfig) -> str:
    """How large the batches are."""
    if not config.adaptive:
        fixed = [one.max_offsets for one in config.sources.values()] or [config.source.max_offsets]
        return f"a fixed cap of {' and '.join(f'{one:,}' if one else 'no' for one in fixed)} offsets a batch"
    flow = config.flow
    known = observed_in(history_of(config.checkpoint).read(events=("batch",)))
    first = f"{decide(flow, known).cap:,} offsets by the batches before" if known else "a small one to begin with"
    aim, most = show_duration(flow.target_batch), show_duration(flow.max_batch)
    return f"batches of about {aim} while behind, at most {most}; {first}"


def checkpoint_words(checkpoint: SparkCheckpoint) -> str:
    """How far the checkpoint is."""
    begun, done = checkpoint.last_begun(), checkpoint.last_committed()
    if begun is None:
        return "fresh"
    state = f"query {(checkpoint.query_id() or 'unknown')[:8]}, batch {done if done is not None else 'none'} committed"
    return state if begun == done else f"{state}, batch {begun} begun and to be run again"
