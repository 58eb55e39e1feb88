"""What a run records: events, progress, TensorBoard."""
