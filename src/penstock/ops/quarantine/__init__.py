"""`penstock quarantine`: what is there, and what became of it."""
