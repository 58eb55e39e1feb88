"""The engines of the submodular partition: similarities, objectives, greedy algorithms, exchanges."""
