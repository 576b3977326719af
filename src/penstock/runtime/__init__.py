"""From parts to a running pipeline: build, batch, the two lanes, the run."""
