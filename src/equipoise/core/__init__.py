"""What everything else stands on: methods, the description of a worker, counters, flat vectors, errors."""
