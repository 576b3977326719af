"""The run: the loop around a query, signals, retries, heartbeat, metrics, alerts, fleets."""
