"""`penstock quarantine redrive`: bad records back through the pipeline."""
