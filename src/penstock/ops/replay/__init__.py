"""`penstock replay`: some offsets of the topics again, the live run untouched."""
