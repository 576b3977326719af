"""`penstock lag`: how far a pipeline is behind, in records and in time."""
