"""`penstock test`: the cases of a pipeline."""
