"""The largest elements of each row. Which of equal elements count is fixed, so every device chooses the same ones."""

from __future__ import annotations

import numpy as np
import torch

from .rows import few_rows, rows_of

GROUPS = 8


def largest(vector: torch.Tensor, length: int, count: int) -> torch.Tensor:
    """The places of the `count` elements with the largest magnitudes of each row, in ascending order.

    A place is among the largest only if its group is among the groups with the largest maxima: first these are found.
    """
    if length % GROUPS or 2 * GROUPS * count > length:
        return top(magnitudes(rows_of(vector, length)), count)
    groups = length // GROUPS  # elements whose places are equal modulo this number are one group
    maxima = torch.cat(
        [
            magnitudes(rows_of(part, length)).view(-1, GROUPS, groups).amax(1)
            for part in torch.split(vector, few_rows(length) * length)
        ]
    )
    members = torch.arange(0, length, groups, device=vector.device).unsqueeze(1)
    places = (top(maxima, count).unsqueeze(1) + members).flatten(1)  # of the candidates, in ascending order
    return places.gather(1, top(magnitudes(values_at(vector, places, length)), count))


def places_in_rows(indices: torch.Tensor, length: int) -> torch.Tensor:
    """Places in the vector whose rows have this length; of several codes, one row for each."""
    starts = torch.arange(0, indices.shape[-2] * length, length, device=indices.device)
    return (indices + starts.unsqueeze(1)).flatten(-2)


def values_at(vector: torch.Tensor, indices: torch.Tensor, length: int) -> torch.Tensor:
    """The elements at these places of the rows; zeros behind the end of the vector, in the last row."""
    places = places_in_rows(indices, length)
    if len(vector) % length == 0:
        return vector.index_select(0, places).view_as(indices)
    values = vector.index_select(0, places.clamp_(max=len(vector) - 1)).view_as(indices)
    values[-1].masked_fill_(indices[-1] >= len(vector) % length, 0.0)
    return values


def magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the magnitudes, NaN above all: they are compared faster."""
    return rows.view(torch.int32) & 0x7FFFFFFF


def top(integers: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the largest integers of each row, in ascending order; of equal ones the first count."""
    if integers.device.type == "cpu":
        numbers = integers.numpy()
        chosen = _top_on_cpu(numbers, count)
        if len(chosen) > len(numbers) * count:  # some are equal
            chosen = _top_on_cpu(distinct(integers).numpy(), count)
        return torch.from_numpy(chosen).view(-1, count).remainder_(integers.shape[1])
    return distinct(integers).topk(count, dim=1, sorted=False).indices.sort(dim=1).values


def descending(rows: torch.Tensor) -> torch.Tensor:
    """Positive numbers in descending order, NaN first."""
    if rows.device.type == "cpu":  # numpy's sort and partition are vectorised
        return torch.from_numpy(np.sort(rows.numpy(), axis=1)).flip(1)
    return rows.sort(dim=1, descending=True).values


def distinct(integers: torch.Tensor) -> torch.Tensor:
    """Different integers in the same order; of equal ones the first becomes the largest."""
    length = integers.shape[1]
    return integers.long() * length + torch.arange(length - 1, -1, -1, device=integers.device)


def _top_on_cpu(numbers: np.ndarray, count: int) -> np.ndarray:
    """Places in the flat array of all numbers that are at least as large as the count-th largest of their row."""
    place = numbers.shape[1] - count
    least = np.partition(numbers, place, axis=1)[:, place : place + 1]
    return np.flatnonzero(numbers >= least)
