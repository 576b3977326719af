"""`penstock simulate`: a pipeline on paper."""
