"""The engines of the submodular partition: similarities, objectives, greedy algorithms, swaps. They need numba."""
