"""Operator actions: each has a read-only `plan_*`, and `apply_*` if it changes something."""
