"""A web page of all pipelines, served on this machine."""

from penstock.dashboard.serving import Dashboard

__all__ = ["Dashboard"]
