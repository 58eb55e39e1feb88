"""Hashes by which workers notice that they differ."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from equipoise.core.marks import mark_link


@pytest.mark.parametrize("weight", [Fraction(15, 16000), Fraction(1, 16), Fraction(1, 3), Fraction(5, 2_000_000)])
def test_the_last_bits_of_a_weight_do_not_count(weight: Fraction) -> None:
    """15/16000 is 937.5 millionths: two ends of a link that round it there must not go to different sides."""
    value = float(weight)
    near = {mark_link(3, 1, 2, math.nextafter(value, to)) for to in (0.0, 1.0)} | {mark_link(3, 1, 2, value)}
    assert len(near) == 1
    assert mark_link(3, 1, 2, value + 1e-6) not in near
