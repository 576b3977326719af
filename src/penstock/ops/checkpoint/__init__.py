"""`penstock checkpoint`: the checkpoint as a thing one can look at, keep, mend and put back."""
