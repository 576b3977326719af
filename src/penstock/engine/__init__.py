"""What Spark calls for a batch, and what a task does: the query, the batch, its slots, the lanes."""
