from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..comm.ledger import broadcast_cost, gather_cost
from ..core.errors import UserError
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .base import Sync
from .initial_model import copy_once
from .mixing import message_bytes
from .proximal import proximal_step


@dataclass
class LSGD(Sync):
    """Leader SGD: at each round all workers are pulled to the one with the lowest training loss.

        x_m <- (1 - pull) x_m + pull x_l,   l = argmin over workers of the mean loss of their last `window` batches

    The leader does not move, so unlike an average the centre is always a model that some worker has trained. A round is
    an all-gather of one number and a broadcast of the leader's model. Between rounds `prox` adds  prox (x_l - x) / H
    to each step, taken at the same x as the gradient, where H is the number of steps of this worker in the last round.
    With `groups` (such as the machines of a cluster) workers have two leaders: every `global_every`-th round is a
    global one with `pull` and `prox`; in the others each group follows its own best worker with `local_pull` and
    `local_prox`, and no message leaves the group. Stores the models of the last leaders. A worker that has seen no
    finite loss never leads. Any optimizer takes the local steps; its state stays local.
    Reference: Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models,
    NeurIPS 2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="lsgd", help="pull to the worker with the lowest training loss", cites=("teng2019leader",)
    )

    centre_state: ClassVar[str] = "leader_model"
    STATE: ClassVar[tuple[str, ...]] = (
        "leader_model",
        "group_leader_model",
        "losses",
        "leader",
        "last_round_steps",
        "round_steps",
    )
    COMMON: ClassVar[tuple[str, ...]] = ("leader_model", "last_round_steps", "round_steps")
    OWN: ClassVar[tuple[str, ...]] = ("losses",)
    HEALTH: ClassVar[tuple[str, ...]] = ("leader",)

    pull: float = option(
        0.1, help="how far a global round pulls a worker to the leader: 0 not at all, 1 completely", least=0, most=1
    )
    prox: float = option(
        0.0, help="pull to the last global leader between rounds, spread over the steps of a round", least=0, most=1
    )
    window: int = option(8, help="number of batches in the mean loss that decides who leads", least=1)
    groups: int = option(1, help="number of groups of consecutive ranks, each with its own leader", least=1)
    global_every: int = option(4, help="with groups: one round in so many is global", least=1)
    local_pull: float = option(0.1, help="as pull, to the leader of the group", least=0, most=1)
    local_prox: float = option(0.0, help="as prox, to the leader of the group", least=0, most=1)

    def check_world(self, size: int) -> None:
        if self.groups > size:
            raise UserError(f"LSGD: {self.groups} groups for {size} workers: use at most as many groups as workers")

    def init_state(self) -> None:
        self.check_world(self.context.size)
        self.leader_model: torch.Tensor | None = None
        self.group_leader_model: torch.Tensor | None = None
        self.losses: list[float] = []
        self.leader = 0  # rank 0 until the first round has chosen one
        self.round_steps = 0  # steps of this worker since the last round
        self.last_round_steps = 0  # and in the round before it
        self.channel = self.context.wire.messages("leader") if self.context.wire is not None else None

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "all", ""

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        self.leader_model = copy_once(self.leader_model, x)
        self.round_steps += 1
        if not math.isnan(self.context.clock.loss):
            self.losses = [*self.losses, self.context.clock.loss][-self.window :]
        if self.groups > 1:
            self.group_leader_model = copy_once(self.group_leader_model, x)
            proximal_step(x, self.group_leader_model, self.local_prox, self.last_round_steps)
        proximal_step(x, self.leader_model, self.prox, self.last_round_steps)

    def after_step(self, x: torch.Tensor) -> None:
        clock, comm = self.context.clock, self.context.comm
        finite = self.context.island.all(bool(x.sum().isfinite()))
        usable = self.losses and math.isfinite(sum(self.losses)) and finite
        loss = torch.tensor([sum(self.losses) / len(self.losses) if usable else math.inf], dtype=torch.float64)
        local = self._is_local(clock.rounds)
        losses = self._group_losses(loss) if local else dict(enumerate(comm.gather(loss).flatten().tolist()))
        clock.rounds += 1
        self.last_round_steps, self.round_steps = self.round_steps, 0
        self.leader = min(losses, key=lambda rank: (losses[rank], rank))
        if losses[self.leader] == math.inf:
            if clock.batch and math.isnan(self.context.clock.loss):
                raise UserError(
                    "LSGD follows the lowest training loss: set `together.loss = loss.item()` before optimizer.step()"
                )
            return  # no worker can lead
        target = self.group_leader_model if local else self.leader_model
        assert target is not None
        self._follow(x, target, [rank for rank in losses if rank != comm.rank], local)
        if self.channel is None or self.leader != comm.rank:  # what a wire left out is no reason for the leader to move
            x.lerp_(target, self.local_pull if local else self.pull)

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        if replaced:
            self.losses = []  # it has seen none with this model, so it does not lead
        if self.groups > 1 and self.leader_model is not None:
            self.group_leader_model = self.leader_model.clone()  # which all workers hold

    def _follow(self, x: torch.Tensor, target: torch.Tensor, peers: list[int], local: bool) -> None:
        """Send the leader's model to the workers that follow it; through a wire, its distance to the last one."""
        comm, leads = self.context.comm, self.leader == self.context.rank
        message = target if self.channel is None else self.channel.next_message()
        if leads:
            message.copy_(x if self.channel is None else self.channel.encode(x - target))
        if local:
            sent, received = dict.fromkeys(peers, message), {self.leader: message}
            comm.exchange(sent if leads else {}, {} if leads else received).wait()
        else:
            comm.broadcast(message, self.leader)
        if self.channel is not None:
            target.add_(self.channel.decode(message, self.leader))

    def _group_losses(self, loss: torch.Tensor) -> dict[int, float]:
        """The losses of this worker's group, by rank; no message leaves the group."""
        peers = [rank for rank in self._group(self.context.rank, self.context.size) if rank != self.context.rank]
        received = {rank: torch.empty_like(loss) for rank in peers}
        self.context.comm.exchange(dict.fromkeys(peers, loss), received).wait()
        return {rank: value.item() for rank, value in {**received, self.context.rank: loss}.items()}

    def _is_local(self, round: int) -> bool:
        return self.groups > 1 and (round + 1) % self.global_every != 0

    def _group(self, rank: int, size: int) -> list[int]:
        return next(group.tolist() for group in np.array_split(np.arange(size), self.groups) if rank in group)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        """The leader sends its model; before the first round rank 0 counts as the leader."""
        if not due:
            return 0, 0
        leader = self.leader if self.is_bound else 0
        if self._is_local(round):
            group = self._group(rank, size)
            peers, leads = len(group) - 1, rank == (leader if leader in group else group[0])
            return peers * (1 + leads), peers * (8 + leads * message_bytes(model))
        (m1, b1), (m2, b2) = gather_cost(1, 8, size), broadcast_cost(message_bytes(model), 1, rank, leader, size)
        return m1 + m2, b1 + b2
