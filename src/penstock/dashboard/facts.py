"""All that is known of one pipeline at one time: what the views are made of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from penstock.checkpoint.presence import RunStatus
from penstock.config import PipelineConfig
from penstock.dashboard.recent import Recent


@dataclass(frozen=True)
class Panel:
    """What an expensive query gave, in the shape of the page, or why it gave nothing."""

    at: str
    found: dict[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Facts:
    """One pipeline."""

    id: str
    file: str
    config: PipelineConfig | None = None
    wrong: str | None = None
    """Why the file cannot be read."""
    run: RunStatus | None = None
    unseen: str | None = None
    """Why the checkpoint cannot be looked at."""
    recent: Recent = field(default_factory=Recent)
    looks: dict[str, Panel] = field(default_factory=dict)
    """The dear ones, by their names."""

    @property
    def running(self) -> bool:
        """Whether somebody has the checkpoint now."""
        return self.run is not None and self.run.running

    @property
    def state(self) -> str:
        """As `penstock status` says it."""
        if self.config is None:
            return "wrong file"
        return "not running" if self.run is None or self.run.state == "none" else self.run.state

    @property
    def newest_column(self) -> int:
        """The number of the newest column of lags; 0 where there is none."""
        return self.recent.columns[-1].number if self.recent.columns else 0

    def found(self, look: str) -> dict[str, Any]:
        """What a look gave; nothing where it was not made yet."""
        looked = self.looks.get(look)
        return (looked.found if looked is not None else None) or {}

    def without_run(self, error: Exception) -> Facts:
        """What is left where something that a run wrote cannot be shown."""
        return replace(self, run=None, recent=Recent(), unseen=f"showing what the run wrote: {type(error).__name__}")
