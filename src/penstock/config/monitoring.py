"""Where a running pipeline tells its figures."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from penstock.config.fields import Duration, Section, Text


class OtelConfig(Section):
    """Push the figures by OpenTelemetry's protocol over HTTP. Needs the extra: `pip install penstock[otel]`."""

    endpoint: Text | None = Field(
        default=None,
        description="Where the collector takes metrics, such as `http://localhost:4318/v1/metrics`. Left out, what "
        "OpenTelemetry's own environment variables say.",
    )
    every: Duration = Field(default=timedelta(seconds=15), description="How often they are pushed.")


class MetricsConfig(Section):
    """The figures of the running pipeline, for Prometheus and OpenTelemetry."""

    host: Text = Field(default="127.0.0.1", description="The address that Prometheus finds the figures at.")
    port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="The port of that address; 0 takes a free one, and the run says which. Left out, nothing listens.",
    )
    otel: OtelConfig | None = Field(default=None, description="Push them by OpenTelemetry as well.")
