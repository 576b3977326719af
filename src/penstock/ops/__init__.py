"""What operators do: each as `plan_*`, which only looks, and where it acts, `apply_*`."""
