"""What everything else stands on: methods and their options, the worker's description, counters, flat vectors, errors."""
