"""What is kept of a run: events, progress, TensorBoard."""
