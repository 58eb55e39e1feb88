"""The running sum kept among neighbours, without a gather: every worker signs its own terms and sends to few others.

Shares of S are passed on, never lost or copied: their sum over workers is S. A message is one vector as long as the
signal, whatever the number of terms and of workers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..comm.base import Comm
from ..signal.base import GradientView
from ..topology.base import Topology
from .sign_terms import NO_TERMS, ChooseSign, Floats, TermSigns, sign_terms


@torch.no_grad()
def by_relay(
    comm: Comm, total: torch.Tensor, view: GradientView | None, terms: Floats, choose_sign: ChooseSign, upward: bool
) -> TermSigns:
    """S goes from neighbour to neighbour along a path, up in one step and down in the next; the one who has it signs.

        S <- S of the neighbour before,   s_k = -sign <S, v_k>,  S <- S + s_k v_k  for the terms of this step,   send S

    All terms of all workers are signed in one sequence against S itself: the herding bound of one worker with all the
    terms. W - 1 messages per step, one after the other. Only the worker at the end of the path has S afterwards.
    """
    before, after = (comm.rank - 1, comm.rank + 1) if upward else (comm.rank + 1, comm.rank - 1)
    if 0 <= before < comm.size:
        comm.exchange({}, {before: total}).wait()
    signed = sign_terms(total, view, terms, choose_sign) if view is not None and len(terms) else NO_TERMS
    if 0 <= after < comm.size:
        comm.exchange({after: total}, {}).wait()
    return signed


@torch.no_grad()
def by_gossip(
    comm: Comm,
    total: torch.Tensor,
    view: GradientView | None,
    terms: Floats,
    choose_sign: ChooseSign,
    topology: Topology,
    rounds: Iterable[int],
) -> TermSigns:
    """All workers mix their shares of S with their neighbours', then sign at once against what they know of S.

        x_i <- sum_j W_ij x_j  (in every round),   s_k = -sign <n x_i + own terms so far, v_k>,   x_i <- x_i + s_k v_k

    x_i is S/n and an error e_i that mixing has not removed. All workers are in flight together, so S is balanced as by
    `stale` while n ||e|| is below the floor of S, and like n independent workers beyond (docs/order.md).
    """
    for round in rounds:
        received = {peer: torch.empty_like(total) for peer, _ in topology.neighbours(round, comm.rank)}
        outgoing = {peer: total for peer, _ in topology.targets(round, comm.rank)}
        comm.exchange(outgoing, received).wait()
        total.mul_(topology.keeps(round, comm.rank))
        for peer, weight in topology.neighbours(round, comm.rank):
            total.add_(received[peer], alpha=weight)
    if view is None or not len(terms):
        return NO_TERMS
    estimate = total * comm.size
    signed = sign_terms(estimate, view, terms, choose_sign)
    total.add_(estimate.sub_(total, alpha=comm.size))
    return signed
