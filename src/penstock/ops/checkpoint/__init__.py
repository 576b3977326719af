"""`penstock checkpoint`: inspect, back up, repair and restore a checkpoint."""
