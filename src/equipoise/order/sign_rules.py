"""Sign rules: given `<S, v>` and `||v||^2`, is `v` added to the running sum S or subtracted from it?

`memory` is a dict of plain numbers that the rule keeps during an epoch (and in a checkpoint); `draw` returns uniform
numbers in [0, 1) that are the same on every worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Draw = Callable[[], float]
SignRule = Callable[[float, float, dict[str, float], Draw], int]


def greedy(product: float, square: float, memory: dict[str, float], draw: Draw) -> int:
    """The sign that makes `||S + s v||` smaller; + on a tie. The rule of every published experiment."""
    return 1 if product <= 0 else -1


def halving(product: float, square: float, memory: dict[str, float], draw: Draw) -> int:
    """Kernel halving: + if `<S, v> <= a U`, U uniform on [-1, 1], with an adaptive width a.

    a follows from the squared norm, a bound q on the spread of S and L = log(8 (1 + ln E)(1 + ln m) k e) for term k of
    the m in epoch e; E, the number of epochs, which an order does not know, is taken to be e. Its guarantee depends on
    the approximate rank of the differences, not on their dimension.
    Reference: Carrell, Gong, Shetty, Dwivedi, Mackey, Low-Rank Thinning, ICML 2025 (failure probability 1/2).
    """
    if square == 0:
        return 1
    if not math.isfinite(square):
        return greedy(product, square, memory, draw)  # such a norm would never be forgotten
    memory["count"] = memory.get("count", 0.0) + 1
    spread = memory.get("spread", 0.0)
    epoch, terms = memory.get("epochs", 1.0), memory.get("terms", 1.0)
    penalty = math.log(8 * (1 + math.log(epoch)) * (1 + math.log(max(1.0, terms))) * memory["count"] * epoch)
    ratio = spread * penalty / square
    if ratio <= 1:
        width, spread = square, 2 * square
    else:
        root = math.sqrt(ratio)
        width, spread = square * root, spread + 2 * square * max(0.0, penalty + 0.5 - root) / penalty
    memory["spread"] = spread
    return 1 if product <= width * (2 * draw() - 1) else -1


def walk(product: float, square: float, memory: dict[str, float], draw: Draw) -> int:
    """Self-balancing walk: + with probability `1/2 - <S, v> / (2 c)`, c = 30 times the longest `||v||^2` so far.

    The rule of the proofs. Its constant is far too conservative in practice: a random order is not much worse.
    Reference: Alweiss, Liu, Sawhney, Discrepancy minimization via a self-balancing walk, 2020.
    """
    if not math.isfinite(square):
        return greedy(product, square, memory, draw)  # such a norm would never be forgotten
    longest = memory["longest"] = max(memory.get("longest", 0.0), square)
    if longest == 0:
        return 1
    return 1 if draw() < 0.5 - product / (60 * longest) else -1


SIGN_RULES: dict[str, SignRule] = {"greedy": greedy, "halving": halving, "walk": walk}
