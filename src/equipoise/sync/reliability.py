"""How far workers' gradient norms differ by more than their noise."""

from __future__ import annotations

import torch

_MEMORY = 0.9  # of V and B, over rounds


class Reliability:
    """One number between 0 and 1 for each weight, the same on all workers.

        y_m = log n_m;   v_m = q mean_k (log n_mk - log n_m,k-1)^2 / 2
        V = mean_m v_m;   B = sum_m (y_m - mean y)^2 / (M - 1);   r = max(0, 1 - V / B)

    n_mk are the norms that worker m measured in a round and n_m is their smoothed value. Successive differences have
    twice the variance of the noise, and little of a slow trend; q is the part of that variance which smoothing leaves.
    B contains the real variance and V. Both are averaged over rounds. Each worker adds 1, y, y^2 and v to the sums of a
    round; the r of one round is used in the next one. Before the first sums r is 0.
    """

    def __init__(self, weights: int):
        # Rows: mean y of the last round, from which y is taken lest its square swamps its variance; V; B.
        self.moments = torch.zeros(3, weights, dtype=torch.float64)

    def values(self) -> torch.Tensor:
        """r of each weight."""
        _, noise, spread = self.moments
        return torch.where(spread > noise, 1.0 - noise / spread, 0.0)

    def numbers(self, logs: torch.Tensor | None, noise: torch.Tensor | None) -> torch.Tensor:
        """What a worker adds to the sums: nothing, if it does not know its y or v or if these are not finite."""
        nothing = self.moments.new_zeros(count(self.moments.shape[1]))
        if logs is None or noise is None:
            return nothing
        away = logs - self.moments[0]
        numbers = torch.cat([away.new_ones(1), away, away.square(), noise])
        return numbers if bool(numbers.isfinite().all()) else nothing

    def update(self, sums: torch.Tensor) -> None:
        """Take in the sums of a round; one worker alone says nothing of differences."""
        workers = round(float(sums[0]))
        if workers < 2:
            return
        away, squares, noise = sums[1:].reshape(3, -1).to(self.moments.dtype) / workers
        spread = (squares - away.square()).clamp(min=0.0) * workers / (workers - 1)
        past, now = self.moments[1:], torch.stack([noise, spread])
        self.moments = torch.cat([(self.moments[0] + away).unsqueeze(0), past.lerp(now, 1.0 - _MEMORY)])


def count(weights: int) -> int:
    """Numbers that travel for so many weights."""
    return 1 + 3 * weights


def noise_of(logs: torch.Tensor, smoothing: float, measurements: int) -> torch.Tensor | None:
    """v of each weight, from the logarithms (rows) of successive norms, the last of so many that were smoothed."""
    if len(logs) < 2:
        return None
    forgotten = smoothing**measurements
    left = (1.0 - smoothing) / (1.0 + smoothing) * (1.0 + forgotten) / (1.0 - forgotten)
    return left * logs.diff(dim=0).square().mean(0) / 2.0
